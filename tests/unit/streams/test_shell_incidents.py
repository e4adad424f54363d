"""Each state of an incident goes out once, restarts or not."""

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from stethoscope.schemas.control import WISH_PERIOD_SECS, ControlMessage, decode_control
from stethoscope.schemas.findings import Subject
from stethoscope.schemas.incidents import FindingSummary, Incident
from stethoscope.schemas.kafka_options import CONTROL
from stethoscope.streams.shell_incidents import (
    MIN_FIRING_SECS,
    RENEW_WISH_SECS,
    IncidentPublisher,
)
from stethoscope.streams.shell_output import Received


def _incident(
    incident_id: str = "a", *, state: str = "open", raw_events: int = 1, paged: int | None = 5
) -> Incident:
    fields = {
        "incident_id": incident_id,
        "state": state,
        "cause": "gpu_lost",
        "alertname": "GpuLost",
        "severity": "critical",
        "audience": "infra",
        "title": "GPU lost",
        "started_unix_ns": 1,
        "detected_unix_ns": 2,
        "ended_unix_ns": None,
        "root": Subject(node="n"),
        "confidence": 1.0,
        "suspects": [],
        "jobs": [],
        "nodes": ["n"],
        "findings": FindingSummary(by_cause={"gpu_lost": 1}),
        "raw_events": raw_events,
        "recurrence": 0,
        "merged_into": None,
        "actions": [],
        "knowledge": "",
        "paged_unix_ns": paged,
    }
    return msgspec.convert(fields, Incident)


class World:
    """The topic and the sender, as seen from outside; ``now`` is the wall clock."""

    def __init__(self, topic: list[tuple[bytes, bytes]], kept: bytes | None, now: float) -> None:
        self.topic = topic
        self.kept = kept
        self.now = now
        self.offered: list[Incident] = []
        self.wishes: list[ControlMessage] = []
        self.publisher = IncidentPublisher(self, self, lambda: self.now, history_secs=3600.0)
        if kept is not None:
            self.publisher.restore(kept)
        self.publisher.begin(dict(topic).items(), WATERMARK)

    async def send(self, topic: str, partition: int, key: bytes | None, value: bytes) -> None:
        if topic == CONTROL:
            self.wishes.append(decode_control(value))
        else:
            self.topic.append((key or b"", value))

    async def dead_letter(self, reason: str, detail: str, message: Received, body: bytes) -> None:
        raise AssertionError(reason)

    def offer(self, incidents: Iterable[Incident], watermark_unix_ns: int) -> None:
        self.offered += incidents

    def clear(self) -> None:
        self.offered.clear()

    def snapshot(self) -> bytes:
        return b"the sender's"

    def restore(self, state: bytes) -> None:
        assert state == b"the sender's"

    def publish(self, *incidents: Incident) -> "World":
        for incident in incidents:
            asyncio.run(self.publisher.publish(incident, WATERMARK))
        return self

    def keep(self) -> "World":
        """A snapshot reaches Kafka."""
        self.kept = self.publisher.snapshot()
        self.publisher.saved()
        return self

    def wait(self, secs: float) -> "World":
        self.now += secs
        self.publisher.beat(WATERMARK)
        return self

    def killed_and_restarted(self) -> "World":
        return World(self.topic, self.kept, self.now)

    def told(self) -> list[tuple[str, int]]:
        return [(incident.state, incident.raw_events) for incident in self.offered]


def _world() -> World:
    return World([], None, START)


START = 1_700_000_000.0
WATERMARK = round(START * 1e9)
LONG = MIN_FIRING_SECS + 1
OPENED, GREW = _incident(), _incident(raw_events=2)
RESOLVED = _incident(state="resolved", raw_events=2)
FIRES, GROWS, ENDS = ("open", 1), ("open", 2), ("resolved", 2)


def test_changes_go_to_the_topic_and_to_the_sender() -> None:
    world = _world().publish(OPENED, GREW)
    assert world.told() == [FIRES, GROWS]
    assert [key for key, _ in world.topic] == [b"a", b"a"]


def test_an_end_waits_until_it_has_fired_long_enough_to_be_heard() -> None:
    world = _world().publish(OPENED).keep().publish(RESOLVED).wait(LONG - 2)
    assert world.told() == [FIRES]
    assert world.wait(2).told() == [FIRES, ENDS]
    assert world.wait(LONG).told() == [FIRES, ENDS]


def test_an_end_waits_for_a_snapshot_that_knows_it_fires() -> None:
    world = _world().publish(OPENED, RESOLVED).wait(LONG)
    assert world.told() == [FIRES]
    assert world.keep().wait(1).told() == [FIRES, ENDS]


