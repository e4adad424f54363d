"""A small Kubernetes client: lists and watches, over HTTPS with a bearer token."""

import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct, field

from stethoscope.schemas.errors import ServiceError

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE = 500
T = TypeVar("T")
MAX_BODY_BYTES = 256 * 1024 * 1024


class KubeError(ServiceError):
    """The API server refused. ``status`` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Meta(Struct):
    resource_version: str = field(name="resourceVersion", default="")
    next_page: str = field(name="continue", default="")


class _Page(Struct):
    items: list[msgspec.Raw] | None = None
    metadata: _Meta = field(default_factory=_Meta)


class _Status(Struct):
    message: str = ""
    code: int = 0


class Change(Struct):
    """One line of a watch; ``type`` is ``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK``, .."""

    type: str
    object: msgspec.Raw


class Server(Struct, frozen=True):
    """Where the API server is and how to be let in; the token is read anew for each request."""

    url: str
    token_file: str | None = None
    ca_file: str | None = None
    timeout_secs: float = 10.0


class KubeClient:
    """Requests to one API server; a connection each."""

    def __init__(self, server: Server) -> None:
        """Read the authority's certificate.

        Raises:
            ServiceError: the URL or the certificate cannot be used.
        """
        self._server = server
        parts = urlsplit(server.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            message = f"kubernetes.api_url: {server.url!r} is no http or https URL"
            raise ServiceError(message)
        self._host, self._port = parts.hostname, parts.port
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=server.ca_file)
            except (OSError, ssl.SSLError) as error:
                message = f"kubernetes.ca_file: {server.ca_file}: {error}"
                raise ServiceError(message) from error

    def list_all(self, path: str, query: dict[str, str]) -> tuple[list[msgspec.Raw], str]:
        """All objects, page by page, and the resource version to watch from.

        Raises:
            KubeError, ServiceError: refused; not reachable.
        """
        items: list[msgspec.Raw] = []
        page = query | {"limit": str(PAGE)}
        while True:
            decoded = _decode(self._get(path, page), _Page)
            items.extend(decoded.items or ())
            if not decoded.metadata.next_page:
                return items, decoded.metadata.resource_version
            page = page | {"continue": decoded.metadata.next_page}

    def watch(self, path: str, query: dict[str, str], resource_version: str) -> Iterator[Change]:
        """Changes since that version, as long as the server holds the watch: about a second.

        Raises:
            KubeError: refused; 410 where the version is too old.
            ServiceError: not reachable, or cut off; what came before stands.
        """
        asked = query | {
            "watch": "1",
            "timeoutSeconds": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
        }
        for line in self._get(path, asked).splitlines():
            change = _decode(line, Change)
            if change.type == "ERROR":
                status = _decode(change.object, _Status)
                raise KubeError(status.code, f"watch of {path}: {status.message}")
            yield change

    def _get(self, path: str, query: dict[str, str]) -> bytes:
        timeout = self._server.timeout_secs
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            if self._tls is None
            else http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        )
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers=self._headers())
            response = connection.getresponse()
            body = response.read(MAX_BODY_BYTES)
        except (OSError, http.client.HTTPException) as error:
            message = f"Kubernetes at {self._host}: {str(error) or type(error).__name__}"
            raise ServiceError(message) from error
        finally:
            connection.close()
        if response.status != 200:
            raise KubeError(response.status, self._refusal(path, response.status, body))
        return body

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "stethoscope-agent"}
        if self._server.token_file is not None:
            try:
                token = Path(self._server.token_file).read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                message = f"kubernetes.token_file: {self._server.token_file}: {error}"
                raise ServiceError(message) from error
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _refusal(self, path: str, status: int, body: bytes) -> str:
        try:
            said = msgspec.json.decode(body, type=_Status).message
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = body[:200].decode("utf-8", errors="replace")
        hint = {
            401: "; is the token still good?",
            403: "; grant its role get, list and watch of pods and nodes",
        }.get(status, "")
        return f"Kubernetes at {self._host} refused {path} ({status}): {said}{hint}"


def _decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"Kubernetes: an answer that is no {kind.__name__.strip('_')}: {error}"
        raise ServiceError(message) from error


def in_cluster(environ: dict[str, str], timeout_secs: float) -> Server | None:
    """The API server as a pod sees it; ``None`` outside of one."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not (ACCOUNT_DIR / "token").exists():
        return None
    where = f"[{host}]" if ":" in host else host
    return Server(
        url=f"https://{where}:{port or 443}",
        token_file=str(ACCOUNT_DIR / "token"),
        ca_file=str(ACCOUNT_DIR / "ca.crt"),
        timeout_secs=timeout_secs,
    )
