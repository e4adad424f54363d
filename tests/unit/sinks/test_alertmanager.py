"""The client's edges: URLs, authentication, TLS, and every way a server can fail."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from stethoscope.schemas.config import Alertmanager, BasicAuth, Secret, Tls
from stethoscope.schemas.errors import ConfigError, ServiceRefused, ServiceUnavailable
from stethoscope.sinks.alertmanager import AlertmanagerClient
from stethoscope.sinks.alertmanager_types import Alert, to_datetime, to_unix_ns

T = TypeVar("T")
Handler = Callable[[httpx.Request], httpx.Response]
STATUS = b"""
{"cluster": {"status": "ready", "peers": [{"name": "01", "address": "10.0.0.1:9094"}]},
 "config": {"original": "route: .."}, "uptime": "2026-11-29T19:14:15.074Z",
 "versionInfo": {"branch": "HEAD", "version": "0.27.0", "goVersion": "go1.22"}}
"""


def ask(
    handler: Handler,
    use: Callable[[AlertmanagerClient], Awaitable[T]],
    config: Alertmanager | None = None,
    url: str = "http://am:9093/prefix/",
) -> T:
    async def asked() -> T:
        transport = httpx.MockTransport(handler)
        async with AlertmanagerClient(url, config, transport) as client:
            return await use(client)

    return asyncio.run(asked())


def test_alerts_go_out_as_the_api_wants_them() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, headers={"Date": "Tue, 14 Nov 2023 22:13:20 GMT"})

    alert = Alert(
        labels={"alertname": "GpuLost"},
        starts_at=to_datetime(1_700_000_000_123_456_789),
        generator_url="http://dash/",
    )
    date = ask(handler, lambda client: client.post_alerts([alert]))
    assert date == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    [request] = seen
    assert (request.method, str(request.url)) == ("POST", "http://am:9093/prefix/api/v2/alerts")
    assert request.headers["Content-Type"] == "application/json"
    assert json.loads(request.content) == [
        {
            "labels": {"alertname": "GpuLost"},
            "startsAt": "2023-11-14T22:13:20.123456Z",
            "generatorURL": "http://dash/",
        }
    ]


def test_a_server_without_a_usable_date_says_none() -> None:
    for headers in ({}, {"Date": "yesterday"}, {"Date": "Tue, 14 Nov 2023 22:13:20 -0000"}):
        answer = httpx.Response(200, headers=headers)
        assert ask(lambda _, a=answer: a, lambda client: client.post_alerts([])) is None


def test_queries_name_every_filter() -> None:
    seen: list[httpx.URL] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return httpx.Response(200, json=[])

    filters = ['severity="critical"', 'node=~"gpu.*"']
    ask(handler, lambda client: client.get_alerts(filters, silenced=False, receiver="pager"))
    [url] = seen
    assert url.params.get_list("filter") == filters
    assert (url.params["silenced"], url.params["active"]) == ("false", "true")
    assert url.params["receiver"] == "pager"


def test_answers_with_unknown_fields_are_read() -> None:
    status = ask(lambda _: httpx.Response(200, content=STATUS), lambda client: client.status())
    assert status.version_info.version == "0.27.0"
    assert status.cluster.peers[0].address == "10.0.0.1:9094"


def test_a_silence_id_cannot_leave_its_path() -> None:
    seen: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(200)

    ask(handler, lambda client: client.delete_silence("../alerts?x=/1"))
    assert seen == [b"/prefix/api/v2/silence/..%2Falerts%3Fx%3D%2F1"]


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 413, 422])
def test_a_no_is_a_refusal_with_the_servers_words(status: int) -> None:
    answer = httpx.Response(status, text="invalid label name " + "x" * 9999)
    with pytest.raises(ServiceRefused, match="invalid label name") as refusal:
        ask(lambda _: answer, lambda client: client.post_alerts([]))
    assert refusal.value.status == status
    assert len(refusal.value.body) == 500


@pytest.mark.parametrize(
    ("headers", "retry_after_secs"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "-7"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT"}, None),
        (
            {
                "Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT",
                "Date": "Tue, 14 Nov 2023 22:13:20 GMT",
            },
            30.0,
        ),
    ],
)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_not_now_is_unavailable_with_the_wait_asked_for(
    status: int, headers: dict[str, str], retry_after_secs: float | None
) -> None:
    answer = httpx.Response(status, headers=headers)
    with pytest.raises(ServiceUnavailable, match=f"http://am:9093/prefix answered {status}") as no:
        ask(lambda _: answer, lambda client: client.status())
    assert no.value.retry_after_secs == retry_after_secs


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (httpx.ConnectError("connection refused"), "cannot be reached: connection refused"),
        (httpx.ReadTimeout(""), "did not answer in time .ReadTimeout."),
        (httpx.ReadError(""), "cannot be reached: ReadError"),
        (httpx.RemoteProtocolError("peer closed"), "cannot be reached: peer closed"),
        (ssl.SSLError("bad certificate"), "cannot be reached: .*bad certificate"),
    ],
)
def test_no_connection_is_unavailable(failure: Exception, words: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise failure

    with pytest.raises(ServiceUnavailable, match=words):
        ask(handler, lambda client: client.status())


@pytest.mark.parametrize("body", [b"<html>", b"\xff\xfe", b"[]", b"", b'{"cluster":{}}'])
def test_something_else_on_that_port_is_unavailable(body: bytes) -> None:
    with pytest.raises(ServiceUnavailable, match="does not answer as an Alertmanager"):
        ask(lambda _: httpx.Response(200, content=body), lambda client: client.status())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:hunter2@am:9093", "put credentials into basic_auth"),
        ("am:9093", "must begin with http"),
        ("ftp://am", "must begin with http"),
        ("http://", "must begin with http"),
        ("http://am:port", "not a URL"),
    ],
)
def test_a_bad_url_is_a_configuration_error_that_keeps_the_secret(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        AlertmanagerClient(url)
    assert "hunter2" not in str(error.value)


def test_a_rotated_token_is_read_at_the_next_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    sent: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["Authorization"])
        return httpx.Response(200, json=[])

    async def twice(client: AlertmanagerClient) -> str:
        for secret in ("first", "second"):
            token.write_text(secret + "\n", encoding="utf-8")
            await client.receivers()
        return repr(client) + repr(vars(client))

    shown = ask(handler, twice, Alertmanager(bearer_token=Secret(file=str(token))))
    assert sent == ["Bearer first", "Bearer second"]
    assert "second" not in shown


def test_basic_auth_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AM_PASSWORD", "grün")

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Basic YWRhOmdyw7xu"
        return httpx.Response(200, json=[])

    auth = BasicAuth(username="ada", password=Secret(env="AM_PASSWORD"))
    assert ask(handler, lambda client: client.receivers(), Alertmanager(basic_auth=auth)) == []


def test_an_absent_secret_is_a_configuration_error_at_use() -> None:
    config = Alertmanager(bearer_token=Secret(env="NO_SUCH_VARIABLE_HERE"))
    with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE_HERE"):
        ask(lambda _: httpx.Response(200), lambda client: client.receivers(), config)


def test_two_ways_to_authenticate_are_one_too_many() -> None:
    secret = Secret(env="X")
    config = Alertmanager(bearer_token=secret, basic_auth=BasicAuth(username="a", password=secret))
    with pytest.raises(ConfigError, match="not both"):
        AlertmanagerClient("http://am", config)


def test_tls_files_that_do_not_exist_are_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"no-such-ca\.pem"):
        AlertmanagerClient("https://am", Alertmanager(tls=Tls(ca_file="/no-such-ca.pem")))


def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://proxy.invalid:3128")
    client = AlertmanagerClient("http://am:9093")
    assert client._http._mounts == {}
    asyncio.run(client.aclose())


def test_times_keep_their_microseconds() -> None:
    unix_ns = 1_700_000_000_123_456_000
    assert to_unix_ns(to_datetime(unix_ns)) == unix_ns
    assert to_unix_ns(to_datetime(unix_ns + 999)) == unix_ns
