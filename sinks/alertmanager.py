"""A thin, typed client of Alertmanager's HTTP API, version 2.

    async with AlertmanagerClient("http://127.0.0.1:9093") as client:
        await client.post_alerts([Alert(labels={"alertname": "GpuLost"})])

Asynchronous, because the sender shares a loop with the worker; a command calls it through
``asyncio.run``. Secrets are read at each request, so that a rotated token is picked up, and are
in no message and no ``repr``. Proxies of the environment are not used.
"""

import base64
import math
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from stethoscope.schemas.config import Alertmanager
from stethoscope.schemas.errors import ConfigError, ServiceRefused, ServiceUnavailable
from stethoscope.schemas.secrets import read_secret, tls_context
from stethoscope.sinks.alertmanager_types import (
    Alert,
    CreatedSilence,
    GettableAlert,
    GettableSilence,
    Receiver,
    Silence,
    Status,
)

T = TypeVar("T")
Query: TypeAlias = Mapping[str, str | bool | Sequence[str]]
MAX_ERROR_CHARS = 500


class AlertmanagerClient:
    """One Alertmanager.

    Every method raises ``ServiceRefused`` for HTTP 3xx and 4xx, ``ServiceUnavailable`` for 429,
    5xx, failed connections, timeouts and answers that are no API's, and ``ConfigError`` where a
    secret cannot be read.
    """

    def __init__(
        self,
        url: str,
        config: Alertmanager | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect to nothing yet.

        ``url`` may carry a path prefix. ``transport`` stands in for the network in tests.

        Raises:
            ConfigError: the URL is not http(s) or carries credentials; TLS files do not fit.
        """
        config = config or Alertmanager()
        self.url = _checked_url(url)
        self._http = httpx.AsyncClient(
            base_url=self.url + "/api/v2/",
            auth=_auth(config),
            timeout=config.timeout_secs,
            verify=tls_context(config.tls) if config.tls else True,
            transport=transport,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"AlertmanagerClient({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def status(self) -> Status:
        """The server's version and cluster state."""
        return await self._get("status", Status)

    async def post_alerts(self, alerts: Sequence[Alert]) -> datetime | None:
        """Post alerts; the server's time of its answer (``Date``), where it said one.

        A refusal with status 400 may be partial: valid alerts of the batch are stored.
        """
        answer = await self._request("POST", "alerts", body=msgspec.json.encode(alerts))
        return _parse_date(answer.headers.get("Date"))

    async def get_alerts(
        self,
        filters: Sequence[str] = (),
        *,
        active: bool = True,
        silenced: bool = True,
        inhibited: bool = True,
        receiver: str | None = None,
    ) -> list[GettableAlert]:
        """Alerts that match every filter (``severity="critical"``, ``node=~"gpu.*"``)."""
        query: dict[str, str | bool | Sequence[str]] = {
            "filter": list(filters),
            "active": active,
            "silenced": silenced,
            "inhibited": inhibited,
        }
        if receiver is not None:
            query["receiver"] = receiver
        return await self._get("alerts", list[GettableAlert], query)

    async def silences(self, filters: Sequence[str] = ()) -> list[GettableSilence]:
        """Silences, expired ones too, that match every filter."""
        return await self._get("silences", list[GettableSilence], {"filter": list(filters)})

    async def create_silence(self, silence: Silence) -> str:
        """Create or replace a silence; its id."""
        body = msgspec.json.encode(silence)
        answer = await self._request("POST", "silences", body=body)
        return self._decode(answer, CreatedSilence).silence_id

    async def delete_silence(self, silence_id: str) -> None:
        """Expire a silence."""
        await self._request("DELETE", f"silence/{quote(silence_id, safe='')}")

    async def receivers(self) -> list[Receiver]:
        """The receivers that its configuration names."""
        return await self._get("receivers", list[Receiver])

    async def _get(self, path: str, kind: type[T], query: Query | None = None) -> T:
        return self._decode(await self._request("GET", path, query=query), kind)

    async def _request(
        self, method: str, path: str, body: bytes | None = None, query: Query | None = None
    ) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            answer = await self._http.request(
                method, path, content=body, params=query, headers=headers
            )
        except httpx.TimeoutException as error:
            msg = f"{self.url} did not answer in time ({type(error).__name__})"
            raise ServiceUnavailable(msg) from error
        except (
            httpx.RequestError,
            OSError,
        ) as error:  # ssl.SSLError comes as itself, late in TLS 1.3
            msg = f"{self.url} cannot be reached: {str(error) or type(error).__name__}"
            raise ServiceUnavailable(msg) from error
        if answer.is_success:
            return answer
        raise self._failure(answer)

    def _failure(self, answer: httpx.Response) -> ServiceRefused | ServiceUnavailable:
        words = answer.text[:MAX_ERROR_CHARS]
        msg = f"{self.url} answered {answer.status_code}: {words.strip() or answer.reason_phrase}"
        if answer.status_code in (408, 429) or answer.status_code >= 500:
            return ServiceUnavailable(msg, _retry_after_secs(answer))
        return ServiceRefused(msg, answer.status_code, words)

    def _decode(self, answer: httpx.Response, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            msg = f"{self.url} does not answer as an Alertmanager (API v2): {error}"
            raise ServiceUnavailable(msg) from error


class _SecretAuth(httpx.Auth):
    """Basic or bearer authentication whose secret is read anew for every request."""

    def __init__(self, config: Alertmanager) -> None:
        self._basic = config.basic_auth
        self._bearer = config.bearer_token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._basic is not None:
            pair = f"{self._basic.username}:{read_secret(self._basic.password)}"
            request.headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        elif self._bearer is not None:
            request.headers["Authorization"] = "Bearer " + read_secret(self._bearer)
        yield request


def _auth(config: Alertmanager) -> _SecretAuth | None:
    if config.basic_auth is not None and config.bearer_token is not None:
        msg = "alertmanager: give basic_auth or bearer_token, not both"
        raise ConfigError(msg)
    return _SecretAuth(config) if config.basic_auth or config.bearer_token else None


def _checked_url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        msg = f"alertmanager.urls: not a URL: {error}"
        raise ConfigError(msg) from error
    if url.userinfo:
        msg = f"alertmanager.urls: {url.host}: put credentials into basic_auth, not into the URL"
        raise ConfigError(msg)
    if url.scheme not in ("http", "https") or not url.host:
        msg = f"alertmanager.urls: {text!r} must begin with http:// or https:// and name a host"
        raise ConfigError(msg)
    return str(url).rstrip("/")


def _parse_date(text: str | None) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text) if text else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def _retry_after_secs(answer: httpx.Response) -> float | None:
    """``Retry-After`` in seconds; a date counts from the answer's own ``Date``."""
    text = answer.headers.get("Retry-After")
    try:
        secs = float(text) if text else math.nan
    except ValueError:
        until, since = _parse_date(text), _parse_date(answer.headers.get("Date"))
        secs = (until - since).total_seconds() if until and since else math.nan
    return secs if 0.0 <= secs < math.inf else None
