"""The three stages as one object: what ``replay`` runs, and what the worker runs in pieces.

>>> from stethoscope.streams.config import Config
>>> changes = Pipeline(Config()).feed([])
>>> changes.findings, changes.incidents
([], [])
"""

from collections.abc import Iterable

from msgspec import Struct, field

from stethoscope.detectors.registry import DETECTORS
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.events import ClockEvent, Event, JobEvent, TopologyEvent
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.incidents import Incident
from stethoscope.streams.cluster_stage import ClusterStage
from stethoscope.streams.config import Config
from stethoscope.streams.intake import Counts
from stethoscope.streams.job_stage import JobStage
from stethoscope.streams.node_stage import NodeStage
from stethoscope.streams.wiring import Detectors

_NODE_READERS = frozenset({"samples", "lines", "ports", "scrapes", "blindness", "clocks"})
_JOB_READERS = frozenset({"jobs", "ended_jobs"})
_CLUSTER_READERS = frozenset({"nodes"})


class Changes(Struct):
    """What a batch of events led to, in order."""

    findings: list[Finding] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)


class StageFactory:
    """Makes stages of one configuration; every stage gets detectors of its own."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def node_stage(self, source: str) -> NodeStage:
        """The stage of one telemetry and logs partition."""
        return NodeStage(Detectors(self._reading(_NODE_READERS)), self._config.timing, source)

    def job_stage(self, source: str, expects: list[str]) -> JobStage:
        """The stage of one job-view partition, waiting for the node stages ``expects``."""
        return JobStage(Detectors(self._reading(_JOB_READERS)), expects, source)

    def cluster_stage(self, expects: list[str]) -> ClusterStage:
        """The one stage that makes incidents, waiting for the stages ``expects``."""
        detectors = Detectors(self._reading(_CLUSTER_READERS))
        return ClusterStage(detectors, self._config.correlation, self._config.severity, expects)

    def _reading(self, what: frozenset[str]) -> list[DetectorConfig]:
        return [
            config
            for config in self._config.detectors
            if DETECTORS[str(config.__struct_config__.tag)].reads in what
        ]


def make_stages(config: Config) -> StageFactory:
    """The stages that ``config`` describes."""
    return StageFactory(config)


class Pipeline:
    """Events in, findings and incidents out; one process, no Kafka.

    The same events in any order within ``reorder_secs`` give the same output. ``rejects`` holds
    what could not be used as (reason, detail); the caller drains it.
    """

    def __init__(self, config: Config) -> None:
        stages = make_stages(config)
        self._node = stages.node_stage("node/0")
        self._job = stages.job_stage("job/0", ["node/0"])
        self._cluster = stages.cluster_stage(["node/0", "job/0"])
        self._second = 0
        self.rejects: list[tuple[str, str]] = []

    @property
    def counts(self) -> Counts:
        """Totals of what came in."""
        return self._node.counts

    def failures(self) -> dict[str, int]:
        """How often each detector that failed raised; the others went on."""
        return {**self._node.failures(), **self._job.failures(), **self._cluster.failures()}

    def feed(self, events: Iterable[Event]) -> Changes:
        """Take events in; give what follows from the seconds that they complete."""
        changes = Changes()
        for event in events:
            if isinstance(event, JobEvent | TopologyEvent):
                for stage in (self._node, self._job, self._cluster):
                    stage.push_cluster([event])
                continue
            self._node.push([event])
            second = self._node.newest_ns // NS  # not the event's: its clock may be wrong
            if second > self._second or isinstance(event, ClockEvent):
                self._second = second
                self._advance(changes)
        return changes

    def finish(self) -> Changes:
        """The input ends: release what is held; what is open stays open."""
        self._node.end()
        changes = Changes()
        self._advance(changes)
        last = self._node.flush()
        if last is not None:
            self._job.push(last)
            self._cluster.push(last)
        self._advance(changes)
        return changes

    def _advance(self, changes: Changes) -> None:
        for envelope in self._node.advance():
            self._job.push(envelope)
            self._cluster.push(envelope)
        for envelope in self._job.advance():
            self._cluster.push(envelope)
        changes.incidents += self._cluster.advance()
        changes.findings += self._cluster.drain_findings()
        self.rejects += [(r.reason, r.detail) for r in self._node.drain_rejects()]
