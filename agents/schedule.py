"""When each reader is due: pure arithmetic on the monotonic clock."""

import random

from msgspec import Struct, field

from stethoscope.agents.calls import ReaderState, Verb
from stethoscope.agents.reader import Counters

_NS = 1_000_000_000


class Task(Struct):
    """One reader's place in the schedule, and what it did so far.

    ``base_ns`` is the scheduled time of its last read, to which its period is added;
    ``not_before_ns`` holds it back after failures. ``state`` is ``None`` until its first probe.
    ``position`` is where its source was read to, handed to a reader that is new or was lost with
    its process; ``ahead`` are later ones, whose events this agent's former life may have sent.
    """

    name: str
    own_period_secs: float
    deadline_secs: float
    base_ns: int
    not_before_ns: int = 0
    busy: bool = False
    probed: bool = False
    state: ReaderState | None = None
    detail: str = ""
    failures: int = 0
    position: str | None = None
    ahead: list[str] = field(default_factory=list)
    counters: Counters | None = None
    started_ns: int = 0
    reads_total: int = 0
    failures_total: int = 0
    events_total: int = 0
    read_secs_total: float = 0.0

    @property
    def verb(self) -> Verb:
        """``probe`` until one went well, then ``read``."""
        return "read" if self.probed else "probe"

    def due_ns(self, period_secs: float) -> int:
        """When to call it next."""
        return max(self.base_ns + round(period_secs * _NS), self.not_before_ns)

    def begin(self, now_ns: int, period_secs: float) -> None:
        """It is being called. What was missed is skipped, its phase is kept."""
        period_ns = max(1, round(period_secs * _NS))
        self.base_ns += period_ns * max(1, (now_ns - self.base_ns) // period_ns)
        self.busy = True
        self.started_ns = now_ns

    def found(self) -> None:
        """There is something to read: do so at once."""
        self.probed = True
        self.base_ns -= round(self.own_period_secs * _NS)
        self.not_before_ns = 0
        if not self.failures:
            self.state, self.detail = "ok", ""

    def succeed(self) -> None:
        """A read went well."""
        self.state, self.detail, self.failures, self.not_before_ns = "ok", "", 0, 0
        self.reads_total += 1

    def fail(self, detail: str, now_ns: int, max_backoff_secs: float, rng: random.Random) -> bool:
        """Hold it back, for twice as long each time; whether it was well before."""
        began = self.state == "ok"
        self.state, self.detail = "failing", detail
        secs = min(max_backoff_secs, self.own_period_secs * 2 ** min(self.failures, 16))
        self.not_before_ns = now_ns + round(secs * rng.uniform(0.75, 1.0) * _NS)
        self.failures += 1
        self.failures_total += 1
        return began

    def unsupported(self, detail: str, now_ns: int, reprobe_secs: float) -> None:
        """There is nothing to read here; look again much later."""
        self.state, self.detail, self.failures, self.probed = "unsupported", detail, 0, False
        self.not_before_ns = now_ns + round(reprobe_secs * _NS)


def first_base_ns(seed: str, now_ns: int, period_secs: float) -> int:
    """A base that makes the first call due within a second, at a phase that differs by ``seed``.

    Nodes that start together do not read and send together; the readers of one node do, so that
    their events travel in one message and wake us once.
    """
    phase = random.Random(seed).random()  # noqa: S311 - spreads load, guards nothing
    return now_ns + round((phase * min(1.0, period_secs) - period_secs) * _NS)
