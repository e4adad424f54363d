"""Steps that wait: many pauses of a job that has just stepped without."""

import statistics

import numpy as np
from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.job_context import RECENT_SECS, TENSOR, UTIL, JobContext, nan_mean
from stethoscope.detectors.job_health import HEALTHY_SECS
from stethoscope.detectors.step_time import iterations_of, step_secs
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.views import Step

MAX_TYPICAL = 200
HABIT_SECS = 60
SETTLED_SECS = 10.0
LONGEST_WINDOWS = 4  # rarer and longer pauses, the same share lost: this many windows back


class DataStallConfig(DetectorConfig, frozen=True, tag="data_stall", kw_only=True):
    """A stall: one step (or gap between lines) of ``stall_ratio`` times the median or more.

    At least ``stalls`` of them in ``window_secs`` (longer pauses: in four times that), losing
    ``lost_ratio`` of the time or more, and at least twice what the job lost before. Three pauses
    tell a pattern from a single hiccup; a quarter of the time lost is what an owner would get up
    for.
    """

    keep_firing_secs: float = 5.0
    stall_ratio: float = 4.0
    stalls: int = 3
    window_secs: float = 15.0
    lost_ratio: float = 0.25


class Stall(Struct, array_like=True):
    """A pause that nothing explains: when it ended, and the time lost."""

    time_unix_ns: int
    lost_secs: float


class DataStallState(Struct):
    """One job: typical step times (200), stalls of the last four minutes, the last line."""

    typical: list[float] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    first_ns: int | None = None
    last: Step | None = None
    latch: LatchState = field(default_factory=LatchState)


