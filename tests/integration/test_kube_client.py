"""The Kubernetes client against a made-up API server, for what a real one rarely does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.kube_client import KubeClient, KubeError, Server
from stethoscope.agents.kubernetes import KubernetesReader
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import Kubernetes
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import ClockEvent, JobEvent

pytestmark = pytest.mark.integration


class Fake(BaseHTTPRequestHandler):
    """Answers from a script: a path and its query to status and body."""

    pages: ClassVar[dict[str, dict[str, object]]] = {}
    watch: ClassVar[bytes] = b""
    refuse: ClassVar[tuple[int, bytes] | None] = None
    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers.get("Authorization"))
        query = parse_qs(urlsplit(self.path).query)
        if self.refuse is not None:
            self._answer(*self.refuse)
        elif "watch" in query:
            self._answer(200, self.watch)
        elif urlsplit(self.path).path.endswith("/nodes"):
            self._answer(200, b'{"items": [], "metadata": {"resourceVersion": "1"}}')
        else:
            page = self.pages[query.get("continue", [""])[0]]
            self._answer(200, json.dumps(page).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def pod(name: str, phase: str = "Pending") -> dict[str, object]:
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name, "resourceVersion": "9"},
        "spec": {"containers": [{"name": "c", "resources": limits}]},
        "status": {"phase": phase},
    }


@pytest.fixture
def url() -> Iterator[str]:
    Fake.pages = {"": {"items": [], "metadata": {"resourceVersion": "5"}}}
    Fake.watch, Fake.refuse, Fake.tokens = b"", None, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Fake) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def states(reader: KubernetesReader) -> list[tuple[str, str]]:
    events = reader.read(FakeClock().now())
    assert isinstance(events[-1], ClockEvent)
    return [(event.job_id, event.state) for event in events if isinstance(event, JobEvent)]


def reader_of(url: str, **settings: object) -> KubernetesReader:
    section = Kubernetes(api_url=url, **settings)  # type: ignore[arg-type]  # by name
    return KubernetesReader(Context("c", "ctl", "b"), section)


def test_all_pages_are_read_then_changes(url: str) -> None:
    Fake.pages = {
        "": {"items": [pod("a")], "metadata": {"continue": "more", "resourceVersion": "5"}},
        "more": {"items": [pod("b"), {"metadata": {}}], "metadata": {"resourceVersion": "5"}},
    }
    reader = reader_of(url)
    assert states(reader) == [("ml/a", "PENDING"), ("ml/b", "PENDING")]
    assert reader.counters.invalid_samples_total == 1
    changes = [
        {"type": "MODIFIED", "object": pod("a", "Succeeded")},
        {"type": "DELETED", "object": pod("b")},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}},
    ]
    Fake.watch = b"".join(json.dumps(change).encode() + b"\n" for change in changes)
    assert sorted(states(reader)) == [("ml/a", "COMPLETED"), ("ml/b", "CANCELLED")]
    assert reader._pods is not None
    assert reader._pods.resource_version == "12"


def test_a_version_that_expires_during_a_watch_is_listed_anew(url: str) -> None:
    reader = reader_of(url)
    assert states(reader) == []
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    Fake.watch = json.dumps(gone).encode()
    Fake.pages = {"": {"items": [pod("a")], "metadata": {"resourceVersion": "20"}}}
    # The nodes' watch expires alike: each is listed anew and counted.
    assert states(reader) == [("ml/a", "PENDING")]
    assert reader.counters.collector_errors == {
        "/api/v1/pods expired": 1,
        "/api/v1/nodes expired": 1,
    }


def test_a_cut_watch_is_no_change_and_goes_on(url: str) -> None:
    reader = reader_of(url)
    states(reader)
    line = json.dumps({"type": "ADDED", "object": pod("a")}).encode()
    Fake.watch = line + b"\n" + line[:40]
    with pytest.raises(ServiceError, match="no Change"):
        reader.read(FakeClock().now())
    Fake.watch = line
    assert states(reader) == [("ml/a", "PENDING")]


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "is the token still good"), (403, "grant its role"), (500, "oops")]
)
def test_refusals_say_what_to_do(url: str, status: int, hint: str) -> None:
    Fake.refuse = (status, b'{"message": "oops"}')
    client = KubeClient(Server(url))
    with pytest.raises(KubeError, match=rf"refused /x \({status}\): oops.*{hint}|oops") as caught:
        client.list_all("/x", {})
    assert caught.value.status == status
    assert hint in str(caught.value)


def test_the_token_is_read_anew_and_never_shown(url: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    client = KubeClient(Server(url, token_file=str(token)))
    client.list_all("/x", {})
    token.write_text("second")
    client.list_all("/x", {})
    assert Fake.tokens == ["Bearer first", "Bearer second"]
    Fake.refuse = (403, b"")
    with pytest.raises(KubeError) as caught:
        client.list_all("/x", {})
    assert "second" not in str(caught.value)
    token.unlink()
    with pytest.raises(ServiceError, match=r"kubernetes\.token_file"):
        client.list_all("/x", {})


def test_what_is_no_kubernetes_is_told(url: str) -> None:
    Fake.pages = {"": {"items": 7}}
    with pytest.raises(ServiceError, match="no Page"):
        KubeClient(Server(url)).list_all("/x", {})
    with pytest.raises(ServiceError, match=r"kubernetes\.api_url"):
        KubeClient(Server("ftp://x"))
    with pytest.raises(ServiceError, match=r"kubernetes\.ca_file"):
        KubeClient(Server("https://x", ca_file="/none"))
    with pytest.raises(ServiceError, match="Connection refused"):
        KubeClient(Server("http://127.0.0.1:9")).list_all("/x", {})


def test_without_a_server_there_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ReaderUnsupported, match=r"kubernetes\.api_url"):
        KubernetesReader(Context("c", "ctl", "b"), Kubernetes()).probe()
