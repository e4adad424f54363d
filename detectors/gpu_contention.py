"""Processes on a job's GPUs that are not the job's."""

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.job_context import Gpu, JobContext
from stethoscope.detectors.job_health import HEALTHY_SECS
from stethoscope.detectors.slowness import strangers
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding


class GpuContentionConfig(DetectorConfig, frozen=True, tag="gpu_contention", kw_only=True):
    """A stranger on a GPU of a job that steps, for ``for_secs``.

    Starting and ending jobs overlap for seconds, and a glance with a tool lasts as long: hence the
    hold. By itself it is ``info``; where the job slows down, ``step_time`` says the same cause
    aloud and both become one incident.
    """

    for_secs: float = 5.0
    keep_firing_secs: float = 5.0


class GpuContentionState(Struct):
    """Levels of each job. Bound: jobs running."""

    jobs: dict[str, LatchState] = field(default_factory=dict)


class GpuContention:
    """More processes on a GPU than the job has ranks there, or than it had in health."""

    def __init__(self, config: GpuContentionConfig) -> None:
        self.config = config
        self.state = GpuContentionState()
        self._latch = Latch(config)

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Look at the tick's process counts."""
        conditions = []
        if job.step_count and job.healthy_secs >= HEALTHY_SECS:
            conditions = [_condition(job, now_ns, *s) for s in strangers(job, now_ns)]
        state = self.state.jobs.setdefault(job.key, LatchState())
        return self._latch.update(state, conditions, now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        state = self.state.jobs.pop(job.key, None)
        return self._latch.close(state, now_ns) if state else []


def _condition(job: JobContext, now_ns: int, gpu: Gpu, count: int, own: int) -> Condition:
    return Condition(
        cause="gpu_contention",
        subject=job.gpu_subject(gpu),
        onset_unix_ns=now_ns,
        value=float(count),
        threshold=float(own),
        unit="processes",
        evidence=f"{count} processes on GPU {gpu.index} of {gpu.node}, {own} of them the job's;"
        " no step was slowed so far",
        severity="info",
    )
