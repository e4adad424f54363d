"""A running job that has stopped making progress."""

import numpy as np
from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.job_context import (
    HEARD_SECS,
    LOOK_BACK_SECS,
    SM,
    UTIL,
    Floats,
    Gpu,
    JobContext,
)
from stethoscope.detectors.waiting import Bools, at_work, is_few, missing, spins
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding, Suspect

_DISK, _NETWORK = "disk_write_bytes_per_sec", "network_tx_bytes_per_sec"
_COLLECTIVE = ("nccl_p2p", "nccl_shm", "nccl_net_ib", "nccl_socket")


class JobHangConfig(DetectorConfig, frozen=True, tag="job_hang", kw_only=True):
    """No step, and GPUs that only wait.

    ``wait_secs``: some GPUs spin in a collective (or, in a job that stepped before, all idle) and
    none computes, this long without a break. Below a minute, since each minute of a large job
    costs hours of GPUs; it grows to ``pause_factor`` times the longest pause that the job came back
    from. ``checkpoint_secs``: while a checkpoint that began has not ended (large models take
    minutes), or a host of the job writes at least ``write_bytes_per_sec``, to a disk or to the
    network: a save that nobody announced. ``silent_secs``: no step for so long, whatever the GPUs
    do.
    """

    keep_firing_secs: float = 5.0
    wait_secs: float = 50.0
    pause_factor: float = 3.0
    checkpoint_secs: float = 600.0
    write_bytes_per_sec: float = 50e6
    silent_secs: float = 1200.0