def test_one_that_fires_again_before_its_end_was_told_just_goes_on() -> None:
    world = _world().publish(OPENED).keep().publish(RESOLVED, GREW).wait(LONG)
    assert world.told() == [FIRES, GROWS]


def test_after_the_end_was_told_nothing_more_is() -> None:
    world = _world().publish(OPENED).keep().publish(RESOLVED).wait(LONG)
    world.publish(_incident(state="resolved", raw_events=3)).wait(LONG)
    assert world.told() == [FIRES, ENDS]


def test_what_came_and_went_while_no_worker_ran_still_pages() -> None:
    world = _world().publish(RESOLVED)
    assert world.told() == [GROWS]
    assert world.keep().wait(LONG).told() == [GROWS, ENDS]


def test_one_that_is_first_paged_when_it_ends_fires_before_that() -> None:
    world = _world().publish(_incident(paged=None)).keep().publish(RESOLVED)
    assert world.told() == [FIRES, GROWS]
    assert world.keep().wait(LONG).told() == [FIRES, GROWS, ENDS]


def test_what_was_never_paged_does_not_end_either() -> None:
    ended = _incident(state="resolved", paged=None)
    assert _world().publish(_incident(paged=None), ended).keep().wait(LONG).told() == [FIRES]


def test_what_ended_in_history_pages_nobody() -> None:
    world = _world()
    world.now += 4_000
    assert world.publish(RESOLVED).keep().wait(LONG).told() == []


def test_what_another_incident_took_in_unseen_pages_nobody() -> None:
    taken = replace(GREW, merged_into="b")
    assert _world().publish(taken).keep().wait(LONG).told() == []


def test_older_states_derived_again_are_held() -> None:
    world = _world().publish(OPENED).keep().publish(GREW).killed_and_restarted()
    assert world.told() == [GROWS]  # the published state, before anything is derived
    topic = list(world.topic)
    assert world.publish(OPENED).told() == [GROWS]
    assert world.topic == topic


def test_an_end_told_just_before_the_crash_is_told_again_and_never_a_beginning() -> None:
    before = _world().publish(OPENED).keep().publish(RESOLVED).wait(LONG)
    after = before.killed_and_restarted().publish(OPENED, RESOLVED).wait(0)
    assert after.told() == [ENDS]


def test_one_that_began_and_ended_after_the_snapshot_fires_and_then_ends() -> None:
    after = _world().keep().publish(OPENED, RESOLVED).killed_and_restarted()
    assert after.publish(OPENED).told() == []
    assert after.publish(RESOLVED).keep().wait(LONG).told() == [GROWS, ENDS]


def test_an_end_that_waits_survives_the_crash() -> None:
    before = _world().publish(OPENED, RESOLVED).keep()
    assert before.killed_and_restarted().wait(LONG).told() == [ENDS]


def test_a_state_never_met_again_is_replaced_by_what_is_known_now() -> None:
    after = _world().publish(OPENED).killed_and_restarted()
    changed = _incident(raw_events=7)
    after.publish(changed)
    asyncio.run(after.publisher.caught_up(WATERMARK))
    assert after.told() == [FIRES, ("open", 7)]


def test_a_stage_that_went_elsewhere_silences_the_sender() -> None:
    world = _world().publish(OPENED)
    world.publisher.end()
    assert world.told() == []


def test_the_nodes_of_an_open_incident_are_asked_to_sample_finely_until_it_ends() -> None:
    world = World([], None, now=100.0)
    world.publish(_incident())
    assert [(w.node, w.period_secs) for w in world.wishes] == [("n", WISH_PERIOD_SECS)]
    world.now += RENEW_WISH_SECS - 1.0
    asyncio.run(world.publisher.renew_wishes())
    assert len(world.wishes) == 1
    world.now += 1.0
    asyncio.run(world.publisher.renew_wishes())
    assert len(world.wishes) == 2
    assert world.wishes[1].until_unix_ns > world.wishes[0].until_unix_ns
    world.publish(_incident(state="resolved"))
    world.now += RENEW_WISH_SECS
    asyncio.run(world.publisher.renew_wishes())
    assert len(world.wishes) == 2


def test_after_a_restart_open_incidents_are_wished_for_again() -> None:
    world = World([], None, now=100.0)
    world.publish(_incident())
    again = World(world.topic, None, now=110.0 + RENEW_WISH_SECS)
    asyncio.run(again.publisher.renew_wishes())
    assert [w.node for w in again.wishes] == ["n"]
