"""The loop on a fake clock: periods, failures, backoff, heartbeats, positions."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from stethoscope.agents.activity import BUSY_HOLD_SECS
from stethoscope.agents.calls import Call, Result, perform
from stethoscope.agents.clock import FakeClock, Now
from stethoscope.agents.loop import Loop, Vitals
from stethoscope.agents.outbox import Batch, Outbox
from stethoscope.agents.reader import Context, Counters, Reader
from stethoscope.agents.runner import Runner
from stethoscope.agents.schedule import Task, first_base_ns
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.agent_config import Loop as LoopConfig
from stethoscope.schemas.control import ControlMessage
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Event, GpuEvent, HeartbeatEvent, LogEvent

CONTEXT = Context(cluster="c1", node="node01", boot_id="b1")
CONFIG = AgentConfig()


class FakeReader:
    """Returns a sample a read, or raises what it is told to."""

    period_secs = 1.0
    hazardous = False

    def __init__(self, name: str = "gpu_nvml") -> None:
        self.name = name
        self.counters = Counters()
        self.reads: list[float] = []
        self.probes = 0
        self.problem: Exception | None = None
        self.closed = False

    def probe(self) -> None:
        self.probes += 1
        if isinstance(self.problem, ReaderUnsupported):
            raise self.problem

    def read(self, now: Now) -> list[Event]:
        self.reads.append(now.monotonic_ns / 1e9)
        if self.problem:
            raise self.problem
        return [GpuEvent(time_unix_ns=now.unix_ns, node="node01", devices=[], metrics={})]

    def close(self) -> None:
        self.closed = True


class FakeLog(FakeReader):
    """Counts on from a position, one line a read."""

    def __init__(self) -> None:
        super().__init__("kernel_log")
        self.position = 0

    def read(self, now: Now) -> list[Event]:
        super().read(now)
        self.position += 1
        line = LogEvent(time_unix_ns=1, node="n", seq=self.position, source="train", line="x")
        return [line]

    def checkpoint(self) -> str:
        return str(self.position)

    def restore(self, state: str) -> None:
        self.position = int(state)


class Inline:
    """Calls the readers when asked for outcomes."""

    def __init__(self, readers: dict[str, Reader]) -> None:
        self._readers = readers
        self._calls: list[Call] = []
        self._started: set[str] = set()

    def submit(self, call: Call, deadline_secs: float) -> None:
        self._calls.append(call)

    def poll(self, monotonic_ns: int) -> list[Result]:
        calls, self._calls = self._calls, []
        return [self._perform(call) for call in calls]

    def _perform(self, call: Call) -> Result:
        known = call.verb == "probe" or call.reader in self._started
        if not known:
            self._started.add(call.reader)
        call = replace(call, restore=None) if known else call
        return perform(self._readers[call.reader], call)

    def handles(self) -> list[int]:
        return []

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


class Rig:
    """A loop with fake readers; ``run`` lets time pass."""

    def __init__(self, *readers: FakeReader, config: AgentConfig = CONFIG, room: int = 10**6):
        self.clock = FakeClock()
        self.start = self.clock.now().monotonic_ns / 1e9
        self.outbox = Outbox(room)
        now_ns = self.clock.now().monotonic_ns
        tasks = [Task(r.name, r.period_secs, 10.0, now_ns) for r in readers]
        inline = Inline({r.name: r for r in readers})
        runners: dict[str, Runner] = {r.name: inline for r in readers}
        self.loop = Loop(CONTEXT, config, self.clock, self.outbox, runners, tasks)
        self.steps = 0

    def run(self, secs: float, wishes: list[ControlMessage] | None = None) -> list[Batch]:
        end_ns = self.clock.now().monotonic_ns + round(secs * 1e9)
        while self.clock.now().monotonic_ns < end_ns:
            rest = self.loop.step(wishes or [], lambda: Vitals(3, 4, "1.0"))
            wishes = None
            self.steps += 1
            self.clock.advance(max(rest, 0.001))
        return self.outbox.take(10**9)


def gaps(times: list[float]) -> list[float]:
    return [round(b - a, 2) for a, b in pairwise(times)]


def test_a_reader_is_probed_once_and_read_at_its_period() -> None:
    reader = FakeReader()
    rig = Rig(reader)
    rig.run(30)
    assert reader.probes == 1
    assert 29 <= len(reader.reads) <= 31
    assert set(gaps(reader.reads)[1:]) == {1.0}
    assert rig.steps < 200


def test_a_calm_node_is_read_seldom_and_says_so() -> None:
    reader = FakeReader()
    rig = Rig(reader)
    rig.run(BUSY_HOLD_SECS + 60)
    reader.reads.clear()
    batches = rig.run(300)
    assert set(gaps(reader.reads)) == {15.0}
    samples = [e for b in batches for e in b.events if isinstance(e, GpuEvent)]
    assert {e.period_secs for e in samples} == {15.0}


def test_a_wish_is_followed_at_once_and_ends() -> None:
    reader = FakeReader()
    rig = Rig(reader)
    rig.run(BUSY_HOLD_SECS + 31)
    reader.reads.clear()
    until = rig.clock.now().unix_ns + 20 * 10**9
    rig.run(120, [ControlMessage("node01", 0.5, until)])
    assert reader.reads[0] - rig.start < BUSY_HOLD_SECS + 32
    assert 36 <= gaps(reader.reads).count(0.5) <= 41
    assert gaps(reader.reads)[-3:] == [15.0, 15.0, 15.0]


@pytest.mark.parametrize("problem", [OSError("gone"), ServiceError("no"), ValueError("a bug")])
def test_a_failing_reader_backs_off_and_harms_nobody(problem: Exception) -> None:
    bad, good = FakeReader("ib_sysfs"), FakeReader("gpu_nvml")
    bad.problem = problem
    rig = Rig(bad, good, config=AgentConfig(loop=LoopConfig(adaptive=False)))
    rig.run(600)
    assert len(good.reads) >= 599
    assert 12 <= len(bad.reads) <= 22
    task = rig.loop.tasks["ib_sysfs"]
    assert (task.state, task.failures_total) == ("failing", len(bad.reads))
    assert str(problem) in task.detail
    bad.problem = None
    rig.run(62)
    assert (task.state, task.detail) == ("ok", "")


def test_what_is_unsupported_is_looked_for_rarely_and_found() -> None:
    reader = FakeReader()
    reader.problem = ReaderUnsupported("no driver")
    rig = Rig(reader)
    rig.run(1000)
    assert (reader.reads, reader.probes) == ([], 4)
    reader.problem = None
    rig.run(CONFIG.loop.reprobe_secs + 15)
    assert reader.reads


def test_a_reader_that_begins_to_fail_makes_the_node_alert() -> None:
    bad, good = FakeReader("ib_sysfs"), FakeReader("gpu_nvml")
    rig = Rig(bad, good)
    rig.run(BUSY_HOLD_SECS + 30)
    bad.problem = OSError("gone")
    rig.run(30)
    assert rig.loop.activity.level(rig.clock.now()) == "alert"


def test_the_heartbeat_tells_states_and_losses() -> None:
    good, absent = FakeReader("gpu_nvml"), FakeReader("ib_sysfs")
    absent.problem = ReaderUnsupported("none here")
    rig = Rig(good, absent)
    batches = rig.run(61)
    beats = [e for b in batches for e in b.events if isinstance(e, HeartbeatEvent)]
    assert 6 <= len(beats) <= 7
    beat = beats[-1]
    assert beat.readers == {"gpu_nvml": "ok", "ib_sysfs": "unsupported"}
    assert (beat.spooled, beat.dropped_total, beat.agent_version) == (3, 4, "1.0")
    assert (beat.cluster, beat.node, beat.boot_id, beat.period_secs) == ("c1", "node01", "b1", 10)
    assert len({b.seq for b in beats}) == len(beats)


def test_positions_travel_with_their_events_and_come_back() -> None:
    first = FakeLog()
    rig = Rig(first)
    batches = rig.run(10)
    logs = [b for b in batches if b.reader == "kernel_log"]
    assert [b.checkpoint for b in logs] == [str(i + 1) for i in range(len(logs))]
    positions = rig.loop.close()
    assert positions == {"kernel_log": str(first.position)}
    assert first.closed
    second = FakeLog()
    again = Rig(second)
    again.loop.tasks["kernel_log"].position = positions["kernel_log"]
    seqs = [e.seq for b in again.run(3) for e in b.events if isinstance(e, LogEvent)]
    assert seqs[0] == first.position + 1


def test_positions_stay_where_they_are_while_there_is_no_room() -> None:
    log = FakeLog()
    rig = Rig(log, room=100)
    rig.run(2)
    rig.outbox.offer(
        Batch("x", [LogEvent(time_unix_ns=1, node="n", source="train", line="")] * 100)
    )
    before = log.position
    for _ in range(20):
        rig.loop.step([], Vitals)
        rig.clock.advance(0.5)
    assert log.position == before
    rig.outbox.take(10**9)
    rig.run(5)
    assert log.position > before


def test_a_clock_that_jumps_skips_what_was_missed() -> None:
    reader = FakeReader()
    rig = Rig(reader)
    rig.run(5)
    reader.reads.clear()
    rig.clock.advance(3600)
    rig.run(3)
    assert len(reader.reads) <= 4


def test_nodes_start_at_different_phases_within_a_second() -> None:
    due = [first_base_ns(f"node{i}", 0, 5.0) + 5 * 10**9 for i in range(100)]
    assert all(0 <= each <= 10**9 for each in due)
    assert len(set(due)) == 100
    assert due[0] == first_base_ns("node0", 0, 5.0) + 5 * 10**9


def test_no_event_is_changed_but_in_its_period() -> None:
    reader = FakeReader()
    rig = Rig(reader)
    event = next(e for b in rig.run(3) for e in b.events if isinstance(e, GpuEvent))
    assert replace(event, period_secs=None) == GpuEvent(
        time_unix_ns=event.time_unix_ns, node="node01", devices=[], metrics={}
    )


def test_vitals_are_asked_only_for_a_heartbeat() -> None:
    rig = Rig(FakeReader())
    calls = []

    def vitals() -> Vitals:
        calls.append(1)
        return Vitals()

    for _ in range(30):
        rig.loop.step([], vitals)
        rig.clock.advance(1.0)
    assert len(calls) == 3
