"""Processes that outlived their job."""

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.job_context import JobContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.events import Process
from stethoscope.schemas.findings import Finding, Subject


class OrphanProcessConfig(DetectorConfig, frozen=True, tag="orphan_process", kw_only=True):
    """A process of a job that ended ``for_secs`` ago, still alive on its GPU.

    Slurm sends SIGKILL 30 s after the end (KillWait); twice that and it will not go by itself. It
    holds GPU memory that the next job will miss.
    """

    for_secs: float = 60.0
    keep_firing_secs: float = 15.0


class OrphanProcessState(Struct):
    """Levels of each ended job. Bound: jobs that ended within ten minutes or left processes."""

    jobs: dict[str, LatchState] = field(default_factory=dict)


class OrphanProcess:
    """Watches ended jobs: which of their processes are still there.

    The finding is of the GPU, not of the old job: who suffers is the job that is there now.
    """

    def __init__(self, config: OrphanProcessConfig) -> None:
        self.config = config
        self.state = OrphanProcessState()
        self._latch = Latch(config)

    def after(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Look at an ended job."""
        conditions = [
            _condition(job, node, process)
            for node, processes in sorted(job.processes.items())
            for process in processes
            if process.job_id == job.job_id and process.alive
        ]
        state = self.state.jobs.setdefault(job.key, LatchState())
        return self._latch.update(state, conditions, now_ns)

    def forget(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job is no longer watched."""
        state = self.state.jobs.pop(job.key, None)
        return self._latch.close(state, now_ns) if state else []


def _condition(job: JobContext, node: str, process: Process) -> Condition:
    place = job.rank_subject(process.rank) if process.rank is not None else None
    ended_ns = job.ended_ns or 0
    return Condition(
        cause="gpu_contention",
        subject=Subject(
            cluster=job.cluster,
            node=node,
            gpu_uuid=process.gpu_uuid or (place.gpu_uuid if place else None),
            gpu_index=place.gpu_index if place else None,
            pid=process.pid if place is None else None,
        ),
        onset_unix_ns=ended_ns,
        score=1.0,
        evidence=f"pid {process.pid} ({process.name}) of job {job.job_id}, which ended, is alive",
    )
