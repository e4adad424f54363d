"""The job stage: one second of every job, looked at by the job detectors."""

from collections.abc import Iterable

from msgspec import Struct, structs

from stethoscope.correlation.placement import Placement
from stethoscope.detectors.job_context import (
    JobContext,
    begin_second,
    place,
    survivors,
    take_gpus,
    take_host,
    take_log,
)
from stethoscope.detectors.job_health import learn_healthy, settle_pace
from stethoscope.schemas.events import Event, JobEvent
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.job_states import ended_ns
from stethoscope.schemas.views import Envelope, GpuView, HostView, View
from stethoscope.streams.cluster_events import ClusterEvents, ClusterEventsState
from stethoscope.streams.matching import accepts
from stethoscope.streams.sources import Sources, SourcesState
from stethoscope.streams.state_codec import decode_state, encode_state
from stethoscope.streams.wiring import Detectors, Guarded

# The scheduler may say that a job ended before its last lines come: wait that long for them.
LAST_LINES_SECS = 3
WATCH_ENDED_SECS = 600
SILENT_SECS = 3600


class JobStageState(Struct):
    """Everything a restart needs.

    Bound: running jobs, those that ended ten minutes ago, and those that only a log named within
    the hour.
    """

    sources: SourcesState
    cluster: ClusterEventsState
    placement: Placement
    jobs: dict[str, JobContext]
    closed: list[str]
    detectors: dict[str, bytes]