class DataStall:
    """Repeated pauses between or inside steps, with idle GPUs, that the log does not explain.

    A checkpoint, an evaluation, a count that begins anew explain a pause. A job that has always
    paused like this is not stalled, it is like that.
    """

    job_state = DataStallState

    def __init__(self, config: DataStallConfig) -> None:
        self.config = config
        self.state: dict[str, DataStallState] = {}
        self._latch = Latch(config)

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Look at the tick's steps."""
        state = self.state.setdefault(job.key, DataStallState())
        for step in job.fresh_steps():
            self._take(state, job, step)
        window_ns = int(self.config.window_secs * NS)
        longest_ns = LONGEST_WINDOWS * window_ns
        keep_ns = now_ns - 3 * longest_ns - HABIT_SECS * NS
        state.stalls = [s for s in state.stalls if s.time_unix_ns > keep_ns]
        lately = [s for s in state.stalls if s.time_unix_ns > now_ns - window_ns]
        if len(lately) >= 2:
            job.disturbed_ns = now_ns
        if len(lately) < self.config.stalls:
            newest = state.stalls[-self.config.stalls :]
            lately = [s for s in newest if s.time_unix_ns > now_ns - longest_ns]
        condition = self._condition(state, job, lately, now_ns)
        return self._latch.update(state.latch, [condition] if condition else [], now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        state = self.state.pop(job.key, None)
        return self._latch.close(state.latch, now_ns) if state else []

    def _take(self, state: DataStallState, job: JobContext, step: Step) -> None:
        last, state.last = state.last, step
        if last is None or state.first_ns is None:
            state.first_ns = step.time_unix_ns
            return
        if step.loss is None and last.loss is None and step.work != last.work:
            state.typical.clear()  # another bar: the trainer's and the evaluation's look alike
            return
        secs = step_secs(step, last)
        gap_secs = (step.time_unix_ns - last.time_unix_ns) / NS
        if secs is None or step.time_unix_ns == job.segment_ns:
            return
        iterations = iterations_of(step, last) or 1
        usual = statistics.median(state.typical) if len(state.typical) >= 10 else None
        if usual is not None and self._is_stall(secs, gap_secs, iterations, usual):
            if not job.is_pause(last.time_unix_ns, step.time_unix_ns):
                lost = max(secs, gap_secs) - usual
                state.stalls.append(Stall(step.time_unix_ns, lost))
            return
        state.typical.append(secs)
        del state.typical[:-MAX_TYPICAL]

    def _is_stall(self, secs: float, gap_secs: float, iterations: int, usual: float) -> bool:
        """One long step, or one among the several that a line tells of.

        Such a line cannot tell a pause from slower steps: up to twice the usual it is slowness.
        """
        longest = max(secs, gap_secs - (iterations - 1) * usual)
        in_all = max(gap_secs, iterations * secs)
        return longest > self.config.stall_ratio * usual and in_all > 2 * iterations * usual

    def _condition(
        self, state: DataStallState, job: JobContext, lately: list[Stall], now_ns: int
    ) -> Condition | None:
        if len(lately) < max(2, self.config.stalls) or state.first_ns is None or not job.running():
            return None
        began_ns = lately[0].time_unix_ns - int(lately[0].lost_secs * NS)
        span_secs = max(1.0, (now_ns - began_ns) / NS)
        most_secs = _most_secs(lately)
        lost = min(1.0, sum(min(s.lost_secs, most_secs) for s in lately) / span_secs)
        spacing_ns = (lately[-1].time_unix_ns - lately[0].time_unix_ns) // (len(lately) - 1)
        if now_ns - lately[-1].time_unix_ns > 2 * spacing_ns + NS:
            return None  # the pattern has stopped
        if lost < self.config.lost_ratio or self._habit(state, lately, began_ns, lost):
            return None
        if not self._gpus_idle(job, began_ns, now_ns, lost):
            return None
        held = state.latch.said
        return Condition(
            cause="data_stall",
            subject=job.subject(),
            onset_unix_ns=held.started_unix_ns if held else began_ns,
            value=lost,
            threshold=self.config.lost_ratio,
            unit="share of time lost",
            score=lost / self.config.lost_ratio,
            evidence=f"{len(lately)} pauses in {span_secs:.0f} s, the longest"
            f" {max(s.lost_secs for s in lately):.2g} s, where a step takes"
            f" {1000 * statistics.median(state.typical):.3g} ms; the GPUs idle meanwhile",
            raw_events=len(lately),
        )

    def _habit(
        self, state: DataStallState, lately: list[Stall], began_ns: int, lost: float
    ) -> bool:
        """Whether the job was like this before; too short a past counts as habit.

        Many pauses are a habit where it lost like shares before, few where one like them came.
        """
        if state.latch.held:
            return False
        pattern_secs = (lately[-1].time_unix_ns - lately[0].time_unix_ns) / NS
        spacing_secs = pattern_secs / (len(lately) - 1)
        past_secs = max(HABIT_SECS, 6 * spacing_secs)
        from_ns = max(state.first_ns or began_ns, began_ns - int(past_secs * NS))
        span_secs = (began_ns - from_ns) / NS
        if span_secs < max(SETTLED_SECS, 3 * spacing_secs):
            return True
        earlier = [s.lost_secs for s in state.stalls if from_ns < s.time_unix_ns < began_ns]
        before = [min(secs, _most_secs(lately)) for secs in earlier]
        like = 0.5 * statistics.median(s.lost_secs for s in lately)
        few = pattern_secs > self.config.window_secs
        return sum(before) / span_secs > 0.5 * lost or (few and max(before, default=0.0) > like)

    def _gpus_idle(self, job: JobContext, began_ns: int, now_ns: int, lost: float) -> bool:
        """Whether the GPUs computed less meanwhile; an evaluation keeps them at work."""
        if job.healthy_secs < HEALTHY_SECS:
            return True
        secs = min(RECENT_SECS, (now_ns - began_ns) // NS)
        lately = job.window(now_ns, max(secs, 1))
        if not np.isnan(job.healthy[:, TENSOR]).all():
            busy, healthy = nan_mean(lately[:, TENSOR]), nan_mean(job.healthy[:, TENSOR])
            return not busy > healthy * (1.0 - 0.5 * lost)
        # Without activity: ranks that spin read as busy, so the one that waits for data tells.
        idle = lately[:, UTIL] <= job.healthy[:, UTIL] * (1.0 - 0.5 * lost)
        return bool(idle.any()) or bool(np.isnan(lately[:, UTIL]).all())


def _most_secs(stalls: list[Stall]) -> float:
    """What one pause counts for at most: as the second longest, so that a single save is none."""
    return sorted(s.lost_secs for s in stalls)[-2]
