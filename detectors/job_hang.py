"""A running job that has stopped making progress."""

import numpy as np
from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.job_context import (
    DRAM,
    NVLINK,
    PCIE,
    SM,
    TENSOR,
    UTIL,
    Floats,
    Gpu,
    JobContext,
)
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding, Subject, Suspect

_COLLECTIVE = ("nccl_p2p", "nccl_shm", "nccl_net_ib", "nccl_socket")


class JobHangConfig(DetectorConfig, frozen=True, tag="job_hang", kw_only=True):
    """No step, and GPUs that only wait.

    ``spin_secs``: some GPUs spin in a collective and none computes, this long without a break.
    ``idle_secs``: a job that stepped before, and all its GPUs idle. Both are kept below a minute,
    since each minute of a large job costs hours of GPUs, and both grow to ``pause_factor`` times
    the longest pause that the job came back from. ``checkpoint_secs``: while a checkpoint that
    began has not ended (writing takes minutes for large models).
    """

    keep_firing_secs: float = 5.0
    spin_secs: float = 45.0
    idle_secs: float = 55.0
    pause_factor: float = 3.0
    checkpoint_secs: float = 600.0


class JobHangState(Struct):
    """One job: since when its GPUs spin or idle, and its longest pause so far."""

    spin_ns: int | None = None
    idle_ns: int | None = None
    longest_secs: float = 0.0
    saving_ns: int | None = None
    latch: LatchState = field(default_factory=LatchState)


class JobHang:
    """A rank that does not come to a collective leaves its peers spinning.

    Their utilisation is 1.0 with hardly an SM active and idle tensor cores; the one that is
    missing stands idle and is the first suspect. GPUs that compute are no hang, whatever the log.
    """

    job_state = JobHangState

    def __init__(self, config: JobHangConfig) -> None:
        self.config = config
        self.state: dict[str, JobHangState] = {}
        self._latch = Latch(config)

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Look at the tick's GPUs."""
        state = self.state.setdefault(job.key, JobHangState())
        self._saving(state, job, now_ns)
        condition = None
        if job.running() and job.gpus:
            condition = self._condition(state, job, now_ns)
        return self._latch.update(state.latch, [condition] if condition else [], now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        state = self.state.pop(job.key, None)
        return self._latch.close(state.latch, now_ns) if state else []

    def _saving(self, state: JobHangState, job: JobContext, now_ns: int) -> None:
        for mark in job.fresh_marks("checkpoint_begin", "checkpoint_end"):
            state.saving_ns = mark.time_unix_ns if mark.mark == "checkpoint_begin" else None
        if job.new_steps:
            state.saving_ns = None

    def _condition(self, state: JobHangState, job: JobContext, now_ns: int) -> Condition | None:
        second = job.second(now_ns)
        if np.isnan(second[:, UTIL]).all():
            return None  # no telemetry is another fault's business
        working = at_work(second)
        spinning = (second[:, UTIL] > 0.9) & ~working
        if job.new_steps or working.any():
            self._progress(state, job, now_ns)
            return None
        if spinning.any():
            if not (job.step_count or not spinning.all() or job.marks_since(0, *_COLLECTIVE)):
                return None  # one kernel that runs for ever may be what this job is for
            state.idle_ns = None
            state.spin_ns = state.spin_ns or now_ns
            since_ns, limit_secs = state.spin_ns, self.config.spin_secs
        else:
            state.spin_ns = None
            state.idle_ns = state.idle_ns or now_ns
            since_ns, limit_secs = state.idle_ns, self.config.idle_secs
            if job.step_count < 10 or self._host_works(job):
                return None
        return self._judge(state, job, now_ns, since_ns, limit_secs, spinning)

    def _progress(self, state: JobHangState, job: JobContext, now_ns: int) -> None:
        for since_ns in (state.spin_ns, state.idle_ns):
            if since_ns is not None and job.step_count:
                state.longest_secs = max(state.longest_secs, (now_ns - since_ns) / NS)
        state.spin_ns = state.idle_ns = None

    def _host_works(self, job: JobContext) -> bool:
        """Whether the hosts compute more than in health: compiling, preprocessing."""
        for node, before in job.healthy_cpu.items():
            busy = job.host.get(node, {}).get("cpu_busy_ratio")
            if busy is not None and busy > before + 0.01:
                return True
        return False

    def _judge(
        self,
        state: JobHangState,
        job: JobContext,
        now_ns: int,
        since_ns: int,
        limit_secs: float,
        spinning: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
    ) -> Condition | None:
        limit_secs = max(limit_secs, self.config.pause_factor * state.longest_secs)
        if state.saving_ns is not None:
            limit_secs = max(limit_secs, self.config.checkpoint_secs)
        pace_secs = 5 * (job.pace_secs or 0.0)
        waited_secs = (now_ns - since_ns) / NS
        if waited_secs < max(limit_secs, pace_secs):
            return None
        idle = [g for g, spins in zip(job.gpus, spinning, strict=True) if not spins]
        subject = job.subject()
        if spinning.any() and 0 < len(idle) <= max(1, len(job.gpus) // 8):
            subject = job.gpu_subject(idle[0])
        return Condition(
            cause="job_hang",
            subject=subject,
            onset_unix_ns=since_ns,
            value=waited_secs,
            threshold=limit_secs,
            unit="seconds without progress",
            score=waited_secs / limit_secs,
            evidence=_evidence(job, waited_secs, job.second(now_ns), idle, bool(spinning.any())),
            suspects=[_suspect(job, gpu) for gpu in idle[:8]] if spinning.any() else [],
        )


def at_work(second: Floats) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """``bool[gpus]``: whether a GPU computes or moves data, rather than idles or spins.

    A rank that spins in a collective on an H200 reads SM active 0.01 to 0.18, no tensor or memory
    work, and no traffic; idle links of PCIe read 3 MB/s.
    """
    moves = (second[:, NVLINK] > 1e8) | (second[:, PCIE] > 3e7) | (second[:, DRAM] > 0.02)
    blind = np.isnan(second[:, SM]) & (second[:, UTIL] > 0.05)
    return (second[:, TENSOR] > 0.01) | (second[:, SM] > 0.3) | moves | blind


def _suspect(job: JobContext, gpu: Gpu) -> Suspect:
    subject: Subject = job.gpu_subject(gpu)
    return Suspect(subject, "idle while its peers wait in a collective")


def _evidence(job: JobContext, secs: float, second: Floats, idle: list[Gpu], spinning: bool) -> str:
    if not spinning:
        return f"no step and all {len(job.gpus)} GPUs idle for {secs:.0f} s"
    waiting = len(job.gpus) - len(idle)
    sm = float(np.nanmax(second[:, SM])) if not np.isnan(second[:, SM]).all() else 0.0
    return (
        f"no step for {secs:.0f} s; {waiting} of {len(job.gpus)} GPUs spin"
        f" (utilisation 1.0, SMs {sm:.0%} active, no tensor work)"
    )
