"""Units: each message once, in order, to the right partitions."""

import asyncio
from collections.abc import Iterable

import msgspec

from stethoscope.schemas.codec import MSGPACK, encode_message
from stethoscope.schemas.events import ClockEvent, Event, HeartbeatEvent, JobEvent
from stethoscope.schemas.kafka_options import FINDINGS, JOB_VIEW, LOGS, TELEMETRY
from stethoscope.schemas.views import Envelope, HostView
from stethoscope.streams.intake import Reject
from stethoscope.streams.shell_output import Received
from stethoscope.streams.shell_unit import read_events
from stethoscope.streams.shell_units import NodeUnit, view_partition

NS = 1_000_000_000
PARTITIONS = 3


class FakeOutput:
    """Keeps what is sent: (topic, partition, envelope)."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, Envelope]] = []
        self.dead: list[tuple[str, int, bytes]] = []

    async def send(self, topic: str, partition: int, key: bytes | None, value: bytes) -> None:
        self.sent.append((topic, partition, msgspec.msgpack.decode(value, type=Envelope)))

    async def dead_letter(self, reason: str, detail: str, message: Received, body: bytes) -> None:
        self.dead.append((reason, message.offset, body))


class FakeStage:
    """A second a message: one envelope with a view of job j and of job k."""

    def __init__(self) -> None:
        self.pushed: list[Event] = []
        self.cluster: list[Event] = []
        self.frontier: list[int | None] = []
        self.told = 0
        self.rejects: list[Reject] = []
        self.unreadable = False

    def push(self, events: Iterable[Event]) -> None:
        self.pushed += events

    def push_cluster(self, events: Iterable[Event]) -> None:
        self.cluster += events

    def set_frontier(self, jobs_unix_ns: int | None) -> None:
        self.frontier.append(jobs_unix_ns)

    def advance(self) -> list[Envelope]:
        new, self.told = self.pushed[self.told :], len(self.pushed)
        return [
            Envelope(
                source="node/1",
                watermark_unix_ns=event.time_unix_ns,
                views=[
                    HostView(job=job, node="n", second_unix_ns=event.time_unix_ns, metrics={})
                    for job in ("j", "k")
                ],
            )
            for event in new
        ]

    def drain_rejects(self) -> list[Reject]:
        rejects, self.rejects = self.rejects, []
        return rejects

    def snapshot(self) -> bytes:
        return str(self.told).encode()

    def restore(self, state: bytes) -> None:
        if self.unreadable:
            raise msgspec.ValidationError
        self.told = 0


def _unit() -> tuple[NodeUnit, FakeStage, FakeOutput]:
    stage, output = FakeStage(), FakeOutput()
    return NodeUnit(1, PARTITIONS, stage, output, max_skew_secs=60.0), stage, output


def _message(offset: int, *events: Event, topic: str = TELEMETRY) -> Received:
    return Received(
        topic, 1, offset, encode_message(list(events)), 1_000 * NS, "application/msgpack"
    )


def _take(unit: NodeUnit, *messages: Received) -> None:
    """All messages, with nothing more to come from either topic."""
    for message in messages:
        asyncio.run(unit.take(message))
    asyncio.run(unit.drain({(TELEMETRY, 1): 0, (LOGS, 1): 0}, until_unix_ns=2_000 * NS))


def _beat(secs: int) -> Event:
    return HeartbeatEvent(time_unix_ns=secs * NS, node="n")


def _job(secs: int) -> Event:
    return JobEvent(time_unix_ns=secs * NS, job_id="j", state="RUNNING", received_unix_ns=secs * NS)


def test_an_offset_that_was_taken_is_not_taken_again() -> None:
    unit, stage, _ = _unit()
    _take(unit, *(_message(offset, _beat(offset)) for offset in (4, 5, 4, 5, 6)))
    assert [event.time_unix_ns // NS for event in stage.pushed] == [4, 5, 6]
    assert unit.next_offsets == {(TELEMETRY, 1): 7, (LOGS, 1): None}


def test_telemetry_and_logs_are_counted_apart() -> None:
    unit, stage, _ = _unit()
    _take(unit, _message(4, _beat(1)))
    _take(unit, _message(4, _beat(2), topic=LOGS))
    assert len(stage.pushed) == 2


def test_the_watermark_reaches_every_partition_and_each_view_only_its_own() -> None:
    unit, _, output = _unit()
    _take(unit, _message(0, _beat(9)))
    views = {
        (topic, partition): [view.job for view in envelope.views]
        for topic, partition, envelope in output.sent
    }
    assert {envelope.watermark_unix_ns for _, _, envelope in output.sent} == {9 * NS}
    expected: dict[tuple[str, int], list[str]] = {(JOB_VIEW, n): [] for n in range(PARTITIONS)}
    for job in ("j", "k"):
        expected[JOB_VIEW, view_partition(job, PARTITIONS)].append(job)
    assert views == expected | {(FINDINGS, 0): []}


def test_views_go_where_they_always_went() -> None:
    assert [view_partition(job, 4) for job in ("1001", "1002", "train-7")] == [1, 3, 2]


def test_what_cannot_be_read_is_set_aside_and_the_rest_goes_on() -> None:
    unit, stage, output = _unit()
    poison = Received(TELEMETRY, 1, 0, b"\xff{", 0, MSGPACK)
    _take(unit, poison, _message(1, _beat(1)))
    assert output.dead == [("wrong_type", 0, b"\xff{")]
    assert len(stage.pushed) == 1


def test_what_the_stage_refuses_is_set_aside() -> None:
    unit, stage, output = _unit()
    stage.rejects = [Reject("id_conflict", "another body", b"{}")]
    _take(unit, _message(8, _beat(1)))
    assert output.dead == [("id_conflict", 8, b"{}")]


def test_jobs_are_taken_from_where_the_unit_left_off() -> None:
    unit, stage, _ = _unit()
    asyncio.run(unit.take_jobs([(7, [_job(70)]), (8, [_job(80)])]))
    asyncio.run(unit.take_jobs([(7, [_job(70)]), (8, [_job(80)]), (9, [_job(60)])]))
    assert [event.time_unix_ns // NS for event in stage.cluster] == [70, 80, 60]
    assert stage.frontier == [70 * NS, 80 * NS, 80 * NS]


def test_a_job_from_the_future_does_not_open_the_frontier() -> None:
    unit, stage, _ = _unit()
    ahead = JobEvent(
        time_unix_ns=172_800 * NS, job_id="j", state="RUNNING", received_unix_ns=100 * NS
    )
    asyncio.run(unit.take_jobs([(0, [ahead])]))
    assert stage.frontier == [100 * NS]


def test_nothing_is_released_before_the_jobs_topic_was_looked_at() -> None:
    unit, stage, _ = _unit()
    unit.begin()
    assert stage.frontier == [0]


def test_a_silent_jobs_topic_holds_nothing_back() -> None:
    unit, stage, _ = _unit()
    asyncio.run(unit.take_jobs([(0, [_job(70)])]))
    _take(unit, _message(0, _beat(90)))
    assert unit.held_back
    asyncio.run(unit.set_frontier(jobs_silent=True))
    assert not unit.held_back
    assert stage.frontier[-1] is None


def test_a_snapshot_carries_what_it_reflects() -> None:
    unit, _, _ = _unit()
    _take(unit, _message(4, _beat(9)))
    asyncio.run(unit.take_jobs([(2, [_job(70)])]))
    again, _, output = _unit()
    again.restore(unit.snapshot())
    assert again.next_offsets == {(TELEMETRY, 1): 5, (LOGS, 1): None}
    assert (again.jobs_offset, again.jobs_unix_ns) == (3, 70 * NS)
    asyncio.run(again.say_idle())
    assert {e.watermark_unix_ns for _, _, e in output.sent if e.idle} == {9 * NS}


def test_a_state_of_another_release_begins_anew_where_it_was() -> None:
    unit, _, _ = _unit()
    _take(unit, _message(4, _beat(9)))
    asyncio.run(unit.take_jobs([(2, [_job(70)])]))
    again, stage, _ = _unit()
    stage.unreadable = True
    again.restore(unit.snapshot())
    assert again.next_offsets[TELEMETRY, 1] == 5
    assert again.jobs_offset is None  # placement is read from its beginning


def test_events_learn_when_kafka_took_them_unless_they_know() -> None:
    known = HeartbeatEvent(time_unix_ns=5, node="n", received_unix_ns=6)
    message = _message(0, ClockEvent(time_unix_ns=5), known)
    events = asyncio.run(read_events(message, None))
    assert [event.received_unix_ns for event in events] == [1_000 * NS, 6]
