"""A server that keeps leases as Alertmanager does, in memory and on a fake clock."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from stethoscope.sinks.clock import NS, FakeClock

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
Payload = dict[str, Any]


class FakeAlertmanager:
    """Keeps alerts by label set, drops none, and tells a page each time one starts to fire.

    ``skew_secs``: how far its clock is ahead of the sender's. ``answers``: responses to give
    instead of taking the next posts; an exception is raised. ``refuse``: alerts it finds invalid.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.skew_secs = 0.0
        self.answers: list[httpx.Response | Exception] = []
        self.down = False
        self.refuse: Callable[[Payload], bool] = lambda alert: (
            not all(LABEL_NAME.fullmatch(name) for name in alert["labels"])
        )
        self.posts: list[list[Payload]] = []
        self.body_bytes: list[int] = []
        self.pages: list[str] = []
        self.resolved: list[str] = []
        self.stored: dict[str, Payload] = {}
        self._firing: set[str] = set()

    def handle(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            msg = "connection refused"
            raise httpx.ConnectError(msg)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        alerts = json.loads(request.content)
        self.posts.append(alerts)
        self.body_bytes.append(len(request.content))
        bad = [alert for alert in alerts if self.refuse(alert)]
        for alert in alerts:
            if alert not in bad:  # a refusal is partial: valid alerts of the batch are stored
                self.stored[self._name(alert)] = alert
        self.look()
        headers = {"Date": formatdate(self._now_secs(), usegmt=True)}
        return httpx.Response(400 if bad else 200, headers=headers, text="bad" if bad else "")

    def look(self) -> None:
        """Notice what fires and what has ended by this server's clock, as its dispatcher would."""
        for name, alert in self.stored.items():
            fires = datetime.fromisoformat(alert["endsAt"]).timestamp() > self._now_secs()
            if fires and name not in self._firing:
                self.pages.append(name)
                self._firing.add(name)
            if not fires and name in self._firing:
                self.resolved.append(name)
                self._firing.remove(name)

    def _now_secs(self) -> float:
        return self._clock.unix_ns() / NS + self.skew_secs

    @staticmethod
    def _name(alert: Payload) -> str:
        labels = alert["labels"]
        return str(labels.get("incident_id", labels["alertname"])) + "/" + labels["severity"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def servers(clock: FakeClock) -> dict[str, FakeAlertmanager]:
    """Three servers: am1, am2, am3."""
    return {name: FakeAlertmanager(clock) for name in ("am1", "am2", "am3")}


@pytest.fixture
def transport(servers: dict[str, FakeAlertmanager]) -> httpx.MockTransport:
    """Reaches each of ``servers`` at http://NAME."""
    return httpx.MockTransport(lambda request: servers[request.url.host].handle(request))
