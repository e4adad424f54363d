"""The node stage: samples, kernel lines and training logs of nodes to findings and views."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field, structs

from stethoscope.correlation.placement import Placement
from stethoscope.detectors.fleet import Table
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import Match, Timing
from stethoscope.schemas.events import (
    AnyNodeEvent,
    Event,
    GpuEvent,
    IbEvent,
    JobEvent,
    LogEvent,
    NodeEvent,
    TopologyEvent,
)
from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.views import Envelope, View
from stethoscope.streams.cluster_events import ClusterEvents, ClusterEventsState
from stethoscope.streams.intake import Intake, IntakeState, Reject
from stethoscope.streams.matching import accepts
from stethoscope.streams.node_samples import Sample, Samples, batches
from stethoscope.streams.node_views import LogSecond, gpu_views, host_views
from stethoscope.streams.state_codec import decode_state, encode_state
from stethoscope.streams.wiring import Detectors, Guarded

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
        self._placement = Placement()
        self._nodes: dict[str, NodeContext] = {}
        self._samples = Samples(self.counts, self._intake.rejects)
        self._scraped: dict[str, int] = {}
        self._done_ns: int | None = None
        self._ended = False

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

    def advance(self) -> list[Envelope]:
        """One envelope for each whole second that every node has passed."""
        least_ns = self._intake.least_ns()
        if least_ns is None:
            return []
        if self._cluster.frontier_ns is not None:
            least_ns = min(least_ns, self._cluster.frontier_ns)
        if self._done_ns is None:
            first_ns = self._intake.first_ns()
            if first_ns is None:
                return []
            self._done_ns = (first_ns - 1) // NS * NS
        envelopes = []
        while self._done_ns + NS <= least_ns:
            self._done_ns += NS
            envelopes.append(self._second(self._done_ns))
        return envelopes

    def flush(self) -> Envelope | None:
        """After ``end``: what came after the last whole second, without a tick of its own."""
        if self._done_ns is None or self._intake.first_ns() is None:
            return None
        return self._second(self._done_ns + NS)

    def _second(self, second_ns: int) -> Envelope:
        for event in self._cluster.upto(second_ns):
            self._apply(event)
        findings: list[Finding] = []
        views: list[View] = []
        gpus: list[Sample] = []
        hosts: list[Sample] = []
        for node, events in self._named(self._intake.release(second_ns)).items():
            self._read_node(node, events, second_ns, findings, views, gpus, hosts)
        for table, samples in ((self._samples.gpus, gpus), (self._samples.hosts, hosts)):
            findings += self._judge(table, samples)
        findings += self._tick(second_ns)
        heard = {}
        if second_ns % (HEARD_EVERY_SECS * NS) == 0:
            nodes = sorted(self._nodes.items())
            heard = {f"{node.cluster}/{name}": node.heard_ns for name, node in nodes}
        return Envelope(
            source=self.source,
            watermark_unix_ns=second_ns,
            views=views,
            findings=findings,
            heard=heard,
        )

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
            self._placement.apply(event)
        elif isinstance(event, TopologyEvent):
            for name, rack in event.racks.items():
                self._node(event.cluster, self._cluster.names.node(name)).rack = rack

    def _node(self, cluster: str, name: str) -> NodeContext:
        return self._nodes.setdefault(name, NodeContext(cluster, name))

    def _read_node(
        self,
        name: str,
        events: Sequence[AnyNodeEvent],
        second_ns: int,
        findings: list[Finding],
        views: list[View],
        gpus: list[Sample],
        hosts: list[Sample],
    ) -> None:
        """Sort one node's second by what reads it; lists are appended to."""
        node = self._node(events[0].cluster, name)
        node.heard_ns = max(node.heard_ns, events[-1].time_unix_ns)
        logs = LogSecond()
        scrapes: list[Sample] = []
        for event in events:
            if isinstance(event, GpuEvent):
                sample = self._samples.gpu(event, node)
                self._scraped[name] = event.time_unix_ns
                if sample is not None:
                    scrapes.append(sample)
                    for blindness in self._detectors.blindness:
                        blindness.run("scrape", name, sample[2])
            elif isinstance(event, NodeEvent):
                hosts.append(self._samples.host(event, node))
                views += host_views(self._placement, event, second_ns)
            elif isinstance(event, IbEvent):
                if any(p.state.upper().endswith("ACTIVE") for p in event.ports):
                    node.works("ib")
            elif isinstance(event, LogEvent):
                findings += self._line(event, node, logs)
        gpus += scrapes
        views += gpu_views(self._placement, self._samples.gpus, node, scrapes, second_ns)
        views += logs.views(name, second_ns)

    def _line(self, event: LogEvent, node: NodeContext, logs: LogSecond) -> list[Finding]:
        findings: list[Finding] = []
        if event.source in ("kernel", "system"):
            for detector in self._detectors.lines:
                findings += self._run(detector, event, node)
        elif event.job_id is not None:
            logs.take(event, self._placement.key_of(event.cluster, event.job_id))
        return findings

    def _judge(self, table: Table, samples: list[Sample]) -> list[Finding]:
        findings: list[Finding] = []
        for batch in batches(table, samples):
            for detector in self._detectors.samples:
                if detector.detector.scope == table.scope:
                    findings += self._run(detector, batch)
        return findings

    def _run(self, detector: Guarded, *args: object) -> list[Finding]:
        """The detector's findings about those whom its ``match`` means."""
        findings = detector.run("update", *args)
        match = detector.match
        if match is None:
            return findings
        return [f for f in findings if self._is_meant(match, f.subject, f.observed_unix_ns)]

    def _is_meant(self, match: Match, subject: Subject, time_ns: int) -> bool:
        name = subject.node or ""
        node = self._nodes.get(name)
        keys = self._placement.at(name, time_ns, (subject.gpu_index, subject.gpu_uuid))
        jobs = [self._placement.jobs[key] for key in keys]
        return accepts(match, [name], [node.gpu_model] if node else [], jobs)

    def _tick(self, second_ns: int) -> list[Finding]:
        findings: list[Finding] = []
        for scrape in (*self._detectors.scrapes, *self._detectors.blindness):
            for name, scraped_ns in sorted(self._scraped.items()):
                node = self._nodes[name]
                findings += self._run(scrape, node, scraped_ns, second_ns)
        return findings

    def failures(self) -> dict[str, int]:
        """How often each failing detector raised."""
        return self._detectors.failures()

    def snapshot(self) -> bytes:
        """The whole state."""
        return encode_state(
            NodeStageState(
                intake=self._intake.dump(),
                cluster=self._cluster.dump(),
                placement=self._placement,
                nodes=self._nodes,
                gpu_rows=self._samples.gpus.rows,
                gpu_subjects=self._samples.gpus.subjects,
                host_rows=self._samples.hosts.rows,
                host_subjects=self._samples.hosts.subjects,
                detectors=self._detectors.dump(),
                scraped=self._scraped,
                done_ns=self._done_ns,
            )
        )

    def restore(self, state: bytes) -> None:
        """Become what ``snapshot`` described."""
        known = decode_state(state, NodeStageState)
        self._intake.load(known.intake)
        self._cluster.load(known.cluster)
        self._placement, self._nodes = known.placement, known.nodes
        self._samples.gpus.rows, self._samples.gpus.subjects = known.gpu_rows, known.gpu_subjects
        self._samples.hosts.rows = known.host_rows
        self._samples.hosts.subjects = known.host_subjects
        self._scraped, self._done_ns = known.scraped, known.done_ns
        self._detectors.load(known.detectors)
