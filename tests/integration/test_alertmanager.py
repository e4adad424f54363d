"""Client and sender against a real Alertmanager, whose webhook the tests read."""

import asyncio
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from stethoscope.schemas.config import Alertmanager
from stethoscope.schemas.errors import ServiceRefused
from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.labels import page_labels
from stethoscope.sinks.alertmanager import AlertmanagerClient
from stethoscope.sinks.alertmanager_types import (
    Alert,
    GettableAlert,
    Matcher,
    Silence,
    to_datetime,
)
from stethoscope.sinks.clock import NS, SystemClock
from stethoscope.sinks.sender import Sender

if TYPE_CHECKING:
    from conftest import RunningAlertmanager

pytestmark = pytest.mark.integration
DEPLOYED = Path(__file__).parents[2] / "deploy" / "alertmanager.yml"
RESEND_SECS = 60.0
Paged = Callable[..., Incident]
Payloads = list[dict[str, Any]]


class SkippingClock(SystemClock):
    """The machine's wall clock, and a monotonic one that can be put forward."""

    skipped_secs = 0.0

    def monotonic_secs(self) -> float:
        return super().monotonic_secs() + self.skipped_secs


class Rig:
    """A sender towards the running server; each call sends what is due, or all of it anew."""

    def __init__(self, url: str, resend_secs: float = RESEND_SECS) -> None:
        self._config = Alertmanager(urls=[url], resend_secs=resend_secs)
        self.clock = SkippingClock()

    def send(self, *rounds: list[Incident]) -> None:
        """Offer and send each list of incidents, a re-send interval apart."""

        async def all_rounds() -> None:
            sender = Sender(self._config, rng=random.Random(1), clock=self.clock)  # noqa: S311
            for incidents in rounds:
                sender.offer(incidents, self.clock.unix_ns())
                assert await sender.flush()
                self.clock.skipped_secs += RESEND_SECS
            await sender.close()

        asyncio.run(all_rounds())


@pytest.fixture
def rig(alertmanager: "RunningAlertmanager") -> Rig:
    return Rig(alertmanager.url)


