"""A job's steps slower than its own recent past, and why."""

import statistics
from bisect import bisect_left

from msgspec import Struct, field, structs

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.job_context import JobContext
from stethoscope.detectors.slowness import does_more, explain, strangers, was_seen
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.views import Step

MAX_BIN = 200
MAX_BINS = 64
MAX_WINDOWS = 120
RELEARN_TICKS = 3
DOUBT_TICKS = 3
VAGUE = "step_time_regression"
EVIDENCE_SECS = 20
BASELINE_STEPS = 8
PAUSE_PACES = 4


class StepTimeConfig(DetectorConfig, frozen=True, tag="step_time", kw_only=True):
    """Slow is ``slow_ratio`` times what the job's own steps of the same size take, or more.

    ``slow_ratio``: fail-slow studies of large jobs call 10 to 20 % the least worth a look; this is
    the middle, and the lower end where a stranger's process is on one of the GPUs
    (``contended_ratio``). Where a job's own step wobbles, the limit rises to ``1 + noise_sigmas``
    times the spread of its healthy windows, learned online.
    ``warmup_steps`` and ``warmup_secs``: allocator, autotuning and caches settle first.
    """

    for_secs: float = 3.0
    keep_firing_secs: float = 5.0
    slow_ratio: float = 1.15
    contended_ratio: float = 1.1
    noise_sigmas: float = 5.0
    window_secs: float = 5.0
    window_steps: int = 5
    warmup_steps: int = 20
    warmup_secs: float = 8.0


class Timed(Struct, array_like=True):
    """One timed step: when, how long, which size class, and against the baseline then."""

    time_unix_ns: int
    secs: float
    size: int
    ratio: float | None = None


class Verdict(Struct):
    """Why a job is slow, as far as its GPUs and hosts show."""

    cause: str
    subject: Subject
    why: str
    since_ns: int = 0


class StepTimeState(Struct):
    """One job: baselines by size class, the last steps, healthy window ratios, levels.

    ``seen`` lines, ``steps`` of them in all. Where lines are rare, one of several steps counts for
    ``per_line``, since it is their mean: fewer lines make a baseline and a window.

    Bound: 64 size classes of 200 floats, 1,000 steps, 120 windows.
    """

    bins: dict[int, list[float]] = field(default_factory=dict)
    window: list[Timed] = field(default_factory=list)
    pending: list[Timed] = field(default_factory=list)
    windows: list[float] = field(default_factory=list)
    seen: int = 0
    steps: int = 0
    per_line: int = 1
    first_ns: int | None = None
    last: Step | None = None
    larger: int = 0
    slow_ns: int | None = None
    verdict: Verdict | None = None
    doubts: int = 0
    latch: LatchState = field(default_factory=LatchState)


