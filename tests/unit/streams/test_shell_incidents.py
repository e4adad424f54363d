"""Each state of an incident goes out once, restarts or not."""

import asyncio
from collections.abc import Iterable

import msgspec

from stethoscope.schemas.findings import Subject
from stethoscope.schemas.incidents import FindingSummary, Incident
from stethoscope.streams.shell_incidents import IncidentPublisher
from stethoscope.streams.shell_output import Received


def _incident(incident_id: str = "a", *, state: str = "open", raw_events: int = 1) -> Incident:
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
    }
    return msgspec.convert(fields, Incident)


class World:
    """The topic and the sender, as seen from outside."""

    def __init__(self) -> None:
        self.topic: list[tuple[bytes, bytes]] = []
        self.offered: list[Incident] = []
        self.publisher = IncidentPublisher(self, self)

    async def send(self, topic: str, partition: int, key: bytes | None, value: bytes) -> None:
        self.topic.append((key or b"", value))

    async def dead_letter(self, reason: str, detail: str, message: Received, body: bytes) -> None:
        raise AssertionError(reason)

    def offer(self, incidents: Iterable[Incident], watermark_unix_ns: int) -> None:
        self.offered += incidents

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        raise AssertionError

    def clear(self) -> None:
        self.offered.clear()

    def publish(self, *incidents: Incident) -> None:
        for incident in incidents:
            asyncio.run(self.publisher.publish(incident, 10))

    def caught_up(self) -> None:
        asyncio.run(self.publisher.caught_up(10))


OPENED, GREW = _incident(), _incident(raw_events=2)
RESOLVED = _incident(state="resolved", raw_events=2)


def _after_a_restart(*published: Incident) -> World:
    before = World()
    before.publish(*published)
    after = World()
    after.publisher.begin(before.topic)
    return after


def test_changes_go_to_the_topic_and_to_the_sender() -> None:
    world = World()
    world.publish(OPENED, GREW)
    assert world.offered == [OPENED, GREW]
    assert [key for key, _ in world.topic] == [b"a", b"a"]


def test_states_older_than_the_published_one_are_not_offered_again() -> None:
    world = _after_a_restart(OPENED, GREW, RESOLVED)
    world.publish(OPENED, GREW)
    assert world.offered == []
    world.publish(RESOLVED)
    assert world.offered == [RESOLVED]


def test_what_comes_after_the_published_state_is_new() -> None:
    world = _after_a_restart(OPENED)
    world.publish(OPENED, GREW, RESOLVED)
    assert world.offered == [OPENED, GREW, RESOLVED]


def test_an_incident_nobody_published_is_new_at_once() -> None:
    world = _after_a_restart(OPENED)
    other = _incident("b")
    world.publish(other)
    assert world.offered == [other]


def test_a_state_never_met_again_is_replaced_by_what_is_known_now() -> None:
    world = _after_a_restart(RESOLVED)
    changed = _incident(raw_events=7)
    world.publish(changed)
    world.caught_up()
    assert world.offered == [changed]


def test_what_did_not_change_since_the_snapshot_is_offered_if_it_is_open() -> None:
    world = _after_a_restart(OPENED, _incident("b", state="resolved"))
    world.caught_up()
    assert world.offered == [OPENED]
    assert world.topic == []


def test_a_stage_that_went_elsewhere_silences_the_sender() -> None:
    world = World()
    world.publish(OPENED)
    world.publisher.end()
    assert world.offered == []
