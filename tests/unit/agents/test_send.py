"""The sender: live, away, back again; nothing acked is lost, order stays."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.outbox import Batch, Outbox
from stethoscope.agents.reader import Context
from stethoscope.agents.send import Sender
from stethoscope.agents.spool import Spool
from stethoscope.agents.state import StateDir
from stethoscope.agents.train_log import TrainLogReader
from stethoscope.schemas.agent_config import Sending, TrainLog
from stethoscope.schemas.errors import EventRefused, ServiceError
from stethoscope.schemas.events import Event, GpuEvent, LogEvent, event_id

CONFIG = Sending(batch_events=8, queue_events=100, min_retry_secs=1.0, max_retry_secs=1.0)


def line(seq: int, text: str = "line") -> LogEvent:
    return LogEvent(time_unix_ns=seq, node="node01", seq=seq, source="kernel", line=text)


def sample(seq: int) -> GpuEvent:
    return GpuEvent(time_unix_ns=seq, node="node01", seq=seq, devices=[], metrics={})


class FakeKafka:
    """A broker that can be away, lose answers, and refuse single events."""

    def __init__(self) -> None:
        self.up = True
        self.loses_answers = False
        self.refuses: set[int] = set()
        self.log: list[Event] = []
        self.connections = 0

    def connect(self) -> "FakeProducer":
        if not self.up:
            msg = "away"
            raise ServiceError(msg)
        self.connections += 1
        return FakeProducer(self)

    def seqs(self) -> list[int]:
        return [event.seq for event in self.log if isinstance(event, LogEvent | GpuEvent)]


class FakeProducer:
    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._buffer: list[Event] = []

    def send(self, events: list[Event]) -> None:
        self._buffer += events

    def flush(self, timeout_secs: float) -> None:
        if not self._kafka.up:
            msg = "away"
            raise ServiceError(msg)
        if any(isinstance(e, LogEvent) and e.seq in self._kafka.refuses for e in self._buffer):
            msg = "too large"
            raise EventRefused(msg)
        self._kafka.log += self._buffer
        self._buffer = []
        if self._kafka.loses_answers:
            msg = "no answer in time"
            raise ServiceError(msg)

    def close(self, timeout_secs: float = 5.0) -> None:
        self._buffer = []


class Rig:
    """A sender on a fake broker; ``crash`` forgets all but the disk, as kill -9 does."""

    def __init__(self, folder: Path, max_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.kafka = FakeKafka()
        self.clock = FakeClock()
        self.state = StateDir(folder)
        self._start()

    def _start(self) -> None:
        self.outbox = Outbox(CONFIG.queue_events)
        self.spool = Spool(self.folder / "spool", self.max_bytes, 4096)
        self.sender = Sender(
            self.kafka.connect,
            self.outbox,
            self.spool,
            self.state,
            self.clock,
            CONFIG,
            spawn=lambda run: run(),
        )

    def crash(self) -> None:
        self.state.close()
        self.state = StateDir(self.folder)
        self._start()

    def offer(self, *events: Event, checkpoint: str | None = None) -> None:
        self.outbox.offer(Batch("kernel_log", list(events), checkpoint))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.sender.step()
            self.clock.advance(2.0)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_live_events_go_straight_through(rig: Rig) -> None:
    rig.offer(line(1), line(2), checkpoint="2")
    rig.step()
    assert rig.kafka.seqs() == [1, 2]
    assert rig.spool.pending == 0
    assert rig.state.load_cursors() == {"kernel_log": "2"}


def test_positions_are_written_at_most_once_a_second(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[dict[str, str]] = []
    monkeypatch.setattr(rig.state, "save_cursors", saved.append)
    for i in range(20):
        rig.offer(line(i), checkpoint=str(i))
        rig.sender.step()
        rig.clock.advance(0.25)
    assert len(saved) == 5
    rig.sender.finish()
    assert saved[-1] == {"kernel_log": "19"}


def test_while_kafka_is_away_everything_queues_and_leaves_in_order(rig: Rig) -> None:
    rig.kafka.up = False
    for i in range(0, 40, 2):
        rig.offer(line(i), sample(i + 1), checkpoint=str(i))
        rig.step()
    assert rig.spool.pending == 40
    assert rig.state.load_cursors() == {"kernel_log": "38"}
    rig.kafka.up = True
    rig.offer(line(40))
    rig.step(20)
    assert rig.kafka.seqs() == list(range(41))
    assert rig.spool.pending == 0
    assert rig.sender.dropped_total == 0


def test_a_broker_that_dies_in_flight_loses_nothing(rig: Rig) -> None:
    rig.offer(line(1))
    rig.step()
    rig.kafka.up = False
    rig.offer(line(2), checkpoint="2")
    rig.step()
    rig.kafka.up = True
    rig.step(3)
    assert rig.kafka.seqs() == [1, 2]


def test_answers_that_get_lost_double_only_the_same_ids(rig: Rig) -> None:
    rig.kafka.loses_answers = True
    rig.offer(line(1), line(2))
    rig.step(3)
    rig.kafka.loses_answers = False
    rig.step(3)
    assert set(rig.kafka.seqs()) == {1, 2}
    assert len({event_id(event) for event in rig.kafka.log}) == 2
    assert rig.spool.pending == 0


@pytest.mark.parametrize("crash_after", range(0, 30, 3))
def test_kill_9_anywhere_loses_no_line_and_rereads_from_the_cursor(
    tmp_path: Path, crash_after: int
) -> None:
    """A reader that goes on from the stored cursor, a crash, and an outage in the middle."""
    rig = Rig(tmp_path)
    position = 0
    for tick in range(30):
        rig.kafka.up = not 5 <= tick < 20
        if tick == crash_after:
            rig.crash()
            position = int(rig.state.load_cursors().get("kernel_log", "0"))
        position += 1
        rig.offer(line(position), checkpoint=str(position))
        if tick % 2:
            rig.step()
    rig.kafka.up = True
    rig.step(30)
    assert sorted(set(rig.kafka.seqs())) == list(range(1, position + 1))
    assert len({event_id(event) for event in rig.kafka.log}) == position


def test_positions_go_ahead_of_events_and_are_forgotten_once_saved(rig: Rig) -> None:
    rig.kafka.loses_answers = True  # the event is out, the agent dies before it knows
    rig.offer(line(1), checkpoint="1")
    rig.sender.step()
    assert rig.kafka.seqs() == [1]
    assert rig.state.load_ahead("boot-a") == {}
    rig.crash()
    rig.kafka.loses_answers = False
    assert rig.state.load_ahead("") == {"kernel_log": ["1"]}
    rig.offer(line(2), checkpoint="2")
    rig.step(2)  # sends, then saves
    rig.offer(line(3), checkpoint="3")
    rig.step()
    assert rig.state.load_ahead("") == {"kernel_log": ["3"]}


def test_a_disk_that_refuses_positions_ahead_stops_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rig.state, "save_ahead", refuse)
    rig.offer(line(1), checkpoint="1")
    rig.step()
    assert rig.kafka.seqs() == [1]
    assert rig.sender.stats.state_errors_total == 1


@pytest.mark.parametrize("crash_after", range(2, 20, 3))
def test_kill_9_anywhere_sends_no_line_with_two_bodies(tmp_path: Path, crash_after: int) -> None:
    """A real log reader, whose lines have no stamp: what is read again must be as it was."""
    rig = Rig(tmp_path / "state")
    log = tmp_path / "job.log"
    section = TrainLog(globs=[str(log)], timezone="UTC")
    context = Context("c", "node01", "")

    def start() -> TrainLogReader:
        reader = TrainLogReader(context, section)
        if state := rig.state.load_cursors().get("train_log"):
            reader.restore(state)
        reader.expect(rig.state.load_ahead("").get("train_log", []))
        return reader

    reader = start()
    for tick in range(20):
        if tick == crash_after:
            rig.crash()
            reader = start()
        with log.open("a") as file:
            file.write(f"step {tick} loss 2.5\nstep {tick} loss 2.6\n")
        rig.kafka.loses_answers = tick in {1, 4, 7}
        rig.outbox.offer(Batch("train_log", reader.read(rig.clock.now()), reader.checkpoint()))
        rig.sender.step()
        rig.clock.advance(0.3)
    rig.step(20)
    bodies: dict[str, Event] = {}
    for event in rig.kafka.log:
        assert bodies.setdefault(event_id(event), event) == event
    lines = [event.line for event in bodies.values() if isinstance(event, LogEvent)]
    assert sorted(lines) == sorted(f"step {i} loss 2.{j}" for i in range(20) for j in (5, 6))


def test_an_event_that_is_never_taken_does_not_stop_the_rest(rig: Rig) -> None:
    rig.kafka.refuses = {7}
    rig.offer(*(line(i) for i in range(20)))
    rig.step(30)
    assert rig.kafka.seqs() == [i for i in range(20) if i != 7]
    assert rig.sender.stats.unsendable_total == 1
    assert rig.spool.pending == 0


def test_what_kafka_refuses_at_once_is_not_sent_twice_as_another_event(rig: Rig) -> None:
    rig.kafka.refuses = {1}
    rig.offer(line(1))
    rig.step(5)
    assert rig.kafka.log == []
    assert rig.spool.pending == 0


def test_over_the_spools_bound_samples_go_and_are_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_bytes=64_000)
    rig.kafka.up = False
    for i in range(400):
        rig.offer(line(i, "x" * 20), sample(1000 + i))
        rig.step()
    rig.kafka.up = True
    rig.step(200)
    seqs = rig.kafka.seqs()
    assert [seq for seq in seqs if seq < 1000] == list(range(400))
    samples = [seq for seq in seqs if seq >= 1000]
    assert samples == list(range(1400 - len(samples), 1400))
    assert rig.sender.dropped_total == 400 - len(samples) > 0


def test_finish_spools_what_it_cannot_send(rig: Rig) -> None:
    rig.kafka.up = False
    rig.offer(line(1), checkpoint="1")
    rig.sender.finish()
    rig.crash()
    assert rig.state.load_cursors() == {"kernel_log": "1"}
    rig.kafka.up = True
    rig.step()
    assert rig.kafka.seqs() == [1]


def test_a_disk_that_refuses_keeps_the_cursor_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_handle: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stethoscope.agents.spool.os.write", refuse)
    rig.kafka.up = False
    rig.offer(line(1), checkpoint="1")
    rig.step()
    assert rig.state.load_cursors() == {}
    assert rig.sender.dropped_total == 1


def test_retries_back_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def connect() -> FakeProducer:
        tries.append(rig.clock.now().monotonic_ns)
        msg = "away"
        raise ServiceError(msg)

    config = replace(CONFIG, max_retry_secs=30.0)
    sender = Sender(
        connect, rig.outbox, rig.spool, rig.state, rig.clock, config, spawn=lambda run: run()
    )
    for _ in range(100):
        sender.step()
        rig.clock.advance(1.0)
    assert 5 <= len(tries) <= 12


def test_a_producer_that_breaks_in_unforeseen_ways_costs_no_event(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        msg = "a fault in the client"
        raise RuntimeError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(FakeProducer, "flush", broken)
        patch.setattr(FakeProducer, "close", broken)
        rig.offer(line(1))
        rig.step()
    assert rig.spool.pending == 1
    rig.step(2)
    assert rig.kafka.seqs() == [1]


def test_events_go_to_the_spool_while_an_attempt_to_connect_hangs(rig: Rig) -> None:
    waiting = []
    sender = Sender(
        rig.kafka.connect, rig.outbox, rig.spool, rig.state, rig.clock, CONFIG, spawn=waiting.append
    )
    for i in range(5):
        rig.offer(line(i), checkpoint=str(i))
        sender.step()
        rig.clock.advance(10.0)
    assert (rig.spool.pending, len(waiting)) == (5, 1)
    assert rig.state.load_cursors() == {"kernel_log": "4"}
    waiting[0]()
    sender.step()
    assert rig.kafka.seqs() == [0, 1, 2, 3, 4]


def test_the_outbox_drops_samples_first_and_never_grows_without_bound() -> None:
    outbox = Outbox(10)
    for i in range(30):
        outbox.offer(Batch("host", [sample(i)]))
    assert not outbox.has_room()
    assert outbox.dropped_total == 20
    for i in range(30):
        outbox.offer(Batch("slurm", [line(i)]))
    kept = [event for batch in outbox.take(1000) for event in batch.events]
    assert len(kept) == 20
    assert outbox.dropped_total == 40
    assert outbox.has_room()


def test_a_batch_that_lost_events_carries_no_checkpoint() -> None:
    outbox = Outbox(1)
    outbox.offer(Batch("host", [sample(1)]))
    outbox.offer(Batch("kernel_log", [line(1), sample(2)], "2"))
    assert [batch.checkpoint for batch in outbox.take(10)] == [None, None]


def test_waiting_ends_with_the_first_batch() -> None:
    outbox = Outbox(10)
    assert not outbox.wait(0.0)
    outbox.offer(Batch("host", [sample(1)]))
    assert outbox.wait(0.0)
