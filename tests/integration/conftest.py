"""Real services for integration tests: one Kafka broker and one Alertmanager a session.

Each listens on a free loopback port. A program that is missing fails the test with what to do.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
START_SECS = 60.0
WAIT_SECS = 30.0
Payload = dict[str, Any]

ALERTMANAGER_CONFIG = """
route:
  receiver: test
  group_by: [alertname, incident_id]
  group_wait: 100ms
  group_interval: 200ms
  repeat_interval: 1h
receivers:
  - name: test
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def need(program: str) -> str:
    """The program's path; fails the test where it is missing."""
    path = shutil.which(program)
    if path is None:
        pytest.fail(f"{program} is missing: run `make system` (scripts/install-system.sh)", False)
    return path


def run_script(name: str, *arguments: str) -> str:
    """Standard output of one of our scripts; fails the test with its words when it fails."""
    done = subprocess.run(
        [SCRIPTS / name, *arguments], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        pytest.fail(f"{name} ended with {done.returncode}: {done.stderr.strip()}", False)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of its own: "127.0.0.1:PORT". Topics are not made by use; create yours first."""
    need("java")
    folder = str(tmp_path_factory.mktemp("kafka"))
    ports = [str(port) for port in free_ports(2)]
    address = run_script("kafka-start.sh", folder, *ports)
    yield address
    run_script("kafka-stop.sh", folder)


class Webhook:
    """An HTTP server that keeps every JSON document posted to it, in order of arrival."""

    def __init__(self) -> None:
        self._payloads: list[Payload] = []
        self._arrived = threading.Condition()
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                webhook._keep(json.loads(body))

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing on standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def _keep(self, payload: Payload) -> None:
        with self._arrived:
            self._payloads.append(payload)
            self._arrived.notify_all()

    def received(self) -> list[Payload]:
        with self._arrived:
            return list(self._payloads)

    def wait_for(
        self, predicate: Callable[[list[Payload]], bool], timeout: float = WAIT_SECS
    ) -> list[Payload]:
        """All payloads, once the predicate holds of them; fails the test after ``timeout`` s."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: predicate(self._payloads), timeout):
                got = json.dumps(self._payloads, indent=1)
                pytest.fail(f"not what the webhook was to receive, after {timeout:g} s: {got}")
            return list(self._payloads)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class RunningAlertmanager:
    """An Alertmanager that sends every group, alone and at once, to a webhook that remembers.

    ``url``: its address. Payloads are those of Alertmanager's webhook receiver, version 4; groups
    are by alertname and incident_id and repeat after an hour, so one firing is one payload.
    ``web_config``: its --web.config.file, for TLS and authentication.
    """

    def __init__(self, folder: Path, web_config: Path | None = None) -> None:
        self._program = need("prometheus-alertmanager")
        self._folder = folder
        self._webhook = Webhook()
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._web = [] if web_config is None else [f"--web.config.file={web_config}"]
        self.url = f"{'https' if self._web else 'http'}://127.0.0.1:{self._port}"
        self.received = self._webhook.received
        self.wait_for = self._webhook.wait_for
        (folder / "alertmanager.yml").write_text(
            ALERTMANAGER_CONFIG.format(url=self._webhook.url), encoding="utf-8"
        )

    def alerts(self) -> list[Payload]:
        """Every alert that the webhook was told of, in order of arrival."""
        return [alert for payload in self.received() for alert in payload["alerts"]]

    def start(self) -> None:
        """Start it on its port; returns when it is ready."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={self._folder / 'alertmanager.yml'}",
                    f"--storage.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    "--cluster.listen-address=",
                    *self._web,
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECS
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_text = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
                pytest.fail(f"Alertmanager did not start: {log_text[-2000:]}", False)
            time.sleep(0.05)

    def _ready(self) -> bool:
        if self._web:  # whoever asks must authenticate: an open port is all that can be seen
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self._port)) == 0
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5) as answer:  # noqa: S310 - our own http
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self, with_signal: int = signal.SIGTERM) -> None:
        """End the process (``SIGKILL`` for a crash); its data stays for the next ``start``."""
        if self._process is not None:
            os.kill(self._process.pid, with_signal)
            self._process.wait(timeout=START_SECS)
            self._process = None

    def close(self) -> None:
        """End the process and the webhook."""
        self.stop()
        self._webhook.close()


@pytest.fixture(scope="session")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlertmanager]:
    """One Alertmanager for the session. Use an incident id of your own, and look for that."""
    running = RunningAlertmanager(tmp_path_factory.mktemp("alertmanager"))
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def make_alertmanager() -> type[RunningAlertmanager]:
    """For an Alertmanager of a test's own: ``start`` it, and ``close`` it in the end."""
    return RunningAlertmanager