class StepTime:
    """Step time of the last seconds against that of the job's own past for steps of that size.

    Size is what the line tells (tokens, batch size): a growing batch is not a regression. The
    baseline takes a step in only when it is ten seconds old and nothing was wrong meanwhile. What
    slows the job (a stranger, one rank, the host's CPUs) is read from its GPUs and hosts.
    """

    job_state = StepTimeState

    def __init__(self, config: StepTimeConfig) -> None:
        self.config = config
        self.state: dict[str, StepTimeState] = {}
        self._latch = Latch(structs.replace(config, for_secs=0.0))  # slowness is held here

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Look at the tick's steps."""
        state = self.state.setdefault(job.key, StepTimeState())
        for step in job.fresh_steps():
            self._take(state, job, step)
        self._trim(state, now_ns)
        ratio, limit = self._judge(state, job, now_ns)
        condition = None
        if ratio is not None and ratio > limit and self._still(state, job, limit, now_ns):
            condition = self._slow(state, job, ratio, limit, now_ns)
        else:
            state.slow_ns = state.verdict = None
            state.larger = 0
        self._learn(state, ratio, now_ns, job.disturbed_ns > now_ns - 3 * NS)
        return self._latch.update(state.latch, [condition] if condition else [], now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        state = self.state.pop(job.key, None)
        return self._latch.close(state.latch, now_ns) if state else []

    def _slow(
        self, state: StepTimeState, job: JobContext, ratio: float, limit: float, now_ns: int
    ) -> Condition | None:
        """What to say of a job that is slow now; nothing until it held and its GPUs were seen."""
        onset_ns = self._onset(state, limit)
        if self._asks_again(state, job, limit):
            if not does_more(job, ratio, onset_ns, now_ns):
                state.larger = 0
            elif self._relearns(state, job) or state.verdict is None:
                state.slow_ns = state.verdict = None
                return None
        job.disturbed_ns = now_ns
        state.slow_ns = state.slow_ns or now_ns
        held_secs = (now_ns - state.slow_ns) / NS
        blind = not was_seen(job, onset_ns, now_ns) and held_secs < EVIDENCE_SECS
        if held_secs < self.config.for_secs or blind:
            return None
        self._explain(state, job, ratio, onset_ns, now_ns)
        return self._condition(state, ratio, limit)

    def _asks_again(self, state: StepTimeState, job: JobContext, limit: float) -> bool:
        """Whether the GPUs' load is that of slow steps: once told, only where a new line is slow.

        Else it may be that of a recovery: of which no line tells yet, or a rare one only in part.
        """
        newest = state.window[-1].ratio
        often = (job.pace_secs or 0.0) <= self.config.window_secs
        return state.verdict is None or bool(often and job.new_steps and newest and newest > limit)

    def _explain(
        self, state: StepTimeState, job: JobContext, ratio: float, onset_ns: int, now_ns: int
    ) -> None:
        """Settle on a verdict. Another must hold for some seconds, and say more than "slow".

        A reason found for what was only "slow" goes back to the onset; one reason after another is
        a new fault, which began when the reason changed.
        """
        cause, subject, why = explain(job, ratio, onset_ns, now_ns)
        known = state.verdict
        if known is None:
            state.verdict, state.doubts = Verdict(cause, subject, why, onset_ns), 0
        elif (known.cause, known.subject) == (cause, subject):
            known.why, state.doubts = why, 0
        elif cause != VAGUE:
            state.doubts += 1
            if state.doubts >= DOUBT_TICKS:
                changed_ns = now_ns - DOUBT_TICKS * NS
                since_ns = known.since_ns if known.cause == VAGUE else changed_ns
                state.verdict, state.doubts = Verdict(cause, subject, why, since_ns), 0

    def _onset(self, state: StepTimeState, limit: float) -> int:
        """The first of the slow steps that the window ends with; what was said stays."""
        held = state.latch.said
        if held is not None:
            return held.started_unix_ns
        onset_ns = state.window[-1].time_unix_ns
        for timed in reversed(state.window):
            if timed.ratio is None or timed.ratio < _halfway(limit):
                break
            onset_ns = timed.time_unix_ns
        return onset_ns

    def _take(self, state: StepTimeState, job: JobContext, step: Step) -> None:
        last, secs = state.last, step_secs(step, state.last)
        iterations = iterations_of(step, state.last) or 1
        rare = (job.pace_secs or 0.0) > self.config.window_secs
        state.per_line = iterations if rare else 1
        state.last = step
        state.seen += 1
        state.steps += iterations
        if state.first_ns is None:
            state.first_ns = step.time_unix_ns
        if secs is None or secs <= 0 or step.time_unix_ns == job.segment_ns or state.seen <= 2:
            return
        if step.step_secs is None and last and job.is_pause(last.time_unix_ns, step.time_unix_ns):
            return  # the time between the lines is not the steps'
        size = size_class(step.work)
        baseline = self._baseline(state, size)
        ratio = secs / baseline if baseline else None
        timed = Timed(step.time_unix_ns, secs, size, ratio)
        state.window.append(timed)
        state.pending.append(timed)

    def _baseline(self, state: StepTimeState, size: int) -> float | None:
        known = state.bins.get(size)
        if known is None or len(known) < self._lines(state, BASELINE_STEPS):
            return None
        return middle(known)

    def _lines(self, state: StepTimeState, steps: int) -> int:
        """Lines that hold so many steps, three at least: one line's mean may hold a hiccup."""
        return max(3, -(-steps // state.per_line))

    def _relearns(self, state: StepTimeState, job: JobContext) -> bool:
        """After a few seconds of larger steps the old baseline is of another workload."""
        state.larger += job.new_steps > 0
        if state.larger < RELEARN_TICKS:
            return False
        state.bins.clear()
        state.window.clear()
        state.pending.clear()
        state.windows.clear()
        state.larger = 0
        return True

    def _trim(self, state: StepTimeState, now_ns: int) -> None:
        oldest_ns = now_ns - int(self.config.window_secs * NS)
        keep = bisect_left(state.window, oldest_ns, key=lambda t: t.time_unix_ns)
        least = self._lines(state, self.config.window_steps)
        del state.window[: min(keep, max(0, len(state.window) - least))]

    def _judge(
        self, state: StepTimeState, job: JobContext, now_ns: int
    ) -> tuple[float | None, float]:
        ratios = [t.ratio for t in state.window if t.ratio is not None]
        if len(ratios) < 3 or 2 * len(ratios) < len(state.window):
            return None, self.config.slow_ratio
        centre, spread = self._noise(state)
        ratio = middle(ratios) / centre
        least = self.config.slow_ratio
        if self.config.contended_ratio < ratio <= least and strangers(job, now_ns):
            least = self.config.contended_ratio
        return ratio, max(least, 1.0 + self.config.noise_sigmas * spread)

    def _still(self, state: StepTimeState, job: JobContext, limit: float, now_ns: int) -> bool:
        """Whether the newest steps are slow too: the window's median lags behind a recovery.

        Of few and rare lines all must be, since one may hold a save. Where the lines have stopped,
        nothing new is said: a pause is not slowness.
        """
        paused_ns = int((PAUSE_PACES * (job.pace_secs or 0.0) + 2.0) * NS)
        if state.verdict is None and now_ns - state.window[-1].time_unix_ns > paused_ns:
            return False
        newest = [t.ratio for t in state.window[-3:] if t.ratio is not None]
        if not newest:
            return False
        least = statistics.median(newest) if state.per_line == 1 else min(newest)
        return least > _halfway(limit)

    def _noise(self, state: StepTimeState) -> tuple[float, float]:
        """Centre and spread of the healthy windows; before ten are known, a careful guess."""
        if len(state.windows) < 10:
            return 1.0, 0.08
        centre = statistics.median(state.windows)
        deviations = [abs(w - centre) for w in state.windows]
        return centre, 1.4826 * statistics.median(deviations) / centre

    def _learn(
        self, state: StepTimeState, ratio: float | None, now_ns: int, disturbed: bool
    ) -> None:
        if disturbed:
            state.pending.clear()
            return
        if ratio is not None and state.window and state.window[-1].time_unix_ns > now_ns - NS:
            state.windows.append(ratio * self._noise(state)[0])
            del state.windows[:-MAX_WINDOWS]
        warm = state.steps >= self.config.warmup_steps and state.first_ns is not None
        age_ns = int(2 * self.config.window_secs * NS)
        while state.pending and (
            state.pending[0].time_unix_ns <= now_ns - age_ns or not self._baselined(state, warm)
        ):
            timed = state.pending.pop(0)
            known = state.bins.pop(timed.size, [])
            known.append(timed.secs)
            del known[:-MAX_BIN]
            state.bins[timed.size] = known  # last used, last in order
        while len(state.bins) > MAX_BINS:
            del state.bins[next(iter(state.bins))]

    def _baselined(self, state: StepTimeState, warm: bool) -> bool:
        """Whether the job has a past to be judged by; until then every step is past."""
        if not warm or state.first_ns is None or not state.pending:
            return False
        known = state.bins.get(state.pending[0].size, [])
        grown_ns = state.pending[0].time_unix_ns - state.first_ns
        enough = len(known) >= self._lines(state, BASELINE_STEPS)
        return enough and grown_ns >= self.config.warmup_secs * NS

    def _condition(self, state: StepTimeState, ratio: float, limit: float) -> Condition | None:
        verdict = state.verdict
        if verdict is None:
            return None
        recent = [t.secs for t in state.window]
        return Condition(
            cause=verdict.cause,
            subject=verdict.subject,
            onset_unix_ns=verdict.since_ns,
            value=ratio,
            threshold=limit,
            unit="times its usual time",
            score=(ratio - 1.0) / (limit - 1.0),
            evidence=f"steps take {1000 * middle(recent):.4g} ms, {ratio:.2f} times their usual"
            f" time; {verdict.why}",
            raw_events=len(recent),
        )


def step_secs(step: Step, last: Step | None) -> float | None:
    """How long the step took: as printed, else the time since the line before, an iteration."""
    if step.step_secs is not None:
        return step.step_secs
    iterations = iterations_of(step, last)
    if last is None or iterations is None:
        return None
    return (step.time_unix_ns - last.time_unix_ns) / NS / iterations


def _halfway(limit: float) -> float:
    """Between usual and slow."""
    return 1.0 + 0.5 * (limit - 1.0)


def middle(values: list[float]) -> float:
    """The mean of the middle half; of fewer than ten values the median.

    As deaf to outliers as need be, and steady where step times fall into two kinds, between which
    a median jumps.

    >>> middle([1.0, 1.0, 9.0]), middle([1.0] * 6 + [2.0] * 6)
    (1.0, 1.5)
    """
    if len(values) < 10:
        return statistics.median(values)
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


def iterations_of(step: Step, last: Step | None) -> int | None:
    """Steps that the line tells of, as far as it counts them; ``None`` where it went back."""
    if last is None or step.iteration is None or last.iteration is None:
        return 1
    iterations = step.iteration - last.iteration
    return iterations if iterations > 0 else None


def size_class(work: float | None) -> int:
    """Steps of like size share a class: eighths of a doubling, by bit length and top bits.

    >>> size_class(2048) == size_class(2100), size_class(2048) == size_class(4096)
    (True, False)
    """
    if work is None or work < 1:
        return 0
    whole = int(work)
    bits = whole.bit_length()
    top = whole >> (bits - 4) if bits >= 4 else whole << (4 - bits)
    return bits * 16 + top
