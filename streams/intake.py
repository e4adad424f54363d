"""The node stage's intake: clocks, duplicates, skew, and events held until their second comes."""

import heapq
import zlib
from collections.abc import Iterator

import msgspec
from msgspec import Struct, field, structs

from stethoscope.schemas.config import Timing
from stethoscope.schemas.events import (
    AnyNodeEvent,
    ClockEvent,
    Event,
    JobEvent,
    LogEvent,
    TopologyEvent,
    event_id,
    kind_of,
)
from stethoscope.schemas.findings import NS

# Numbers remembered of a stream: lines come in bursts, samples one a second or slower (twenty
# minutes of them). At 1,000 nodes of five streams this is what a restart has to read.
MAX_LINES = 4096
MAX_SAMPLES = 1200
STREAM_TTL_NS = 86_400 * NS
SWEEP_NS = 3_600 * NS
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
    """The highest sequence numbers of one stream with a checksum of each body.

    ``floor``: numbers up to it were seen, or are older than can be told.
    """

    seen: dict[int, int] = field(default_factory=dict)
    floor: int = -1
    newest_ns: int = 0

    def note(self, seq: int, checksum: int, most: int) -> None:
        """Remember a number; of more than ``most`` the lower half becomes the floor."""
        self.seen[seq] = checksum
        if len(self.seen) > most:
            for low in sorted(self.seen)[: most // 2]:
                del self.seen[low]
                self.floor = low


class IntakeState(Struct):
    """What a restart needs.

    Bounds: 4,096 lines or 1,200 samples of each stream of the last day; events of the reorder
    time, or of a spool that is being read.
    """

    clocks: dict[str, int] = field(default_factory=dict)
    heard_at: dict[str, int] = field(default_factory=dict)
    first_ns: dict[str, int] = field(default_factory=dict)
    skewed: dict[int, dict[str, float]] = field(default_factory=dict)
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
        self._skewed: dict[int, dict[str, float]] = {}
        self._heard_at: dict[str, int] = {}
        self._first_ns: dict[str, int] = {}
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
        elif received_ns is None and 0 < self.newest_ns < event.time_unix_ns - self._skew_ns:
            self._suspended.append(event)
            if self._time_passed():
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

    def seconds(self) -> Iterator[int]:
        """The seconds that the held events belong to; asked for lazily, since rarely needed."""
        return (-(-entry[0] // NS) * NS for heap in self._held.values() for entry in heap)

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

    def skewed(self, upto_ns: int) -> dict[str, float]:
        """Nodes whose events were dated back, and by how many seconds, not later than that."""
        found: dict[str, float] = {}
        for second_ns in sorted(s for s in self._skewed if s <= upto_ns):
            found |= self._skewed.pop(second_ns)
        return found

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

    def _time_passed(self) -> bool:
        """Whether events far ahead mean that time passed in silence, rather than a wrong clock.

        A second event says so, unless other nodes were just heard and it is the same node's: then
        another node must agree, or nobody contradict for ``idle_secs`` of the new time.
        """
        ahead = {event.node for event in self._suspended}
        lively_ns = self.newest_ns - self._idle_ns
        others = any(
            ns >= lively_ns and ns > self._first_ns.get(node, ns)  # its clock was seen to go
            for node, ns in self.clocks.items()
            if node not in ahead
        )
        if len(self._suspended) < 2 or (others and len(ahead) < 2):
            times = [event.time_unix_ns for event in self._suspended]
            return max(times) - min(times) >= self._idle_ns
        return True

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
        second_ns = -(-time_ns // NS) * NS
        ahead_secs = (event.time_unix_ns - time_ns) / NS
        self._skewed.setdefault(second_ns, {})[event.node] = ahead_secs
        return structs.replace(event, time_unix_ns=time_ns)

    def _admit(self, event: AnyNodeEvent) -> None:
        if not self._is_new(event):
            return
        node, time_ns = event.node, event.time_unix_ns
        if time_ns > self.clocks.get(node, 0):
            self.clocks[node] = time_ns
        if time_ns // SWEEP_NS > self.newest_ns // SWEEP_NS:
            self._sweep(time_ns)
        self.newest_ns = max(self.newest_ns, time_ns)
        self._heard_at[node] = self.newest_ns
        self._first_ns.setdefault(node, time_ns)
        entry = (time_ns, kind_of(event), event_id(event), event)
        heapq.heappush(self._held.setdefault(node, []), entry)

    def _is_new(self, event: AnyNodeEvent) -> bool:
        stream = event.stream or kind_of(event)
        key = f"{event.cluster}/{event.node}/{event.boot_id}/{stream}"
        seqs = self._seqs.setdefault(key, Seqs())
        seqs.newest_ns = max(seqs.newest_ns, event.time_unix_ns)
        try:
            body = _encode(structs.replace(event, received_unix_ns=None))
        except OverflowError:  # a counter or a GPU index
            self.counts.rejected += 1
            self.rejects.append(Reject("wrong_type", f"{event_id(event)}: beyond 64 bits"))
            return False
        checksum = zlib.crc32(body)
        known = seqs.seen.get(event.seq)
        if known is None and event.seq > seqs.floor:
            most = MAX_LINES if isinstance(event, LogEvent) else MAX_SAMPLES
            seqs.note(event.seq, checksum, most)
            return True
        if known in (None, checksum):
            self.counts.duplicates += 1
        else:
            self.counts.rejected += 1
            self.rejects.append(Reject("id_conflict", event_id(event), body))
        return False

    def _sweep(self, now_ns: int) -> None:
        """Forget streams that ended: boots of yesterday, log files of jobs that are over."""
        oldest_ns = now_ns - STREAM_TTL_NS
        self._seqs = {key: seqs for key, seqs in self._seqs.items() if seqs.newest_ns >= oldest_ns}

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
            first_ns=self._first_ns,
            skewed=self._skewed,
            newest_ns=self.newest_ns,
            held=held,
            seqs=self._seqs,
            suspended=suspended,
        )

    def load(self, state: IntakeState) -> None:
        """Become what ``dump`` described."""
        self.clocks, self._heard_at, self.newest_ns = state.clocks, state.heard_at, state.newest_ns
        self._seqs, self._first_ns = state.seqs, state.first_ns
        self._skewed = state.skewed
        self._held = {
            node: [(t, k, i, _decode_event(e)) for t, k, i, e in heap]
            for node, heap in state.held.items()
        }
        self._suspended = [_decode_event(e) for e in state.suspended]