@pytest.fixture
def paged(request: pytest.FixtureRequest, make_incident: Callable[..., Incident]) -> Paged:
    """An incident paged ten minutes ago, with an id of this test's own."""
    started_unix_ns = (SystemClock().unix_ns() // NS - 600) * NS

    def make(**changes: Any) -> Incident:
        changes = {
            "incident_id": request.node.name,
            "started_unix_ns": started_unix_ns,
            "detected_unix_ns": started_unix_ns,
            "paged_unix_ns": started_unix_ns,
            **changes,
        }
        return make_incident(page_labels=page_labels(make_incident(**changes)), **changes)

    return make


def of(incident: Incident, status: str) -> Callable[[Payloads], bool]:
    """Whether the webhook was told that this incident's alert has that status."""
    return lambda payloads: status in statuses(incident, payloads)


def statuses(incident: Incident, payloads: Payloads) -> list[str]:
    """What the webhook was told of this incident, in order."""
    return [
        alert["status"]
        for payload in payloads
        for alert in payload["alerts"]
        if alert["labels"].get("incident_id") == incident.incident_id
    ]


async def stored(url: str, incident: Incident) -> list[GettableAlert]:
    """The incident's alerts as the server holds them."""
    async with AlertmanagerClient(url) as client:
        return await client.get_alerts([f'incident_id="{incident.incident_id}"'])


def test_firing_and_resolved_reach_the_webhook(
    alertmanager: "RunningAlertmanager", rig: Rig, paged: Paged
) -> None:
    incident = paged(jobs=["4711"])
    rig.send([incident])
    payloads = alertmanager.wait_for(of(incident, "firing"))
    [alert] = [
        alert
        for payload in payloads
        for alert in payload["alerts"]
        if alert["labels"].get("incident_id") == incident.incident_id
    ]
    assert alert["labels"] == incident.page_labels
    assert alert["annotations"]["summary"] == incident.title
    assert "job" in alert["annotations"]["description"].lower()
    ended_unix_ns = incident.started_unix_ns + 300 * NS
    rig.send([paged(jobs=["4711"], state="resolved", ended_unix_ns=ended_unix_ns)])
    payloads = alertmanager.wait_for(of(incident, "resolved"))
    assert statuses(incident, payloads) == ["firing", "resolved"]


def test_sent_five_times_is_one_notification(
    alertmanager: "RunningAlertmanager", rig: Rig, paged: Paged
) -> None:
    incident = paged()
    resolved = paged(state="resolved", ended_unix_ns=incident.started_unix_ns + NS)
    rig.send(*([paged(raw_events=n)] for n in range(5)))
    alertmanager.wait_for(of(incident, "firing"))
    rig.send(*([resolved] for _ in range(3)))
    payloads = alertmanager.wait_for(of(incident, "resolved"))
    assert statuses(incident, payloads) == ["firing", "resolved"]


def test_a_rise_to_critical_pages_again(
    alertmanager: "RunningAlertmanager", rig: Rig, paged: Paged
) -> None:
    warning, critical = paged(severity="warning"), paged(severity="critical")
    rig.send([warning], [critical])
    alertmanager.wait_for(
        lambda payloads: (
            {"warning", "critical"}
            <= {
                alert["labels"]["severity"]
                for payload in payloads
                for alert in payload["alerts"]
                if alert["labels"].get("incident_id") == warning.incident_id
            }
        )
    )
    alerts = asyncio.run(stored(alertmanager.url, warning))
    firing = [alert for alert in alerts if alert.ends_at > to_datetime(rig.clock.unix_ns())]
    assert [alert.labels["severity"] for alert in firing] == ["critical"]


def test_a_killed_alertmanager_is_told_again_with_the_original_start(
    alertmanager: "RunningAlertmanager", paged: Paged
) -> None:
    incident = paged()
    clock = SkippingClock()
    config = Alertmanager(urls=[alertmanager.url], resend_secs=RESEND_SECS)

    async def across_the_crash() -> None:
        sender = Sender(config, rng=random.Random(1), clock=clock)  # noqa: S311
        sender.offer([incident], clock.unix_ns())
        assert await sender.flush()
        alertmanager.stop(signal.SIGKILL)
        clock.skipped_secs += RESEND_SECS
        assert not await sender.flush()
        [status] = sender.status()
        assert (status.up, status.pending) == (False, 1)
        alertmanager.start()
        assert await stored(alertmanager.url, incident) == []
        clock.skipped_secs += RESEND_SECS
        assert await sender.flush()
        await sender.close()

    # The blocking calls inside are meant: nothing else runs on this loop.
    asyncio.run(across_the_crash())
    [alert] = asyncio.run(stored(alertmanager.url, incident))
    assert alert.starts_at == to_datetime(incident.started_unix_ns)
    assert alert.labels == incident.page_labels


def test_a_sender_restored_from_a_snapshot_pages_nothing_twice(
    alertmanager: "RunningAlertmanager", paged: Paged
) -> None:
    incident = paged()
    clock = SkippingClock()
    config = Alertmanager(urls=[alertmanager.url], resend_secs=RESEND_SECS)

    async def life(state: bytes | None, *incidents: Incident) -> bytes:
        sender = Sender(config, rng=random.Random(1), clock=clock)  # noqa: S311
        if state is not None:
            sender.restore(state)
        sender.offer(incidents, clock.unix_ns())
        assert await sender.flush()
        await sender.close()
        return sender.snapshot()

    state = asyncio.run(life(None, incident))
    alertmanager.wait_for(of(incident, "firing"))
    state = asyncio.run(life(state, paged(started_unix_ns=clock.unix_ns())))
    [alert] = asyncio.run(stored(alertmanager.url, incident))
    assert alert.starts_at == to_datetime(incident.started_unix_ns)
    asyncio.run(life(state, paged(state="resolved", ended_unix_ns=clock.unix_ns())))
    payloads = alertmanager.wait_for(of(incident, "resolved"))
    assert statuses(incident, payloads) == ["firing", "resolved"]


def test_a_dead_sender_lets_its_lease_run_out(
    alertmanager: "RunningAlertmanager", paged: Paged
) -> None:
    Rig(alertmanager.url, resend_secs=0.5).send([paged()])
    alertmanager.wait_for(of(paged(), "firing"))
    alertmanager.wait_for(of(paged(), "resolved"))


def test_a_bad_label_loses_no_other_alert_of_its_batch(alertmanager: "RunningAlertmanager") -> None:
    good = Alert(labels={"alertname": "Good", "incident_id": "batch"})
    bad = Alert(labels={"alertname": "Bad", "incident_id": "batch", "foo.bar": "x"})

    async def post() -> list[GettableAlert]:
        async with AlertmanagerClient(alertmanager.url) as client:
            with pytest.raises(ServiceRefused) as refusal:
                await client.post_alerts([good, bad])
            assert refusal.value.status == 400
            assert "foo.bar" in refusal.value.body
            return await client.get_alerts(['incident_id="batch"'])

    assert [alert.labels["alertname"] for alert in asyncio.run(post())] == ["Good"]


def test_status_receivers_and_silences(alertmanager: "RunningAlertmanager") -> None:
    now = to_datetime(SystemClock().unix_ns())
    silence = Silence(
        matchers=[Matcher(name="node", value="node9.", is_regex=True)],
        starts_at=now,
        ends_at=now + timedelta(hours=1),
        created_by="a test",
        comment="maintenance",
    )

    async def everything() -> None:
        async with AlertmanagerClient(alertmanager.url) as client:
            status = await client.status()
            assert status.version_info.version
            assert status.cluster.status == "disabled"
            assert [receiver.name for receiver in await client.receivers()] == ["test"]
            silence_id = await client.create_silence(silence)
            [found] = [s for s in await client.silences() if s.id == silence_id]
            assert (found.matchers, found.status.state) == (silence.matchers, "active")
            await client.delete_silence(silence_id)
            [found] = [s for s in await client.silences() if s.id == silence_id]
            assert found.status.state == "expired"
            with pytest.raises(ServiceRefused, match="matcher"):
                await client.create_silence(replace(silence, matchers=[]))

    asyncio.run(everything())


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=Watchdog severity=none audience=infra", "dead-mans-switch"),
        ("alertname=GpuLost severity=critical audience=infra", "pager"),
        ("alertname=StorageSlow severity=warning audience=infra", "chat"),
        ("alertname=LossNan severity=critical audience=job", "job-owners"),
    ],
)
def test_the_shipped_configuration_is_valid_and_routes(labels: str, receiver: str) -> None:
    amtool = shutil.which("amtool")
    if amtool is None:
        pytest.fail("amtool is missing: run `make system`", False)
    subprocess.run([amtool, "check-config", DEPLOYED], check=True, capture_output=True)
    routed = subprocess.run(
        [amtool, "config", "routes", "test", f"--config.file={DEPLOYED}", *labels.split()],
        check=True,
        capture_output=True,
        text=True,
    )
    assert routed.stdout.strip() == receiver
