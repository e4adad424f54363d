"""Collectives that timed out, by NCCL's and PyTorch's own report."""

import re

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, quoted, to_finding
from stethoscope.detectors.job_context import LOOK_BACK_SECS, RECENT_SECS, JobContext
from stethoscope.detectors.waiting import is_few, missing, spins
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding, Subject, Suspect
from stethoscope.schemas.views import Mark

_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (\d{1,18})\b")
_SEQ = re.compile(r"SeqNum=(\d+)|at work(?: sequence id)?: (\d+)")
_RAN = re.compile(r"ran for (\d{1,12}) milliseconds|Timeout\(ms\)=(\d{1,12})\b")
_REPORTS = ("nccl_timeout", "nccl_dump", "nccl_stuck")


class NcclTimeoutConfig(DetectorConfig, frozen=True, tag="nccl_timeout", kw_only=True):
    """``gather_secs``: how long the ranks' reports are put together before the first is said."""

    gather_secs: float = 1.0


class NcclTimeoutState(Struct):
    """One job: newest position of each rank, the open report and what was said.

    Bound: one entry a rank.
    """

    enqueued: dict[int, int] = field(default_factory=dict)
    reported: dict[int, int] = field(default_factory=dict)
    first: Mark | None = None
    proof: Mark | None = None
    lines: int = 0
    ran_secs: float | None = None
    said_seq: int | None = None
    said_ns: int = 0


class NcclTimeout:
    """One finding a timed-out collective of a job, however many ranks report it.

    The suspect is the rank that enqueued least (it never came to the collective), else the one
    whose GPU idles while the others spin, else one that did not report. The onset lies back by the
    time the collective ran.
    """

    job_state = NcclTimeoutState

    def __init__(self, config: NcclTimeoutConfig) -> None:
        self.config = config
        self.state: dict[str, NcclTimeoutState] = {}

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Read the tick's reports."""
        state = self.state.setdefault(job.key, NcclTimeoutState())
        for mark in job.fresh_marks(*_REPORTS):
            self._take(state, mark)
        if state.first is None or now_ns - state.first.time_unix_ns < self.config.gather_secs * NS:
            return []
        return self._say(state, job, state.first, now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended: say what was being gathered."""
        state = self.state.pop(job.key, None)
        if state is None or state.first is None:
            return []
        return self._say(state, job, state.first, now_ns)

    def _take(self, state: NcclTimeoutState, mark: Mark) -> None:
        if mark.time_unix_ns - state.said_ns < 600 * NS:
            return  # the same fault's later lines: aborts and tracebacks repeat the report
        state.first = state.first or mark
        if state.proof is None and "Watchdog caught" in mark.text:
            state.proof = mark
        state.lines += mark.count
        if mark.rank is not None:
            state.reported[mark.rank] = state.reported.get(mark.rank, 0) + 1
            if match := _ENQUEUED.search(mark.text):
                state.enqueued[mark.rank] = int(match[1])
        if match := _RAN.search(mark.text):
            state.ran_secs = int(match[1] or match[2]) / 1000.0

    def _say(
        self, state: NcclTimeoutState, job: JobContext, first: Mark, now_ns: int
    ) -> list[Finding]:
        subject, suspects = self._suspects(state, job, first, now_ns)
        onset_ns = first.time_unix_ns - int((state.ran_secs or 0.0) * NS)
        proof = state.proof or first
        seq = _SEQ.search(proof.text)
        condition = Condition(
            cause="nccl_timeout",
            subject=subject,
            onset_unix_ns=min(first.time_unix_ns, max(onset_ns, job.first_seen_ns)),
            value=state.ran_secs,
            unit="seconds",
            score=1.0,
            evidence=(f"collective {seq[1] or seq[2]}: " if seq else "") + quoted(proof.text),
            moment=True,
            raw_events=state.lines,
            suspects=suspects,
        )
        state.said_ns = first.time_unix_ns
        state.first, state.proof, state.lines = None, None, 0
        state.reported.clear()
        state.enqueued.clear()
        return [to_finding(self.config, condition, now_ns)]

    def _suspects(
        self, state: NcclTimeoutState, job: JobContext, first: Mark, now_ns: int
    ) -> tuple[Subject, list[Suspect]]:
        ranks = {g.rank for g in job.gpus if g.rank is not None}
        if state.enqueued and len(state.enqueued) > 1:
            least = min(state.enqueued.values())
            if least < max(state.enqueued.values()):
                behind = sorted(r for r, n in state.enqueued.items() if n == least)
                reason = f"enqueued {least} collectives, others {max(state.enqueued.values())}"
                return self._named(job, behind, reason)
        if absent := _absent(job, first.time_unix_ns, now_ns):
            return self._named(job, absent, "idled while its peers waited in a collective")
        silent = sorted(ranks - set(state.reported))
        if silent and state.reported and len(silent) <= max(1, len(ranks) // 4):
            return self._named(job, silent, "did not report the timeout")
        return job.subject(), []

    def _named(
        self, job: JobContext, ranks: list[int], reason: str
    ) -> tuple[Subject, list[Suspect]]:
        suspects = [Suspect(job.rank_subject(r), f"rank {r} {reason}") for r in ranks[:8]]
        return (suspects[0].subject if len(ranks) == 1 else job.subject()), suspects


def _absent(job: JobContext, reported_ns: int, now_ns: int) -> list[int]:
    """Ranks of the few GPUs that idled before the report; after it those that reported end.

    Nobody where those seconds are no longer remembered: a line may come late.
    """
    if now_ns - reported_ns > (RECENT_SECS - LOOK_BACK_SECS - 1) * NS:
        return []
    before = job.latest(reported_ns - NS, LOOK_BACK_SECS)
    idle = missing(job, before)
    if not is_few(job, idle) or not spins(before).any():
        return []
    return [g.rank for g in idle if g.rank is not None]
