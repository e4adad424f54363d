"""Bounds of the active set, and what it forgets. Its behaviour is tested through the sender."""

from collections.abc import Callable

import pytest

from stethoscope.schemas.config import Links
from stethoscope.schemas.incidents import Incident
from stethoscope.sinks import active
from stethoscope.sinks.active import ActiveSet
from stethoscope.sinks.clock import NS

MakeIncident = Callable[..., Incident]
T0 = 1_700_000_000 * NS


@pytest.fixture
def alerts() -> ActiveSet:
    return ActiveSet(Links(), replay_age_secs=3600.0)


def ids(alerts: ActiveSet) -> list[str]:
    return [alert.incident_id for alert in alerts]


def test_what_ended_is_forgotten_when_history_can_no_longer_bring_it_back(
    alerts: ActiveSet, make_incident: MakeIncident
) -> None:
    alerts.offer([make_incident(paged_unix_ns=T0)], T0, T0)
    alerts.offer([make_incident(paged_unix_ns=T0, state="resolved")], T0, T0)
    alerts.offer([], T0 + 3600 * NS, T0 + 3600 * NS)
    assert len(alerts) == 1
    assert list(alerts.sendable(T0 + 901 * NS)) == []
    alerts.offer([], T0 + 3601 * NS, T0 + 3601 * NS)
    assert len(alerts) == 0


def test_each_bound_drops_the_oldest_and_counts(
    alerts: ActiveSet, make_incident: MakeIncident, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "MAX_OPEN", 3)
    monkeypatch.setattr(active, "MAX_ENDED", 2)
    monkeypatch.setattr(active, "MAX_HELD", 2)
    firing = [make_incident(incident_id=f"f{n}", paged_unix_ns=T0) for n in range(5)]
    alerts.offer(firing, T0, T0)
    assert ids(alerts) == ["f2", "f3", "f4"]
    for n in range(4):
        ended = make_incident(incident_id=f"e{n}", paged_unix_ns=T0, state="resolved")
        alerts.offer([ended], T0, T0 + n)
    assert ids(alerts) == ["f2", "f3", "f4", "e2", "e3"]
    old = [make_incident(incident_id=f"h{n}", paged_unix_ns=T0) for n in range(5)]
    alerts.offer(old, T0 - 7200 * NS, T0)
    assert alerts.held == 2
    assert alerts.dropped_total == 2 + 2 + 3


def test_a_snapshot_is_the_whole_set(alerts: ActiveSet, make_incident: MakeIncident) -> None:
    alerts.set_watchdog("c1", T0)
    warning = make_incident(paged_unix_ns=T0, severity="warning")
    alerts.offer([warning], T0, T0)
    alerts.offer([make_incident(paged_unix_ns=T0)], T0, T0 + NS)  # a rise: two identities
    restored = ActiveSet(Links(), replay_age_secs=3600.0)
    restored.restore(alerts.snapshot())
    assert list(restored) == list(alerts)
    assert restored.snapshot() == alerts.snapshot()
    for each in (alerts, restored):  # the identity that speaks for the incident is the critical one
        each.offer([make_incident(paged_unix_ns=T0, state="resolved")], T0, T0 + 2 * NS)
    assert list(restored) == list(alerts)
    assert [alert.labels["alertname"] for alert in restored if alert.firing] == ["Watchdog"]


def test_a_watchdog_switched_off_and_on_fires(alerts: ActiveSet) -> None:
    for cluster in ("c1", None, "c1"):
        alerts.set_watchdog(cluster, T0)
    assert [alert.firing for alert in alerts] == [True]
