"""A loss that jumps and stays there."""

import math
import statistics

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.job_context import JobContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.views import Step

MAX_PAST = 200
RENEW_EVERY = 8


class LossSpikeConfig(DetectorConfig, frozen=True, tag="loss_spike", kw_only=True):
    """``lines`` step lines in a row whose median is far above the past's.

    Far: more than ``sigmas`` robust deviations *and* ``rise_ratio`` above the past median. Single
    outliers and the noise of a small batch come back within a few lines; a run that diverges does
    not. ``warmup_lines`` after a start or resume are not judged.
    """

    keep_firing_secs: float = 20.0
    lines: int = 6
    sigmas: float = 8.0
    rise_ratio: float = 0.3
    warmup_lines: int = 30


class LossSpikeState(Struct):
    """One job: past values (200), the newest lines, levels."""

    past: list[float] = field(default_factory=list)
    newest: list[float] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    since_resume: int = 0
    limit: float | None = None
    unjudged: int = 0
    latch: LatchState = field(default_factory=LatchState)


class LossSpike:
    """The loss against its own recent past, by medians.

    A value enters the past only once ``lines`` newer ones have come and it was not part of a
    spike, so that the spike does not become normal.
    """

    cause = "loss_spike"
    noun = "loss"
    job_state = LossSpikeState

    def __init__(self, config: LossSpikeConfig) -> None:
        self.config = config
        self.state: dict[str, LossSpikeState] = {}
        self._latch = Latch(config)

    def value(self, step: Step) -> float | None:
        """What is watched of a step."""
        return step.loss

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Read the tick's steps."""
        state = self.state.setdefault(job.key, LossSpikeState())
        for step in job.fresh_steps():
            if step.time_unix_ns == job.segment_ns:
                state.since_resume = 0
            value = self.value(step)
            if value is not None and math.isfinite(value):
                self._take(state, value, step.time_unix_ns)
        condition = self._condition(state, job)
        return self._latch.update(state.latch, [condition] if condition else [], now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        state = self.state.pop(job.key, None)
        return self._latch.close(state.latch, now_ns) if state else []

    def _take(self, state: LossSpikeState, value: float, time_ns: int) -> None:
        state.since_resume += 1
        state.newest.append(value)
        state.times_ns.append(time_ns)
        if len(state.newest) > self.config.lines:
            old = state.newest.pop(0)
            state.times_ns.pop(0)
            limit = self._limit(state)
            if limit is None or old <= limit:
                state.past.append(old)
                state.unjudged += 1
                del state.past[:-MAX_PAST]

    def _limit(self, state: LossSpikeState) -> float | None:
        """The value that is far above the past; renewed every few values, it moves slowly."""
        if len(state.past) < self.config.warmup_lines:
            return None
        if state.limit is not None and state.unjudged < RENEW_EVERY:
            return state.limit
        middle = statistics.median(state.past)
        spread = 1.4826 * statistics.median(abs(v - middle) for v in state.past)
        if middle == 0.0 and spread == 0.0:
            return None  # a constant zero (a reward loss begins so) gives no scale
        rise = max(self.config.sigmas * spread, self.config.rise_ratio * abs(middle))
        state.limit, state.unjudged = middle + rise, 0
        return state.limit

    def _condition(self, state: LossSpikeState, job: JobContext) -> Condition | None:
        limit = self._limit(state)
        settled = state.since_resume >= self.config.warmup_lines
        if limit is None or not settled or len(state.newest) < self.config.lines:
            return None
        value = statistics.median(state.newest)
        high = sum(1 for v in state.newest if v > limit)
        if value <= limit or (high < self.config.lines - 1 and not state.latch.held):
            return None
        middle = statistics.median(state.past)
        held = state.latch.said
        first = next(t for t, v in zip(state.times_ns, state.newest, strict=True) if v > limit)
        return Condition(
            cause=self.cause,
            subject=job.subject(),
            onset_unix_ns=held.started_unix_ns if held else first,
            value=value,
            threshold=limit,
            unit=self.noun,
            score=(value - middle) / max(limit - middle, 1e-12),
            evidence=f"{self.noun} {value:.4g}, {middle:.4g} before; {high} of the last"
            f" {len(state.newest)} lines above {limit:.4g}",
            raw_events=len(state.newest),
        )
