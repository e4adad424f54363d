"""A recording played into Kafka as if its nodes were live.

What makes a run repeatable: per partition the order of the recording is kept; a ``job`` or
``topology`` event is in Kafka before anything that follows it is sent; the jobs topic carries a
``clock`` for each second of event time, so that a worker never waits to learn whether placement
is complete; and a last ``clock`` everywhere lets out what the reorder buffers hold.
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from stethoscope.schemas.events import ClockEvent, Event, JobEvent, TopologyEvent

NS = 1_000_000_000
_FLUSH_SECS = 60.0


class Producer(Protocol):
    """What playing needs of ``EventProducer``."""

    def send(self, events: list[Event]) -> None:
        """Queue the events."""

    def send_clock(self, time_unix_ns: int, cluster: str = "default") -> None:
        """Say in every partition that time has come this far."""

    def flush(self, timeout_secs: float) -> None:
        """Wait until everything sent is in Kafka."""


class Played(Struct, frozen=True):
    """What was sent: how many events, and the time of the last one (``None``: there was none)."""

    events: int
    last_unix_ns: int | None


def play(
    events: Iterable[Event],
    producer: Producer,
    speed: float,
    reorder_secs: float = 2.0,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> Played:
    """Send all events, ``speed`` times as fast as they happened; 0 is as fast as possible.

    Raises:
        ServiceError: the brokers are away or refuse.
    """
    player = _Player(producer, _Pace(speed, sleep, monotonic))
    for event in events:
        player.take(event)
    return player.finish(round(reorder_secs * NS))


class _Pace:
    """Waits until an event time has come, counted from the first one asked for."""

    def __init__(
        self, speed: float, sleep: Callable[[float], None], monotonic: Callable[[], float]
    ) -> None:
        self._speed = speed
        self._sleep = sleep
        self._monotonic = monotonic
        self._start: tuple[int, float] | None = None

    def wait_for(self, time_unix_ns: int) -> None:
        if not self._speed:
            return
        if self._start is None:
            self._start = time_unix_ns, self._monotonic()
        first_unix_ns, started = self._start
        due = started + (time_unix_ns - first_unix_ns) / NS / self._speed
        if (ahead_secs := due - self._monotonic()) > 0:
            self._sleep(ahead_secs)


class _Player:
    """Gathers the events of one second of event time and sends them with a ``clock`` behind."""

    def __init__(self, producer: Producer, pace: _Pace) -> None:
        self._producer = producer
        self._pace = pace
        self._batch: list[Event] = []
        self._second = 0
        self._last_unix_ns: int | None = None
        self._count = 0

    def take(self, event: Event) -> None:
        if event.time_unix_ns // NS > self._second:
            self._close_second(event.time_unix_ns // NS)
        if event.received_unix_ns is None:  # the append time of this run says nothing about then
            event = replace(event, received_unix_ns=event.time_unix_ns)
        self._batch.append(event)
        if isinstance(event, JobEvent | TopologyEvent):
            self._send()
            self._producer.flush(_FLUSH_SECS)
        self._count += 1
        self._last_unix_ns = max(self._last_unix_ns or 0, event.time_unix_ns)

    def finish(self, reorder_ns: int) -> Played:
        self._send()
        if self._last_unix_ns is not None:
            last_second = -(-self._last_unix_ns // NS)  # the stages release whole seconds
            self._producer.send_clock(last_second * NS + reorder_ns)
        self._producer.flush(_FLUSH_SECS)
        return Played(self._count, self._last_unix_ns)

    def _close_second(self, second: int) -> None:
        """Send what there is, wait for the new second, and say that it has come.

        A second is whole in Kafka before the next begins, so that topics never run apart.
        """
        if self._batch:
            self._send()
            self._producer.flush(_FLUSH_SECS)
        self._pace.wait_for(second * NS)
        self._producer.send([ClockEvent(time_unix_ns=second * NS, received_unix_ns=second * NS)])
        self._second = second

    def _send(self) -> None:
        if self._batch:
            self._producer.send(self._batch)
            self._batch = []
