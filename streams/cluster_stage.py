"""The cluster stage: findings of all stages to incidents."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from stethoscope.correlation.correlator import Correlator, CorrelatorState
from stethoscope.correlation.placement import Placement
from stethoscope.schemas.config import Correlation
from stethoscope.schemas.events import Event, JobEvent
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.incidents import Incident, Severity
from stethoscope.schemas.views import Envelope
from stethoscope.streams.cluster_events import ClusterEvents, ClusterEventsState
from stethoscope.streams.sources import Sources, SourcesState
from stethoscope.streams.state_codec import decode_state, encode_state
from stethoscope.streams.wiring import Detectors


class ClusterStageState(Struct):
    """Everything a restart needs."""

    sources: SourcesState
    cluster: ClusterEventsState
    placement: Placement
    correlator: CorrelatorState
    heard: dict[str, int]
    detectors: dict[str, bytes]


class ClusterStage:
    """One per cluster. See ``stages.IncidentStage``."""

    def __init__(
        self,
        detectors: Detectors,
        config: Correlation,
        severity: Mapping[str, Severity],
        expects: list[str],
    ) -> None:
        self._detectors = detectors
        self._heard: dict[str, int] = {}
        self._correlator = Correlator(config, severity)
        self._sources = Sources(expects, "findings")
        self._cluster = ClusterEvents()
        self.findings: list[Finding] = []

    def push(self, envelope: Envelope) -> None:
        """A second of a node or job stage."""
        self._sources.push(envelope)

    def push_cluster(self, events: Iterable[Event]) -> None:
        """``job``, ``topology`` and ``clock`` events."""
        self._cluster.push(events)

    def set_frontier(self, jobs_unix_ns: int | None) -> None:
        """Release nothing later than this."""
        self._cluster.frontier_ns = jobs_unix_ns

    def advance(self) -> list[Incident]:
        """Incidents that changed in the seconds that every stage has passed, in order."""
        changed: list[Incident] = []
        for second_ns, findings, heard in self._sources.findings_upto(self._cluster.frontier_ns):
            for event in self._cluster.upto(second_ns):
                if isinstance(event, JobEvent):
                    self._correlator.job(event)
            findings += self._absences(heard, second_ns)
            for finding in findings:
                self._correlator.take(finding)
            self.findings += findings
            changed += self._correlator.tick(second_ns)
        return changed

    def _absences(self, heard: dict[str, int], second_ns: int) -> list[Finding]:
        for name, heard_ns in heard.items():
            self._heard[name] = max(heard_ns, self._heard.get(name, 0))
        self._rename()
        findings: list[Finding] = []
        for detector in self._detectors.nodes:
            findings += detector.run("update", dict(sorted(self._heard.items())), second_ns)
        return findings

    def _rename(self) -> None:
        """A node first heard under a name that a job or topology spells differently is one node."""
        for name in list(self._heard):
            cluster, node = name.split("/", 1)
            known = f"{cluster}/{self._cluster.names.node(node)}"
            if known != name:
                heard_ns = self._heard.pop(name)
                self._heard[known] = max(heard_ns, self._heard.get(known, 0))

    def failures(self) -> dict[str, int]:
        """How often each failing detector raised."""
        return self._detectors.failures()

    def drain_findings(self) -> list[Finding]:
        """Findings taken since the last call, in order."""
        findings, self.findings = self.findings, []
        return findings

    def open_incidents(self) -> list[Incident]:
        """What is open now."""
        return self._correlator.open_incidents()

    def snapshot(self) -> bytes:
        """The whole state."""
        return encode_state(
            ClusterStageState(
                sources=self._sources.state,
                cluster=self._cluster.dump(),
                placement=self._correlator.placement,
                correlator=self._correlator.state,
                heard=self._heard,
                detectors=self._detectors.dump(),
            )
        )

    def restore(self, state: bytes) -> None:
        """Become what ``snapshot`` described."""
        known = decode_state(state, ClusterStageState)
        self._sources.state = known.sources
        self._cluster.load(known.cluster)
        self._correlator.placement = known.placement
        self._correlator.state = known.correlator
        self._heard = known.heard
        self._detectors.load(known.detectors)
