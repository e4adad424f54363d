"""What detectors say, and the latch that turns it into findings.

A detector names the conditions that are true now. ``Latch`` does what all of them need: hold for
``for_secs``, say it once, clear after ``keep_firing_secs`` of silence.
"""

from collections.abc import Iterable

from msgspec import Struct, field, structs

from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import (
    NS,
    Finding,
    Subject,
    Suspect,
    finding_id,
    rounded,
)

MAX_QUOTED_CHARS = 300


def quoted(text: str) -> str:
    """A log line, as evidence quotes it."""
    return text.strip()[:MAX_QUOTED_CHARS]


class Condition(Struct, frozen=True, kw_only=True):
    """Something abnormal that is true now (a level), or happened just now (``moment``).

    ``onset_unix_ns`` is when it began in the data; ``score`` 1.0 is the boundary of abnormal.
    """

    cause: str
    subject: Subject
    onset_unix_ns: int
    value: float | None = None
    threshold: float | None = None
    unit: str = ""
    score: float | None = None
    evidence: str = ""
    moment: bool = False
    severity: str | None = None
    raw_events: int = 1
    suspects: list[Suspect] = field(default_factory=list)

    def key(self) -> str:
        """Cause and subject as one string."""
        return f"{self.cause}|{self.subject.key()}"


class Held(Struct):
    """A level being watched: since when, last seen when, and its finding once it was said."""

    first_unix_ns: int
    last_unix_ns: int
    finding: Finding | None = None


class LatchState(Struct):
    """All levels of one latch by key. Bound: one entry a (cause, subject) that is now abnormal."""

    held: dict[str, Held] = field(default_factory=dict)

    @property
    def said(self) -> Finding | None:
        """The first finding that stands, if any does."""
        return next((h.finding for h in self.held.values() if h.finding), None)


class Latch:
    """Conditions to findings for one detector; the levels' state is the caller's."""

    def __init__(self, config: DetectorConfig) -> None:
        self._config = config

    def update(
        self, state: LatchState, conditions: Iterable[Condition], now_ns: int
    ) -> list[Finding]:
        """Findings that begin or end at ``now_ns``; ``conditions`` are all that hold."""
        findings: list[Finding] = []
        for condition in conditions:
            if condition.moment:
                findings.append(to_finding(self._config, condition, now_ns))
            else:
                findings += self._hold(state, condition, now_ns)
        findings += self._clear(state, now_ns)
        return findings

    def close(self, state: LatchState, now_ns: int) -> list[Finding]:
        """End every level now: what they were about is over (a job ended)."""
        held, state.held = state.held, {}
        return [cleared(h.finding, now_ns, h.last_unix_ns) for h in held.values() if h.finding]

    def _hold(self, state: LatchState, condition: Condition, now_ns: int) -> list[Finding]:
        held = state.held.setdefault(condition.key(), Held(now_ns, now_ns))
        held.last_unix_ns = now_ns
        if held.finding or now_ns - held.first_unix_ns < self._config.for_secs * NS:
            return []
        onset_ns = min(condition.onset_unix_ns, held.first_unix_ns)
        condition = structs.replace(condition, onset_unix_ns=onset_ns)
        held.finding = to_finding(self._config, condition, now_ns)
        return [held.finding]

    def _clear(self, state: LatchState, now_ns: int) -> list[Finding]:
        findings = []
        keep_ns = self._config.keep_firing_secs * NS
        for key, held in list(state.held.items()):
            quiet_ns = now_ns - held.last_unix_ns
            if quiet_ns == 0 or (held.finding and quiet_ns < keep_ns):
                continue
            del state.held[key]
            if held.finding:
                findings.append(cleared(held.finding, now_ns, held.last_unix_ns))
        return findings


def to_finding(config: DetectorConfig, condition: Condition, now_ns: int) -> Finding:
    """The finding that says ``condition``, noticed at ``now_ns``."""
    name = config.name or str(config.__struct_config__.tag)
    return Finding(
        finding_id=finding_id(name, condition.cause, condition.subject, condition.onset_unix_ns),
        detector=name,
        cause=condition.cause,
        subject=condition.subject,
        started_unix_ns=condition.onset_unix_ns,
        observed_unix_ns=now_ns,
        moment=condition.moment,
        value=rounded(condition.value),
        threshold=rounded(condition.threshold),
        unit=condition.unit,
        score=rounded(condition.score),
        evidence=condition.evidence,
        mode=config.mode,
        severity=config.severity or condition.severity,
        raw_events=condition.raw_events,
        suspects=condition.suspects,
    )


def cleared(finding: Finding, now_ns: int, ended_ns: int) -> Finding:
    """The same finding, ended: good since ``ended_ns``, said at ``now_ns``."""
    return structs.replace(
        finding,
        observed_unix_ns=now_ns,
        cleared=True,
        ended_unix_ns=ended_ns,
        raw_events=0,
        suspects=[],
        evidence="",
    )
