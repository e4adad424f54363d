"""The node stage: samples, kernel lines and training logs of nodes to findings and views."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field, structs

from stethoscope.correlation.placement import Placement
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import Timing
from stethoscope.schemas.events import (
    AnyNodeEvent,
    Event,
    JobEvent,
    TopologyEvent,
)
from stethoscope.schemas.findings import NS, Subject
from stethoscope.schemas.views import Envelope
from stethoscope.streams.cluster_events import ClusterEvents, ClusterEventsState
from stethoscope.streams.intake import Intake, IntakeState, Reject
from stethoscope.streams.node_reader import NodeReader, Second
from stethoscope.streams.node_samples import Samples
from stethoscope.streams.sources import seconds
from stethoscope.streams.state_codec import decode_state, encode_state
from stethoscope.streams.wiring import Detectors

# How often a stage says which nodes it hears; absence is measured in tens of seconds.
HEARD_EVERY_SECS = 5


class NodeStageState(Struct):
    """Everything a restart needs."""

    intake: IntakeState
    cluster: ClusterEventsState
    placement: Placement
    nodes: dict[str, NodeContext]
    gpu_rows: dict[str, int]
    gpu_subjects: list[Subject]
    host_rows: dict[str, int]
    host_subjects: list[Subject]
    port_rows: dict[str, int]
    port_subjects: list[Subject]
    detectors: dict[str, bytes]
    scraped: dict[str, int] = field(default_factory=dict)
    done_ns: int | None = None


class NodeStage:
    """One pair of telemetry and logs partitions. See ``stages.EventStage``."""

    def __init__(self, detectors: Detectors, timing: Timing, source: str = "node/0") -> None:
        self.source = source
        self._detectors = detectors
        self._intake = Intake(timing)
        self.counts = self._intake.counts
        self._cluster = ClusterEvents()
        self._samples = Samples(self.counts, self._intake.rejects)
        self._reader = NodeReader(detectors, self._samples)
        self._done_ns: int | None = None

    def push(self, events: Iterable[Event]) -> None:
        """Events of nodes, and ``clock`` events of the partition."""
        for event in events:
            self._intake.push(event)

    def push_cluster(self, events: Iterable[Event]) -> None:
        """``job``, ``topology`` and ``clock`` events."""
        self._cluster.push(events)

    def set_frontier(self, jobs_unix_ns: int | None) -> None:
        """Release nothing later than this."""
        self._cluster.frontier_ns = jobs_unix_ns

    def end(self) -> None:
        """Nothing more will come: what is held may go."""
        self._intake.end()

    def drain_rejects(self) -> list[Reject]:
        """What could not be used since the last call."""
        rejects = list(self._intake.rejects)
        self._intake.rejects.clear()
        return rejects

    @property
    def newest_ns(self) -> int:
        """The newest event time that is believed; 0 before the first."""
        return self._intake.newest_ns

    def advance(self) -> list[Envelope]:
        """One envelope for each whole second that every node has passed."""
        least_ns = self._intake.least_ns()
        if least_ns is None:
            return []
        if self._cluster.frontier_ns is not None:
            least_ns = min(least_ns, self._cluster.frontier_ns)
        if self._done_ns is None:
            first_ns = self._intake.first_ns()
            if first_ns is None or least_ns < first_ns:
                return []  # an earlier one may still come
            self._done_ns = (first_ns - 1) // NS * NS
        envelopes = []
        for second_ns in seconds(self._done_ns, least_ns, self._intake.seconds()):
            self._done_ns = second_ns
            envelopes.append(self._second(second_ns))
        return envelopes

    def flush(self) -> Envelope | None:
        """After ``end``: what came after the last whole second, without a tick of its own."""
        if self._done_ns is None or self._intake.first_ns() is None:
            return None
        return self._second(self._done_ns + NS)

    def _second(self, second_ns: int) -> Envelope:
        for event in self._cluster.upto(second_ns):
            self._apply(event)
        second = Second(second_ns)
        for name, events in self._named(self._intake.release(second_ns)).items():
            self._reader.read(name, events, second)
        self._reader.judge(second)
        self._reader.tick(second, self._intake.skewed(second_ns))
        return Envelope(
            source=self.source,
            watermark_unix_ns=second_ns,
            views=second.views,
            findings=second.findings,
            heard=self._heard(second_ns),
        )

    def _heard(self, second_ns: int) -> dict[str, int]:
        if second_ns % (HEARD_EVERY_SECS * NS):
            return {}
        nodes = sorted(self._reader.nodes.items())
        # One that only the topology names is another partition's to hear.
        return {f"{node.cluster}/{name}": node.heard_ns for name, node in nodes if node.heard_ns}

    def _named(self, released: dict[str, list[AnyNodeEvent]]) -> dict[str, Sequence[AnyNodeEvent]]:
        """The same by canonical name; sources that spell a node in two ways become one."""
        named: dict[str, Sequence[AnyNodeEvent]] = {}
        for name, events in released.items():
            node = self._cluster.names.node(name)
            if node == name and node not in named:
                named[node] = events
                continue
            renamed = [structs.replace(event, node=node) for event in events]
            both = [*named.get(node, []), *renamed]
            named[node] = sorted(both, key=lambda event: event.time_unix_ns)
        return named

    def _apply(self, event: Event) -> None:
        if isinstance(event, JobEvent):
            self._reader.placement.apply(event)
        elif isinstance(event, TopologyEvent):
            for name, rack in event.racks.items():
                node = self._cluster.names.node(name)
                self._reader.node(event.cluster, node).rack = rack

    def failures(self) -> dict[str, int]:
        """How often each failing detector raised."""
        return self._detectors.failures()

    def snapshot(self) -> bytes:
        """The whole state."""
        return encode_state(
            NodeStageState(
                intake=self._intake.dump(),
                cluster=self._cluster.dump(),
                placement=self._reader.placement,
                nodes=self._reader.nodes,
                gpu_rows=self._samples.gpus.rows,
                gpu_subjects=self._samples.gpus.subjects,
                host_rows=self._samples.hosts.rows,
                host_subjects=self._samples.hosts.subjects,
                port_rows=self._samples.ports.rows,
                port_subjects=self._samples.ports.subjects,
                detectors=self._detectors.dump(),
                scraped=self._reader.scraped,
                done_ns=self._done_ns,
            )
        )

    def restore(self, state: bytes) -> None:
        """Become what ``snapshot`` described."""
        known = decode_state(state, NodeStageState)
        self._intake.load(known.intake)
        self._cluster.load(known.cluster)
        self._reader.placement, self._reader.nodes = known.placement, known.nodes
        self._samples.gpus.rows, self._samples.gpus.subjects = known.gpu_rows, known.gpu_subjects
        self._samples.hosts.rows = known.host_rows
        self._samples.hosts.subjects = known.host_subjects
        self._samples.ports.rows = known.port_rows
        self._samples.ports.subjects = known.port_subjects
        self._reader.scraped, self._done_ns = known.scraped, known.done_ns
        self._detectors.load(known.detectors)
