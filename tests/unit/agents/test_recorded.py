"""A recording goes out in order, in step, and ends with a clock."""

from stethoscope.agents.recorded import NS, Played, play
from stethoscope.schemas.events import ClockEvent, Event, HeartbeatEvent, JobEvent

Said = tuple[str, int]


class FakeProducer:
    """Remembers what was asked, in order: ("heartbeat" | "job" | "clock" | .., seconds)."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.received: list[int | None] = []

    def send(self, events: list[Event]) -> None:
        names = {HeartbeatEvent: "heartbeat", JobEvent: "job", ClockEvent: "clock"}
        for event in events:
            self.said.append((names[type(event)], event.time_unix_ns // NS))
            self.received.append(event.received_unix_ns)

    def send_clock(self, time_unix_ns: int, cluster: str = "default") -> None:
        self.said.append(("clock everywhere", time_unix_ns // NS))

    def flush(self, timeout_secs: float) -> None:
        self.said.append(("flush", 0))


class FakeTime:
    def __init__(self) -> None:
        self.now = 50.0
        self.slept: list[float] = []

    def sleep(self, secs: float) -> None:
        self.slept.append(secs)
        self.now += secs

    def monotonic(self) -> float:
        return self.now


def _beat(secs: float) -> Event:
    return HeartbeatEvent(time_unix_ns=round(secs * NS), node="n1")


def _job(secs: float) -> Event:
    return JobEvent(time_unix_ns=round(secs * NS), job_id="7", state="RUNNING")


def test_each_second_is_in_kafka_before_the_clock_says_the_next_has_come() -> None:
    producer = FakeProducer()
    play([_beat(10.1), _beat(10.9), _beat(12.0)], producer, speed=0)
    assert producer.said == [
        ("clock", 10),
        ("heartbeat", 10),
        ("heartbeat", 10),
        ("flush", 0),
        ("clock", 12),
        ("heartbeat", 12),
        ("clock everywhere", 14),
        ("flush", 0),
    ]


def test_clocks_count_as_heard_at_their_own_time() -> None:
    producer = FakeProducer()
    play([_beat(10.1), _beat(12.0)], producer, speed=0)
    heard = dict(zip(producer.said, producer.received, strict=False))
    assert heard[("clock", 10)] == 10 * NS


def test_a_job_is_in_kafka_before_what_follows_it() -> None:
    producer = FakeProducer()
    play([_beat(10.1), _job(10.2), _beat(10.3)], producer, speed=0)
    assert producer.said[1:5] == [("heartbeat", 10), ("job", 10), ("flush", 0), ("heartbeat", 10)]


def test_speed_divides_the_waiting() -> None:
    clock = FakeTime()
    play([_beat(10), _beat(30), _beat(31)], FakeProducer(), 10, 2.0, clock.sleep, clock.monotonic)
    assert [round(secs, 6) for secs in clock.slept] == [2.0, 0.1]


def test_as_fast_as_possible_never_sleeps() -> None:
    clock = FakeTime()
    play([_beat(10), _beat(30)], FakeProducer(), 0, 2.0, clock.sleep, clock.monotonic)
    assert clock.slept == []


def test_events_carry_their_own_time_as_that_of_arrival() -> None:
    producer = FakeProducer()
    play([_beat(10)], producer, speed=0)
    assert producer.received[1] == 10 * NS


def test_what_was_played_is_told() -> None:
    assert play([_beat(10), _job(11)], FakeProducer(), 0) == Played(2, 11 * NS)
    assert play([], FakeProducer(), 0) == Played(0, None)
