"""What waits in memory between the scheduling thread and the sending thread."""

import threading
from collections import deque

from msgspec import Struct

from stethoscope.agents.spool import Priority
from stethoscope.schemas.events import (
    ClockEvent,
    Event,
    GpuEvent,
    HeartbeatEvent,
    IbEvent,
    NodeEvent,
)

_LOW = (GpuEvent, IbEvent, NodeEvent, HeartbeatEvent, ClockEvent)


class Batch(Struct, frozen=True):
    """Events of one read, and where that reader goes on from once they are safe."""

    reader: str
    events: list[Event]
    checkpoint: str | None = None


def priority_of(event: Event) -> Priority:
    """``low`` for samples, heartbeats and clocks, whose next one comes soon; else ``high``."""
    return "low" if isinstance(event, _LOW) else "high"


class Outbox:
    """A bounded queue between two threads. Over the bound samples are dropped and counted.

    ``has_room`` turning false tells the loop to leave positions where they are: what is not read
    yet stays in the kernel's buffer or the file, and is not lost.
    """

    def __init__(self, max_events: int) -> None:
        """``max_events``: bound for samples; for what has no position, twice that."""
        self._max_events = max_events
        self._waiting: deque[Batch] = deque()
        self._events = 0
        self._changed = threading.Condition()
        self.dropped_total = 0

    def has_room(self) -> bool:
        """Whether a reader with a position should be read now."""
        return self._events < self._max_events

    def offer(self, batch: Batch) -> None:
        """Queue the batch; over the bound its samples are dropped, over twice that all of it."""
        with self._changed:
            kept = batch.events
            if self._events >= 2 * self._max_events:
                kept = []
            elif self._events >= self._max_events:
                kept = [event for event in kept if priority_of(event) == "high"]
            self.dropped_total += len(batch.events) - len(kept)
            if kept or (batch.checkpoint is not None and not batch.events):
                checkpoint = batch.checkpoint if len(kept) == len(batch.events) else None
                self._waiting.append(Batch(batch.reader, kept, checkpoint))
                self._events += len(kept)
                self._changed.notify()

    def take(self, max_events: int) -> list[Batch]:
        """The oldest batches, of at most that many events but at least one batch if any waits."""
        taken: list[Batch] = []
        size = 0
        with self._changed:
            while self._waiting:
                size += len(self._waiting[0].events)
                if taken and size > max_events:
                    break
                batch = self._waiting.popleft()
                self._events -= len(batch.events)
                taken.append(batch)
        return taken

    def wait(self, timeout_secs: float) -> bool:
        """Wait until something is here; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._waiting), timeout_secs)