class JobStage:
    """One job-view partition. See ``stages.EnvelopeStage``."""

    def __init__(self, detectors: Detectors, expects: list[str], source: str = "job/0") -> None:
        self.source = source
        self._detectors = detectors
        self._sources = Sources(expects, "views")
        self._cluster = ClusterEvents()
        self._placement = Placement()
        self._jobs: dict[str, JobContext] = {}
        self._closed: set[str] = set()

    def push(self, envelope: Envelope) -> None:
        """A second of a node stage."""
        self._sources.push(envelope)

    def push_cluster(self, events: Iterable[Event]) -> None:
        """``job``, ``topology`` and ``clock`` events."""
        self._cluster.push(events)

    def set_frontier(self, jobs_unix_ns: int | None) -> None:
        """Release nothing later than this."""
        self._cluster.frontier_ns = jobs_unix_ns

    def advance(self) -> list[Envelope]:
        """One envelope for each second that every node stage has passed."""
        return [
            Envelope(
                source=self.source,
                watermark_unix_ns=second_ns,
                findings=self._second(second_ns, views),
            )
            for second_ns, views in self._sources.views_upto(self._cluster.frontier_ns)
        ]

    def _second(self, second_ns: int, views: list[View]) -> list[Finding]:
        for event in self._cluster.upto(second_ns):
            if isinstance(event, JobEvent):
                self._place(event, second_ns)
        for job in self._jobs.values():
            begin_second(job, second_ns)
        for view in views:
            self._take(view, second_ns)
        findings: list[Finding] = []
        for key in sorted(self._jobs):
            findings += self._look(self._jobs[key], second_ns)
        return findings

    def _place(self, event: JobEvent, second_ns: int) -> None:
        before = self._placement.key_of(event.cluster, event.job_id)
        key = self._placement.apply(event)
        if before != key and before in self._jobs:
            self._replace(self._jobs[before], second_ns)
        if key is None:
            return
        placed = self._placement.jobs[key]
        if key not in self._jobs:
            if ended_ns(placed) is not None:
                return  # ended before we ever saw it run
            start_ns = placed.start_unix_ns or placed.time_unix_ns
            self._jobs[key] = JobContext(key, placed.cluster, placed.job_id, start_ns)
        place(self._jobs[key], placed)

    def _replace(self, job: JobContext, second_ns: int) -> None:
        """Another run took its place, or what only a log had named now has a placement."""
        placed = self._placement.jobs.get(job.key)
        if placed is None:
            job.ended_ns = second_ns
        else:
            place(job, placed)

    def _take(self, view: View, second_ns: int) -> None:
        job = self._jobs.get(view.job)
        if job is None:
            if "@?" not in view.job:
                return  # a run of another partition, or one that ended long ago
            cluster, name = view.job.split("/", 1)
            job_id = name.removesuffix(".0@?")
            job = self._jobs[view.job] = JobContext(view.job, cluster, job_id, second_ns)
        if isinstance(view, GpuView):
            take_gpus(job, view, second_ns)
        elif isinstance(view, HostView):
            take_host(job, view)
        else:
            take_log(job, view)

    def _look(self, job: JobContext, second_ns: int) -> list[Finding]:
        settle_pace(job)
        findings: list[Finding] = []
        if job.key not in self._closed:
            for detector in self._detectors.jobs:
                findings += _run(detector, "update", job, second_ns)
            learn_healthy(job, second_ns)
        if job.ended_ns is None and job.event is None and _is_quiet(job, second_ns):
            job.ended_ns = second_ns
        if job.ended_ns is None:
            return findings
        ended_secs = (second_ns - job.ended_ns) / NS
        if job.key not in self._closed and ended_secs >= LAST_LINES_SECS:
            self._closed.add(job.key)
            for detector in self._detectors.jobs:
                findings += _ended_by(_run(detector, "close", job, second_ns), job)
        for detector in self._detectors.ended_jobs:
            findings += _run(detector, "after", job, second_ns)
        if ended_secs > WATCH_ENDED_SECS and not survivors(job, second_ns - WATCH_ENDED_SECS * NS):
            findings += self._forget(job, second_ns)
        return findings

    def _forget(self, job: JobContext, second_ns: int) -> list[Finding]:
        findings: list[Finding] = []
        for detector in self._detectors.ended_jobs:
            findings += _run(detector, "forget", job, second_ns)
        del self._jobs[job.key]
        self._closed.discard(job.key)
        self._placement.prune(second_ns)
        return findings

    def failures(self) -> dict[str, int]:
        """How often each failing detector raised."""
        return self._detectors.failures()

    def snapshot(self) -> bytes:
        """The whole state."""
        return encode_state(
            JobStageState(
                sources=self._sources.state,
                cluster=self._cluster.dump(),
                placement=self._placement,
                jobs=self._jobs,
                closed=sorted(self._closed),
                detectors=self._detectors.dump(),
            )
        )

    def restore(self, state: bytes) -> None:
        """Become what ``snapshot`` described."""
        known = decode_state(state, JobStageState)
        self._sources.state = known.sources
        self._cluster.load(known.cluster)
        self._placement, self._jobs = known.placement, known.jobs
        self._closed = set(known.closed)
        self._detectors.load(known.detectors)


def _is_quiet(job: JobContext, second_ns: int) -> bool:
    """Whether a job that only a log names, so that nobody will say its end, fell silent."""
    heard_ns = [job.first_seen_ns, *(s[-1].time_unix_ns for s in (job.steps, job.marks) if s)]
    return second_ns - max(heard_ns) > SILENT_SECS * NS


def _ended_by(findings: list[Finding], job: JobContext) -> list[Finding]:
    """Levels end with their job at the latest, though its last lines were waited for."""
    return [
        structs.replace(f, ended_unix_ns=min(f.ended_unix_ns, job.ended_ns))
        if f.ended_unix_ns is not None and job.ended_ns is not None
        else f
        for f in findings
    ]


def _run(detector: Guarded, verb: str, job: JobContext, second_ns: int) -> list[Finding]:
    """The detector's findings, where its ``match`` means this job."""
    if detector.match is not None:
        jobs = [job.event] if job.event else []
        if not accepts(detector.match, job.nodes(), [job.gpu_model], jobs):
            return []
    return detector.run(verb, job, second_ns)
