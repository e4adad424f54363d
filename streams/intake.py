"""The node stage's intake: clocks, duplicates, skew, and events held until their second comes."""

import heapq
import zlib

import msgspec
from msgspec import Struct, field, structs

from stethoscope.schemas.config import Timing
from stethoscope.schemas.events import (
    AnyNodeEvent,
    ClockEvent,
    Event,
    JobEvent,
    TopologyEvent,
    event_id,
    kind_of,
)
from stethoscope.schemas.findings import NS

MAX_SEQS = 4096
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(AnyNodeEvent).decode


class Counts(Struct):
    """What happened to the events that came in. All are totals."""

    events: int = 0
    duplicates: int = 0
    late: int = 0
    clamped: int = 0
    invalid_samples: int = 0
    unknown_metrics: int = 0
    rejected: int = 0


class Reject(Struct, frozen=True):
    """One event, or part of one, that cannot be used: for the dead-letter topic."""

    reason: str
    detail: str
    body: bytes = b""


class Seqs(Struct):
    """The last sequence numbers of one stream with a checksum of each body."""

    seen: dict[int, int] = field(default_factory=dict)


class IntakeState(Struct):
    """Bounds: 4,096 numbers a stream; events of the reorder time, or of a spool being read."""

    clocks: dict[str, int] = field(default_factory=dict)
    heard_at: dict[str, int] = field(default_factory=dict)
    newest_ns: int = 0
    held: dict[str, list[tuple[int, str, str, bytes]]] = field(default_factory=dict)
    seqs: dict[str, Seqs] = field(default_factory=dict)
    suspended: list[bytes] = field(default_factory=list)


