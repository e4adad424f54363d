"""Processes that outlived their job."""

from msgspec import Struct, field, structs

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.job_context import JobContext, survivors
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.events import Process
from stethoscope.schemas.findings import NS, Finding, Subject

HELD_SECS = 150  # what a host said holds so long: agents send once a minute at the least


class OrphanProcessConfig(DetectorConfig, frozen=True, tag="orphan_process", kw_only=True):
    """A process of a job that ended ``for_secs`` ago, still alive on its GPU.

    Slurm sends SIGKILL 30 s after the end (KillWait); twice that and it will not go by itself. It
    holds GPU memory that the next job will miss.
    """

    for_secs: float = 60.0
    keep_firing_secs: float = 15.0


class OrphanProcessState(Struct):
    """Levels of each ended job, and its nodes where it left more than one process.

    Bound: jobs that ended within ten minutes or left processes.
    """

    jobs: dict[str, LatchState] = field(default_factory=dict)
    several: dict[str, list[str]] = field(default_factory=dict)


class OrphanProcess:
    """Watches ended jobs: which of their processes are still there. One finding a job and node.

    The finding is of the GPU, or of the node where several are held, not of the old job: who
    suffers is the job that is there now.
    """

    def __init__(self, config: OrphanProcessConfig) -> None:
        self.config = config
        self.state = OrphanProcessState()
        self._latch = Latch(structs.replace(config, for_secs=0.0))  # it counts from the job's end

    def after(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Look at an ended job."""
        conditions = []
        if job.ended_ns is not None:
            due_ns = job.ended_ns + int(self.config.for_secs * NS)
            left = survivors(job, max(due_ns, now_ns - HELD_SECS * NS))
            conditions = [self._condition(job, node, ps) for node, ps in left.items()]
        state = self.state.jobs.setdefault(job.key, LatchState())
        return self._latch.update(state, conditions, now_ns)

    def forget(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job is no longer watched."""
        self.state.several.pop(job.key, None)
        state = self.state.jobs.pop(job.key, None)
        return self._latch.close(state, now_ns) if state else []

    def _condition(self, job: JobContext, node: str, left: list[Process]) -> Condition:
        several = self.state.several.setdefault(job.key, [])
        if len(left) > 1 and node not in several:
            several.append(node)
        one = left[0]
        pids = ", ".join(str(process.pid) for process in left[:8])
        more = f" and {len(left) - 8} more" if len(left) > 8 else ""
        alive = "is alive" if len(left) == 1 else "are alive"
        return Condition(
            cause="gpu_contention",
            subject=(
                Subject(cluster=job.cluster, node=node)
                if node in several
                else _where(job, node, one)
            ),
            onset_unix_ns=job.ended_ns or 0,
            score=1.0,
            evidence=f"pid {pids}{more} ({one.name}) of job {job.job_id}, which ended, {alive}",
        )


def _where(job: JobContext, node: str, process: Process) -> Subject:
    place = job.rank_subject(process.rank) if process.rank is not None else None
    return Subject(
        cluster=job.cluster,
        node=node,
        gpu_uuid=process.gpu_uuid or (place.gpu_uuid if place else None),
        gpu_index=place.gpu_index if place else None,
        pid=process.pid if place is None else None,
    )
