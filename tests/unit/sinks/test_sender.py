"""The sender's promises, against servers that keep leases as Alertmanager does."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stethoscope.schemas.config import Alertmanager, Secret
from stethoscope.schemas.errors import InputError
from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.labels import page_labels
from stethoscope.sinks.clock import NS, FakeClock
from stethoscope.sinks.lane import MAX_BATCH_ALERTS, MAX_BATCH_BYTES
from stethoscope.sinks.sender import Sender

if TYPE_CHECKING:
    from conftest import FakeAlertmanager

T0 = 1_700_000_000 * NS
RESEND_SECS = 60.0
Servers = dict[str, "FakeAlertmanager"]


class Rig:
    """A sender, its servers and the clock they share."""

    def __init__(self, servers: Servers, clock: FakeClock, transport: httpx.MockTransport) -> None:
        self.servers, self.clock, self._transport = servers, clock, transport
        self.sender = self.make(["am1"])

    def make(self, names: list[str], **options: Any) -> Sender:
        config = Alertmanager(urls=[f"http://{n}" for n in names], resend_secs=RESEND_SECS)
        self.sender = Sender(
            config,
            rng=random.Random(7),  # noqa: S311 - jitter, no secret
            clock=self.clock,
            transport=self._transport,
            **options,
        )
        return self.sender

    @property
    def am(self) -> "FakeAlertmanager":
        return self.servers["am1"]

    def offer(self, *incidents: Incident, watermark_unix_ns: int | None = None) -> None:
        now_unix_ns = self.clock.unix_ns()
        self.sender.offer(incidents, watermark_unix_ns or now_unix_ns)

    def flush(self) -> bool:
        return asyncio.run(self.sender.flush())

    def pass_time(self, secs: float, tick_secs: float = 1.0) -> None:
        """Let time pass; the sender has its turn at each tick, the servers look before it."""

        async def ticks() -> None:
            for _ in range(round(secs / tick_secs)):
                self.clock.advance(tick_secs)
                for server in self.servers.values():
                    server.look()
                await self.sender.flush()

        asyncio.run(ticks())


@pytest.fixture
def rig(servers: Servers, clock: FakeClock, transport: httpx.MockTransport) -> Rig:
    return Rig(servers, clock, transport)


@pytest.fixture
def paged(make_incident: Callable[..., Incident]) -> Callable[..., Incident]:
    """An incident that was paged, labels frozen."""

    def make(incident_id: str = "inc1", **changes: Any) -> Incident:
        changes = {"incident_id": incident_id, "paged_unix_ns": T0, **changes}
        return make_incident(page_labels=page_labels(make_incident(**changes)), **changes)

    return make


Paged = Callable[..., Incident]


def test_a_page_goes_out_with_its_labels_start_and_a_lease_of_four_intervals(
    rig: Rig, paged: Paged
) -> None:
    rig.offer(paged())
    assert rig.flush()
    [[alert]] = rig.am.posts
    assert alert["labels"] == page_labels(paged())
    assert alert["startsAt"] == "2023-11-14T22:13:20Z"
    assert alert["endsAt"] == "2023-11-14T22:17:20Z"  # 240 s later
    assert alert["annotations"]["summary"] == "GPU fell off the bus"


@pytest.mark.parametrize(
    "changes",
    [
        {"paged_unix_ns": None},
        {"severity": "info"},
        {"state": "resolved", "paged_unix_ns": None, "ended_unix_ns": T0},
    ],
)
def test_what_is_no_page_stays_here(rig: Rig, paged: Paged, changes: dict[str, Any]) -> None:
    rig.offer(paged(**changes))
    assert rig.flush()
    assert rig.am.posts == []


def test_a_late_tick_never_resolves(rig: Rig, paged: Paged) -> None:
    rig.offer(paged())
    rig.flush()
    for _ in range(60):  # an hour of ticks that come a second late
        rig.pass_time(RESEND_SECS + 1, tick_secs=RESEND_SECS + 1)
    assert rig.am.pages == ["inc1/critical"]
    assert rig.am.resolved == []
    assert len(rig.am.posts) == 61


def test_alerts_that_began_apart_are_sent_again_together(rig: Rig, paged: Paged) -> None:
    for n in range(5):
        rig.offer(paged(f"inc{n}"))
        rig.flush()
        rig.pass_time(2)
    posts = len(rig.am.posts)
    rig.pass_time(RESEND_SECS)
    assert [len(post) for post in rig.am.posts[posts:]] == [5]


def test_three_failed_resends_in_a_row_do_not_resolve(rig: Rig, paged: Paged) -> None:
    rig.offer(paged())
    rig.flush()
    rig.am.down = True
    rig.pass_time(3 * RESEND_SECS)
    rig.am.down = False
    rig.pass_time(RESEND_SECS)
    assert rig.am.resolved == []
    rig.am.look()
    assert rig.am.pages == ["inc1/critical"]


def test_the_same_incident_again_and_again_is_one_alert(rig: Rig, paged: Paged) -> None:
    for second in range(50):
        rig.offer(paged(raw_events=second, started_unix_ns=T0 - second))
        rig.flush()
        rig.clock.advance(1)
    assert {(a["startsAt"], str(a["labels"])) for [a] in rig.am.posts} == {
        ("2023-11-14T22:13:20Z", str(page_labels(paged())))
    }
    assert len(rig.am.posts) == 4  # at once, then news at most each quarter of an interval


def test_changed_labels_are_ignored_once_frozen(rig: Rig, paged: Paged) -> None:
    rig.offer(paged())
    rig.offer(paged(jobs=["4711"]))
    rig.flush()
    [[alert]] = rig.am.posts
    assert "job_id" not in alert["labels"]


def test_a_rise_to_critical_pages_again_and_resolves_the_warning(rig: Rig, paged: Paged) -> None:
    rig.offer(paged(severity="warning"))
    rig.flush()
    rig.clock.advance(30)
    rig.offer(paged(severity="critical", started_unix_ns=T0 + 7 * NS))
    rig.flush()
    rig.offer(paged(severity="warning"))  # an older word of it, read again
    rig.pass_time(120)
    assert rig.am.pages == ["inc1/warning", "inc1/critical"]
    assert rig.am.resolved == ["inc1/warning"]
    assert rig.am.stored["inc1/critical"]["startsAt"] == "2023-11-14T22:13:20Z"


def test_an_end_is_sent_with_the_same_labels_for_fifteen_minutes(rig: Rig, paged: Paged) -> None:
    rig.offer(paged())
    rig.flush()
    rig.clock.advance(100)
    rig.offer(paged(state="resolved", ended_unix_ns=T0 + 70 * NS, jobs=["1"]))
    rig.flush()
    rig.pass_time(3600, tick_secs=10)
    ends = [alert for [alert] in rig.am.posts if alert["endsAt"] == "2023-11-14T22:14:30Z"]
    assert len(ends) == 1 + 15
    assert all(alert["labels"] == page_labels(paged()) for alert in ends)
    assert rig.am.resolved == ["inc1/critical"]
    assert rig.sender.active() == 0


def test_merged_into_another_is_resolved(rig: Rig, paged: Paged) -> None:
    rig.offer(paged())
    rig.flush()
    rig.clock.advance(5)
    rig.offer(paged(merged_into="inc2"))
    rig.flush()
    rig.am.look()
    assert rig.am.resolved == ["inc1/critical"]


def test_an_end_before_its_start_is_sent_as_an_end_at_the_start(rig: Rig, paged: Paged) -> None:
    rig.offer(paged(state="resolved", ended_unix_ns=T0 - 5 * NS))
    rig.flush()
    [[alert]] = rig.am.posts
    assert alert["endsAt"] == alert["startsAt"]


def test_history_read_twice_does_not_page_twice(rig: Rig, paged: Paged) -> None:
    ended = paged(state="resolved", ended_unix_ns=T0 + NS)
    rig.offer(paged())
    rig.flush()
    rig.clock.advance(5)
    rig.offer(ended)
    rig.flush()
    rig.pass_time(1800, tick_secs=30)  # long after the end is no longer sent
    rig.offer(paged(), watermark_unix_ns=T0 + NS)
    rig.flush()
    rig.offer(ended)
    rig.flush()
    assert rig.am.pages == ["inc1/critical"]


def test_old_history_rebuilds_state_and_pages_nobody(rig: Rig, paged: Paged) -> None:
    rig.clock.advance(5 * 3600)
    rig.offer(paged("over"), paged("still"), watermark_unix_ns=T0)
    rig.offer(paged("over", state="resolved", ended_unix_ns=T0), watermark_unix_ns=T0 + NS)
    rig.flush()
    assert rig.am.posts == []
    assert rig.sender.held() == 1
    rig.offer(watermark_unix_ns=rig.clock.unix_ns() - 60 * NS)  # the stream has caught up
    rig.flush()
    [[alert]] = rig.am.posts
    assert alert["labels"]["incident_id"] == "still"
    assert alert["startsAt"] == "2023-11-14T22:13:20Z"
    assert rig.sender.held() == 0


def test_old_history_may_end_what_fires(rig: Rig, paged: Paged) -> None:
    rig.offer(paged())
    rig.flush()
    rig.clock.advance(2 * 3600)
    rig.offer(paged(state="resolved", ended_unix_ns=T0 + NS), watermark_unix_ns=T0 + NS)
    assert rig.sender.active() == 0


def test_a_start_in_the_future_is_now(rig: Rig, paged: Paged) -> None:
    rig.offer(paged(started_unix_ns=T0 + 999 * NS))
    rig.flush()
    rig.pass_time(2 * RESEND_SECS)
    assert [a["startsAt"] for [a] in rig.am.posts] == ["2023-11-14T22:13:20Z"] * 3


def test_one_bad_alert_of_a_hundred_is_quarantined_alone(
    rig: Rig, paged: Paged, caplog: pytest.LogCaptureFixture
) -> None:
    rig.am.refuse = lambda alert: alert["labels"]["incident_id"] == "inc42"
    rig.offer(*(paged(f"inc{n}") for n in range(100)))
    with caplog.at_level(logging.ERROR):
        assert rig.flush()
    assert len(rig.am.stored) == 99
    [status] = rig.sender.status()
    assert (status.quarantined_total, status.failures_total, status.up) == (1, 0, True)
    assert [getattr(record, "incident_id", None) for record in caplog.records] == ["inc42"]
    posts = len(rig.am.posts)
    rig.pass_time(RESEND_SECS, tick_secs=RESEND_SECS)
    assert [len(post) for post in rig.am.posts[posts:]] == [99]  # the others go on, in one batch


def test_a_quarantined_alert_is_tried_again_later(rig: Rig, paged: Paged) -> None:
    rig.am.refuse = lambda alert: True
    rig.offer(paged())
    rig.flush()
    rig.am.refuse = lambda alert: False
    rig.pass_time(RESEND_SECS)
    assert rig.am.stored == {}
    rig.pass_time(10 * RESEND_SECS)
    assert list(rig.am.stored) == ["inc1/critical"]


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_refusal_that_blames_no_alert_is_retried_not_quarantined(
    rig: Rig, paged: Paged, status: int
) -> None:
    rig.am.answers = [httpx.Response(status)]
    rig.offer(paged())
    assert not rig.flush()
    rig.pass_time(2)
    [lane] = rig.sender.status()
    assert (lane.quarantined_total, lane.failures_total, lane.up) == (0, 1, True)
    assert list(rig.am.stored) == ["inc1/critical"]


def test_429_waits_as_long_as_it_was_asked_to(rig: Rig, paged: Paged) -> None:
    rig.am.answers = [httpx.Response(429, headers={"Retry-After": "30"})]
    rig.offer(paged())
    assert not rig.flush()
    rig.pass_time(29)
    assert rig.am.posts == []
    rig.pass_time(1)
    assert len(rig.am.posts) == 1


def test_an_endless_retry_after_is_cut_so_that_leases_live(rig: Rig, paged: Paged) -> None:
    rig.offer(paged())
    rig.flush()
    rig.am.answers = [httpx.Response(503, headers={"Retry-After": "86400"})]
    rig.pass_time(4 * RESEND_SECS)
    assert rig.am.resolved == []


def test_retries_back_off_with_jitter_from_the_given_rng(rig: Rig, paged: Paged) -> None:
    rig.am.down = True
    rig.offer(paged())
    waits = []

    async def rounds() -> None:
        [lane] = rig.sender._lanes
        for _ in range(8):
            waits.append(await lane.round())
            rig.clock.advance(waits[-1])

    asyncio.run(rounds())
    for attempt, wait in enumerate(waits):
        full = min(RESEND_SECS, 2.0**attempt)
        assert full / 2 <= wait <= full
    assert len({wait / min(RESEND_SECS, 2.0**n) for n, wait in enumerate(waits)}) == 8


@pytest.mark.parametrize(
    "failure",
    [
        httpx.Response(500),
        httpx.Response(502, text="<html>"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("gone"),
    ],
)
def test_any_outage_is_retried(rig: Rig, paged: Paged, failure: httpx.Response | Exception) -> None:
    rig.am.answers = [failure]
    rig.offer(paged())
    assert not rig.flush()
    rig.pass_time(2)
    assert rig.am.pages == ["inc1/critical"]


def test_one_of_three_down_delays_no_other(rig: Rig, paged: Paged) -> None:
    rig.make(["am1", "am2", "am3"])
    rig.servers["am2"].down = True
    rig.offer(*(paged(f"inc{n}") for n in range(1000)))
    assert not rig.flush()
    assert [len(server.stored) for server in rig.servers.values()] == [1000, 0, 1000]
    rig.pass_time(600, tick_secs=10)
    rig.offer(paged("late"))
    rig.flush()
    assert len(rig.servers["am1"].pages) == len(rig.servers["am3"].pages) == 1001
    assert rig.servers["am1"].resolved == []
    rig.servers["am2"].down = False
    rig.pass_time(RESEND_SECS)
    assert len(rig.servers["am2"].stored) == 1001
    assert [status.up for status in rig.sender.status()] == [True, True, True]


def test_batches_keep_both_bounds(rig: Rig, paged: Paged) -> None:
    small = [paged(f"small{n}") for n in range(600)]
    large = [paged(f"large{n}", title="é" * 4000, actions=["é" * 4000]) for n in range(200)]
    rig.offer(*small, *large)
    assert rig.flush()
    assert len(rig.am.stored) == 800
    assert max(len(post) for post in rig.am.posts) == MAX_BATCH_ALERTS
    assert max(rig.am.body_bytes) <= MAX_BATCH_BYTES
    assert any(len(post) < MAX_BATCH_ALERTS / 2 for post in rig.am.posts[:-1])


@pytest.mark.parametrize("skew_secs", [7200.0, -7200.0])
def test_a_skewed_clock_is_reported_and_the_page_arrives(
    rig: Rig, paged: Paged, skew_secs: float, caplog: pytest.LogCaptureFixture
) -> None:
    rig.am.skew_secs = skew_secs
    rig.offer(paged())
    rig.flush()
    rig.flush()
    rig.pass_time(600)
    assert rig.am.pages == ["inc1/critical"]
    assert rig.am.resolved == []
    [status] = rig.sender.status()
    assert status.skewed
    assert status.skew_secs == pytest.approx(skew_secs, abs=1.0)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    rig.make([])  # the sender dies; the lease is one by the server's clock
    rig.pass_time(4 * RESEND_SECS + 2)
    assert rig.am.resolved == ["inc1/critical"]


def test_many_alerts_arrive_on_a_skewed_clock(rig: Rig, paged: Paged) -> None:
    rig.am.skew_secs = 7200.0
    rig.offer(*(paged(f"inc{n}") for n in range(2 * MAX_BATCH_ALERTS)))
    rig.pass_time(1)
    rig.pass_time(1)
    assert len(rig.am.pages) == 2 * MAX_BATCH_ALERTS


@pytest.mark.parametrize("skew_secs", [7200.0, -7200.0])
def test_an_end_arrives_on_a_skewed_clock(rig: Rig, paged: Paged, skew_secs: float) -> None:
    rig.am.skew_secs = skew_secs
    rig.offer(paged())
    rig.pass_time(30)
    rig.offer(paged(state="resolved", ended_unix_ns=T0 + 20 * NS))
    rig.pass_time(2)
    assert rig.am.resolved == ["inc1/critical"]


def test_a_small_skew_is_left_alone(rig: Rig, paged: Paged) -> None:
    rig.am.skew_secs = RESEND_SECS - 1
    rig.offer(paged())
    rig.flush()
    [status] = rig.sender.status()
    assert not status.skewed
    assert len(rig.am.posts) == 1


def test_a_clock_that_is_put_right_ends_the_correction(rig: Rig, paged: Paged) -> None:
    rig.am.skew_secs = 7200.0
    rig.offer(paged())
    rig.flush()
    assert rig.sender.status()[0].skewed
    rig.clock.step_wall(7198.5)
    rig.am.skew_secs = 1.5
    rig.pass_time(2 * RESEND_SECS)
    assert not rig.sender.status()[0].skewed
    assert rig.am.resolved == []


def test_a_restart_keeps_starts_and_ends(rig: Rig, paged: Paged) -> None:
    rig.offer(paged("fires"), paged("ends"))
    rig.flush()
    rig.clock.advance(50)
    rig.offer(paged("ends", state="resolved", ended_unix_ns=T0 + 40 * NS))
    state = rig.sender.snapshot()
    rig.clock.advance(10)
    rig.make(["am1"]).restore(state)
    rig.offer(paged("fires", started_unix_ns=T0 + 60 * NS))  # offered anew by the cluster stage
    posts = len(rig.am.posts)
    rig.flush()
    [batch] = rig.am.posts[posts:]
    assert {a["labels"]["incident_id"]: (a["startsAt"], a["endsAt"]) for a in batch} == {
        "fires": ("2023-11-14T22:13:20Z", "2023-11-14T22:18:20Z"),
        "ends": ("2023-11-14T22:13:20Z", "2023-11-14T22:14:00Z"),
    }
    assert rig.am.pages == ["fires/critical", "ends/critical"]
    assert rig.am.resolved == ["ends/critical"]


@pytest.mark.parametrize("state", [b"", b"\xc1", b"\x93\x01\x02\x03", b"not a snapshot"])
def test_a_broken_snapshot_is_an_error_and_changes_nothing(
    rig: Rig, paged: Paged, state: bytes
) -> None:
    rig.offer(paged())
    with pytest.raises(InputError, match="start without it"):
        rig.sender.restore(state)
    assert rig.sender.active() == 1


def test_who_lost_the_cluster_stage_says_nothing_more(rig: Rig, paged: Paged) -> None:
    former = rig.make(["am1"], watchdog_cluster="c1")
    rig.offer(paged())
    rig.flush()
    state = former.snapshot()
    former.clear()
    owner = rig.make(["am1"], watchdog_cluster="c1")
    owner.restore(state)
    rig.offer(paged(state="resolved", ended_unix_ns=T0 + NS))
    rig.pass_time(2)
    posts = len(rig.am.posts)
    rig.sender = former
    rig.pass_time(2 * RESEND_SECS)
    assert len(rig.am.posts) == posts
    assert sorted(rig.am.pages) == ["Watchdog/none", "inc1/critical"]
    rig.offer(paged("inc2"))  # the stage comes back
    rig.flush()
    assert rig.am.pages[-1] == "inc2/critical"
    assert former.active() == 2


def test_the_watchdog_always_fires_and_keeps_its_start(rig: Rig) -> None:
    rig.make(["am1"], watchdog_cluster="c1")
    rig.flush()
    assert rig.am.pages == []  # nobody is watched yet
    rig.offer()
    rig.pass_time(600)
    state = rig.sender.snapshot()
    rig.make(["am1"], watchdog_cluster="c1").restore(state)
    rig.pass_time(600)
    assert rig.am.pages == ["Watchdog/none"]
    assert rig.am.resolved == []
    [alert] = rig.am.stored.values()
    assert alert["labels"]["cluster"] == "c1"
    assert alert["startsAt"] == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(("cluster", "left"), [("c2", ["c2"]), (None, [])])
def test_a_watchdog_of_another_configuration_ends(
    rig: Rig, cluster: str | None, left: list[str]
) -> None:
    rig.make(["am1"], watchdog_cluster="c1")
    rig.offer()
    state = rig.sender.snapshot()
    sender = rig.make(["am1"], watchdog_cluster=cluster)
    sender.restore(state)
    firing = [alert.labels["cluster"] for alert in sender._active if alert.firing]
    assert firing == left


def test_a_secret_that_comes_late_is_waited_for(
    rig: Rig, paged: Paged, monkeypatch: pytest.MonkeyPatch, transport: httpx.MockTransport
) -> None:
    config = Alertmanager(urls=["http://am1"], bearer_token=Secret(env="AM_TOKEN_OF_THIS_TEST"))
    rng = random.Random(7)  # noqa: S311 - jitter, no secret
    rig.sender = Sender(config, rng=rng, clock=rig.clock, transport=transport)
    rig.offer(paged())
    assert not rig.flush()
    monkeypatch.setenv("AM_TOKEN_OF_THIS_TEST", "t")
    rig.pass_time(2)
    assert rig.am.pages == ["inc1/critical"]


def test_run_sends_until_cancelled(rig: Rig, paged: Paged) -> None:
    rig.make(["am1", "am2"])
    rig.servers["am2"].down = True

    async def a_while() -> None:
        task = asyncio.create_task(rig.sender.run())
        rig.offer(paged())
        while len(rig.am.posts) < 5:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await rig.sender.close()

    asyncio.run(a_while())
    assert rig.am.pages == ["inc1/critical"]
    assert rig.am.resolved == []


def test_without_a_server_nothing_is_sent_and_nothing_breaks(rig: Rig, paged: Paged) -> None:
    rig.make([])
    rig.offer(paged())
    assert rig.flush()
    asyncio.run(rig.sender.run())
    assert rig.sender.status() == []