class JobHangState(Struct):
    """One job: since when no GPU works and some spin, or all idle; its longest pause; a save.

    ``saving_ns``: when the save under way was announced; ``written_ns``: when a host last wrote.
    """

    spin_ns: int | None = None
    idle_ns: int | None = None
    longest_secs: float = 0.0
    saving_ns: int | None = None
    written_ns: int = 0
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
        self._saving(state, job)
        condition = self._condition(state, job, now_ns) if job.running() else None
        return self._latch.update(state.latch, [condition] if condition else [], now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        state = self.state.pop(job.key, None)
        return self._latch.close(state.latch, now_ns) if state else []

    def _saving(self, state: JobHangState, job: JobContext) -> None:
        for mark in job.fresh_marks("checkpoint_begin", "checkpoint_end"):
            state.saving_ns = mark.time_unix_ns if mark.mark == "checkpoint_begin" else None
            if mark.mark == "checkpoint_end":
                state.spin_ns = max(state.spin_ns, mark.time_unix_ns) if state.spin_ns else None
                state.idle_ns = max(state.idle_ns, mark.time_unix_ns) if state.idle_ns else None
        steps = job.fresh_steps()  # the line of the step before the save stands in its second
        if state.saving_ns is not None and steps and steps[-1].time_unix_ns > state.saving_ns:
            state.saving_ns = None

    def _condition(self, state: JobHangState, job: JobContext, now_ns: int) -> Condition | None:
        lately = job.latest(now_ns, LOOK_BACK_SECS)
        working = bool(at_work(lately, job.healthy).any())
        if job.new_steps or working:
            self._came_back(state, job, now_ns)
            return self._silent(state, job, now_ns, "though GPUs compute")
        if not np.isnan(lately[:, UTIL]).all():
            still = self._still(state, job, lately, now_ns)
            return still or self._silent(state, job, now_ns, "and no GPU computes")
        if not np.isnan(job.healthy[:, UTIL]).all():
            return None  # telemetry that was there and is gone is another fault's business
        return self._silent(state, job, now_ns, "and nothing is known of its GPUs")

    def _still(
        self, state: JobHangState, job: JobContext, lately: Floats, now_ns: int
    ) -> Condition | None:
        """GPUs of which none works, for too long."""
        spinning = spins(lately)
        since_ns = self._since(state, bool(spinning.any()), now_ns)
        if not self._is_telling(job, spinning):
            return None
        limit_secs = self._limit_secs(state, job)
        waited_secs = (now_ns - since_ns) / NS
        if self._host_writes(job, now_ns):
            state.written_ns = now_ns
        quiet_secs = (now_ns - max(since_ns, state.written_ns)) / NS
        if quiet_secs < limit_secs and waited_secs < max(limit_secs, self.config.checkpoint_secs):
            return None
        return _condition(job, since_ns, waited_secs, limit_secs, lately)

    def _since(self, state: JobHangState, some_spin: bool, now_ns: int) -> int:
        """Since when it is like this; a job that idles at its start does not spin yet."""
        if some_spin:
            state.idle_ns, state.spin_ns = None, state.spin_ns or now_ns
            return state.spin_ns
        state.spin_ns, state.idle_ns = None, state.idle_ns or now_ns
        return state.idle_ns

    def _came_back(self, state: JobHangState, job: JobContext, now_ns: int) -> None:
        still_ns = state.spin_ns or state.idle_ns
        if still_ns is not None and job.step_count > job.new_steps:  # the start is no pause
            state.longest_secs = max(state.longest_secs, (now_ns - still_ns) / NS)
        state.spin_ns = state.idle_ns = None

    def _is_telling(self, job: JobContext, spinning: Bools) -> bool:
        """Whether stillness means something: a job may begin, compile, or be one endless kernel."""
        if spinning.any():
            known = job.step_count > 0 or bool(job.marks_since(0, *_COLLECTIVE))
            return known or not spinning.all()
        return job.step_count >= 10 and not self._host_works(job)

    def _limit_secs(self, state: JobHangState, job: JobContext) -> float:
        paused_secs = self.config.pause_factor * state.longest_secs
        return max(self.config.wait_secs, paused_secs, self._saving_secs(state))

    def _saving_secs(self, state: JobHangState) -> float:
        """How long a save that was announced may take; 0 where none is under way."""
        return self.config.checkpoint_secs if state.saving_ns is not None else 0.0

    def _host_works(self, job: JobContext) -> bool:
        """Whether the hosts compute more than in health: compiling, preprocessing."""
        for node, before in job.healthy_cpu.items():
            busy = job.host.get(node, {}).get("cpu_busy_ratio")
            if busy is not None and busy > before + 0.01:
                return True
        return False

    def _host_writes(self, job: JobContext, now_ns: int) -> bool:
        """Whether a host of the job that is still heard writes as a save does."""
        heard_ns = now_ns - HEARD_SECS * NS
        return any(
            max(host.get(_DISK) or 0.0, host.get(_NETWORK) or 0.0)
            >= self.config.write_bytes_per_sec
            for node, host in job.host.items()
            if job.host_ns.get(node, 0) >= heard_ns
        )

    def _silent(
        self, state: JobHangState, job: JobContext, now_ns: int, gpus_do: str
    ) -> Condition | None:
        """No step for very long, whatever the GPUs do: an endless loop, not an evaluation."""
        last_ns = job.last_step_ns()
        if last_ns is None or job.step_count < 10:
            return None
        paces_secs = 50 * (job.pace_secs or 0.0)
        limit_secs = max(self.config.silent_secs, paces_secs, self._saving_secs(state))
        waited_secs = (now_ns - last_ns) / NS
        if waited_secs < limit_secs:
            return None
        evidence = f"no step for {waited_secs:.0f} s, {gpus_do}"
        return Condition(
            cause="job_hang",
            subject=job.subject(),
            onset_unix_ns=last_ns,
            value=waited_secs,
            threshold=limit_secs,
            unit="seconds without progress",
            score=waited_secs / limit_secs,
            evidence=evidence,
        )


def _condition(
    job: JobContext, since_ns: int, waited_secs: float, limit_secs: float, lately: Floats
) -> Condition:
    idle, waiting = missing(job, lately), int(spins(lately).sum())
    subject = job.subject()
    if waiting and idle and is_few(job, idle):
        subject = job.gpu_subject(idle[0])
    return Condition(
        cause="job_hang",
        subject=subject,
        onset_unix_ns=since_ns,
        value=waited_secs,
        threshold=limit_secs,
        unit="seconds without progress",
        score=waited_secs / limit_secs,
        evidence=_evidence(job, waited_secs, lately, waiting),
        suspects=[_suspect(job, gpu) for gpu in idle[:8]] if waiting else [],
    )


def _suspect(job: JobContext, gpu: Gpu) -> Suspect:
    return Suspect(job.gpu_subject(gpu), "idle while its peers wait in a collective")


def _evidence(job: JobContext, secs: float, lately: Floats, waiting: int) -> str:
    if not waiting:
        return f"no step and all {len(job.gpus)} GPUs idle for {secs:.0f} s"
    sm = float(np.nan_to_num(lately[:, SM]).max())
    return (
        f"no step for {secs:.0f} s; {waiting} of {len(job.gpus)} GPUs spin"
        f" (utilisation 1.0, SMs {sm:.0%} active, no tensor work)"
    )
