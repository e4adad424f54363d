"""A loss that is no number any more."""

import math

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState, quoted
from stethoscope.detectors.job_context import JobContext
from stethoscope.detectors.job_moments import rank_of_mark
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.views import Mark, Step


class LossNanConfig(DetectorConfig, frozen=True, tag="loss_nan", kw_only=True):
    """``bad_grad_lines``: so many lines in a row with a NaN gradient norm, finite loss.

    A dynamic fp16 scaler that starts at 2**32 skips some 17 steps until it fits,
    each with such a norm; twice that and more is no search for a scale any more.
    """

    keep_firing_secs: float = 30.0
    bad_grad_lines: int = 50


class LossNanState(Struct):
    """One job: since when the loss is bad, and how many bad norms stand in a row."""

    since_ns: int | None = None
    first: Step | None = None
    bad_grads: int = 0
    lines: int = 0
    latch: LatchState = field(default_factory=LatchState)


class LossNan:
    """A NaN or infinite loss at once; a NaN gradient norm alone only when it stays.

    A step that the fp16 scaler skipped may show a NaN norm: that is how the scaler works. A line
    with a bad loss on a skipped step is told all the same: the loss is computed before scaling.
    """

    job_state = LossNanState

    def __init__(self, config: LossNanConfig) -> None:
        self.config = config
        self.state: dict[str, LossNanState] = {}
        self._latch = Latch(config)

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Read the tick's steps and the trainer's own report of a NaN."""
        state = self.state.setdefault(job.key, LossNanState())
        for step in job.fresh_steps():
            self._take(state, step)
        conditions = []
        if state.since_ns is not None and state.first is not None:
            conditions.append(self._condition(state, job, state.since_ns, state.first))
        conditions += [_aborted(job, m) for m in job.fresh_marks("loss_abort", "scaler_floor")[:1]]
        return self._latch.update(state.latch, conditions, now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        state = self.state.pop(job.key, None)
        return self._latch.close(state.latch, now_ns) if state else []

    def _take(self, state: LossNanState, step: Step) -> None:
        bad_grad = step.grad_norm is not None and not math.isfinite(step.grad_norm)
        state.bad_grads = state.bad_grads + 1 if bad_grad else 0
        bad_loss = step.loss is not None and not math.isfinite(step.loss)
        bad_loss = bad_loss or (step.loss is None and step.nan_iterations > 0)
        if bad_loss or state.bad_grads >= self.config.bad_grad_lines:
            state.lines += 1
            if state.since_ns is None:
                state.since_ns, state.first = step.time_unix_ns, step
        elif step.loss is not None:
            state.since_ns, state.first, state.lines = None, None, 0

    def _condition(
        self, state: LossNanState, job: JobContext, since_ns: int, first: Step
    ) -> Condition:
        where = "" if first.iteration is None else f" at iteration {first.iteration}"
        what = "gradient norm" if state.bad_grads >= self.config.bad_grad_lines else "loss"
        value = first.grad_norm if what == "gradient norm" else first.loss
        return Condition(
            cause="loss_nan",
            subject=job.subject(),
            onset_unix_ns=since_ns,
            score=1.0,
            evidence=f"{what} {value}{where}, {state.lines} lines since; steps go on"
            f" and GPUs look healthy: the work is lost all the same",
            raw_events=state.lines,
        )


def _aborted(job: JobContext, mark: Mark) -> Condition:
    """The trainer itself gave up."""
    rank = rank_of_mark(job, mark)
    return Condition(
        cause="loss_nan",
        subject=job.subject() if rank is None else job.rank_subject(rank),
        onset_unix_ns=mark.time_unix_ns,
        score=1.0,
        evidence=quoted(mark.text),
        moment=True,
    )
