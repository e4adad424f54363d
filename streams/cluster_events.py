"""The jobs topic as every stage sees it: events in order of time, up to a frontier."""

import heapq
from collections.abc import Iterable

import msgspec
from msgspec import Struct, field

from stethoscope.correlation.identity import Names, NamesState
from stethoscope.correlation.placement import with_nodes
from stethoscope.schemas.events import ClockEvent, Event, JobEvent, TopologyEvent, event_id

ClusterEvent = JobEvent | TopologyEvent
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ClusterEvent).decode


class ClusterEventsState(Struct):
    """Events that wait for their second. Bound: those of the reorder time."""

    waiting: list[tuple[int, str, bytes]] = field(default_factory=list)
    names: NamesState = field(default_factory=NamesState)


class ClusterEvents:
    """Holds ``job`` and ``topology`` events until the stage's second comes.

    ``frontier_ns``: how far the jobs topic was read; ``None`` where nothing need wait for it.
    """

    def __init__(self) -> None:
        self.names = Names()
        self._waiting: list[tuple[int, str, bytes]] = []
        self.frontier_ns: int | None = None

    def push(self, events: Iterable[Event]) -> None:
        """Take events of the jobs topic; clocks only move the frontier, which the shell sets."""
        for event in events:
            if isinstance(event, JobEvent | TopologyEvent):
                # As bytes, so that two bodies of one id have an order too.
                entry = event.time_unix_ns, event_id(event), _encode(event)
                heapq.heappush(self._waiting, entry)
            elif not isinstance(event, ClockEvent):
                continue

    def upto(self, second_ns: int) -> list[ClusterEvent]:
        """Events not later than ``second_ns``, in order; each once."""
        ready = []
        last_id = ""
        waiting = self._waiting
        while waiting and waiting[0][0] <= second_ns:
            _, identity, body = heapq.heappop(waiting)
            if identity != last_id:
                ready.append(self._named(_decode(body)))
            last_id = identity
        return ready

    def _named(self, event: ClusterEvent) -> ClusterEvent:
        """The event with its nodes listed, by their canonical names."""
        if isinstance(event, TopologyEvent):
            self.names.learn(event)
            return event
        event = with_nodes(event)
        self.names.learn(event)
        return self.names.job(event)

    def dump(self) -> ClusterEventsState:
        """The state as plain data."""
        return ClusterEventsState(self._waiting, self.names.state)

    def load(self, state: ClusterEventsState) -> None:
        """Take over a snapshot."""
        self._waiting = state.waiting
        self.names.load(state.names)