class Intake:
    """Holds events of nodes by node, ordered by (time, kind, id).

    Each node has its own clock, its newest event time; a node that lags more than ``idle_secs``
    behind the newest of all is left out of the least. A lone event far ahead of all others is a
    wrong clock: it gets the time that has been reached and is counted.
    """

    def __init__(self, timing: Timing) -> None:
        self._reorder_ns = int(timing.reorder_secs * NS)
        self._skew_ns = int(timing.max_skew_secs * NS)
        self._idle_ns = int(timing.idle_secs * NS)
        self.clocks: dict[str, int] = {}
        self.newest_ns = 0
        self.counts = Counts()
        self.rejects: list[Reject] = []
        self.skewed: list[tuple[str, int, int]] = []
        self._heard_at: dict[str, int] = {}
        self._held: dict[str, list[tuple[int, str, str, AnyNodeEvent]]] = {}
        self._seqs: dict[str, Seqs] = {}
        self._suspended: list[AnyNodeEvent] = []

    def push(self, event: Event) -> None:
        """Take one event of a node or a clock."""
        if isinstance(event, ClockEvent):
            self._clock(event)
            return
        if isinstance(event, JobEvent | TopologyEvent):
            return  # of the jobs topic, which every stage reads for itself
        self.counts.events += 1
        received_ns = event.received_unix_ns
        if received_ns is not None and event.time_unix_ns > received_ns + self._skew_ns:
            event = self._clamp(event, received_ns)
        elif self.newest_ns and event.time_unix_ns > self.newest_ns + self._skew_ns:
            self._suspended.append(event)
            if len(self._suspended) >= 2:  # not one wrong clock: time did pass in silence
                for waiting in self._take_suspended():
                    self._admit(waiting)
            return
        for waiting in self._take_suspended():
            self._admit(self._clamp(waiting, self.newest_ns))
        self._admit(event)

    def least_ns(self) -> int | None:
        """How far every node that is not idle has come, less the reorder time."""
        if not self.newest_ns:
            return None
        lively = [c for c in self.clocks.values() if c >= self.newest_ns - self._idle_ns]
        return min(lively, default=self.newest_ns) - self._reorder_ns

    def first_ns(self) -> int | None:
        """The earliest event that is held."""
        return min((heap[0][0] for heap in self._held.values() if heap), default=None)

    def release(self, upto_ns: int) -> dict[str, list[AnyNodeEvent]]:
        """Events not later than ``upto_ns``, by node, each node's in order."""
        released: dict[str, list[AnyNodeEvent]] = {}
        for node in sorted(self._held):
            heap = self._held[node]
            limit_ns = min(upto_ns, self._passed_ns(node))
            events = []
            while heap and heap[0][0] <= limit_ns:
                events.append(heapq.heappop(heap)[3])
            if events:
                released[node] = events
        return released

    def _passed_ns(self, node: str) -> int:
        """How far the node has come. One that fell silent has said all: nothing is held back."""
        clock_ns = self.clocks.get(node, self.newest_ns)
        fell_silent = self.newest_ns - self._heard_at.get(node, 0) >= self._idle_ns
        return clock_ns if fell_silent else clock_ns - self._reorder_ns

    def end(self) -> None:
        """Nothing more will come: what waits for a second opinion is taken, nothing is held."""
        self._reorder_ns = 0
        for waiting in self._take_suspended():
            self._admit(self._clamp(waiting, self.newest_ns))

    def _take_suspended(self) -> list[AnyNodeEvent]:
        waiting, self._suspended = self._suspended, []
        return waiting

    def _clock(self, event: ClockEvent) -> None:
        nodes = [event.node] if event.node else list(self.clocks)
        for node in nodes:
            self.clocks[node] = max(self.clocks.get(node, 0), event.time_unix_ns)
        self.newest_ns = max(self.newest_ns, event.time_unix_ns)

    def _clamp(self, event: AnyNodeEvent, time_ns: int) -> AnyNodeEvent:
        self.counts.clamped += 1
        self.skewed.append((event.node, event.time_unix_ns, time_ns))
        return structs.replace(event, time_unix_ns=time_ns)

    def _admit(self, event: AnyNodeEvent) -> None:
        if not self._is_new(event):
            return
        node, time_ns = event.node, event.time_unix_ns
        if time_ns > self.clocks.get(node, 0):
            self.clocks[node] = time_ns
        self.newest_ns = max(self.newest_ns, time_ns)
        self._heard_at[node] = self.newest_ns
        entry = (time_ns, kind_of(event), event_id(event), event)
        heapq.heappush(self._held.setdefault(node, []), entry)

    def _is_new(self, event: AnyNodeEvent) -> bool:
        stream = event.stream or kind_of(event)
        seen = self._seqs.setdefault(f"{event.node}/{event.boot_id}/{stream}", Seqs()).seen
        body = _encode(structs.replace(event, received_unix_ns=None))
        checksum = zlib.crc32(body)
        known = seen.get(event.seq)
        if known is None:
            if len(seen) >= MAX_SEQS:
                oldest = next(iter(seen))
                if event.seq < oldest:
                    self.counts.duplicates += 1
                    return False
                del seen[oldest]
            seen[event.seq] = checksum
            return True
        if known == checksum:
            self.counts.duplicates += 1
        else:
            self.counts.rejected += 1
            self.rejects.append(Reject("id_conflict", event_id(event), body))
        return False

    def dump(self) -> IntakeState:
        """The state as plain data."""
        held = {
            node: [(t, k, i, _encode(e)) for t, k, i, e in sorted(heap, key=lambda h: h[:3])]
            for node, heap in self._held.items()
        }
        suspended = [_encode(e) for e in self._suspended]
        return IntakeState(
            clocks=self.clocks,
            heard_at=self._heard_at,
            newest_ns=self.newest_ns,
            held=held,
            seqs=self._seqs,
            suspended=suspended,
        )

    def load(self, state: IntakeState) -> None:
        """Become what ``dump`` described."""
        self.clocks, self._heard_at, self.newest_ns = state.clocks, state.heard_at, state.newest_ns
        self._seqs = state.seqs
        self._held = {
            node: [(t, k, i, _decode_event(e)) for t, k, i, e in heap]
            for node, heap in state.held.items()
        }
        self._suspended = [_decode_event(e) for e in state.suspended]
