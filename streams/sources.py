"""Envelopes of several sources as whole seconds that all of them have passed."""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct, field

from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.views import Envelope, View

# After two days of silence all that waits for time to pass has passed.
MAX_SILENCE_NS = 2 * 86_400 * NS


def seconds(done_ns: int, least_ns: int, said: Iterable[int]) -> Sequence[int]:
    """The seconds after ``done_ns`` up to ``least_ns``.

    Where a clock stood at 1970 and jumps to today, only those in which something was ``said``, and
    the last two days: nobody can wait for a billion seconds.
    """
    from_ns = max(done_ns + NS, (least_ns - MAX_SILENCE_NS) // NS * NS)
    if from_ns == done_ns + NS:
        return range(from_ns, least_ns + 1, NS)
    early = sorted({second for second in said if done_ns < second < from_ns})
    return [*early, *range(from_ns, least_ns + 1, NS)]


class SourcesState(Struct):
    """Last watermark of each source, who is idle, and what waits, by second.

    Bound: the seconds by which one source is ahead of the slowest.
    """

    marks: dict[str, int] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    views: dict[int, list[View]] = field(default_factory=dict)
    findings: dict[int, list[Finding]] = field(default_factory=dict)
    heard: dict[int, dict[str, int]] = field(default_factory=dict)
    done_ns: int | None = None


class Sources:
    """Drops what a restarted source says twice; waits for every source that is not idle."""

    def __init__(self, expects: list[str], keeps: Literal["views", "findings"]) -> None:
        self._expects = sorted(expects)
        self._keeps = keeps
        self.state = SourcesState()

    def push(self, envelope: Envelope) -> None:
        """Take one envelope."""
        state, source = self.state, envelope.source
        if envelope.idle:
            if source not in state.idle:
                state.idle.append(source)
            return
        if source in state.idle:
            state.idle.remove(source)
        second_ns = envelope.watermark_unix_ns
        if second_ns <= state.marks.get(source, -1):
            return
        state.marks[source] = second_ns
        if state.done_ns is not None and second_ns <= state.done_ns:
            second_ns = state.done_ns + NS  # late: with the next second, never lost
        if self._keeps == "views" and envelope.views:
            state.views.setdefault(second_ns, []).extend(envelope.views)
        if self._keeps == "findings":
            if envelope.findings:
                state.findings.setdefault(second_ns, []).extend(envelope.findings)
            heard = state.heard.setdefault(second_ns, {}) if envelope.heard else {}
            for name, heard_ns in envelope.heard.items():
                heard[name] = max(heard_ns, heard.get(name, 0))

    def _seconds(self, frontier_ns: int | None) -> Sequence[int]:
        state = self.state
        awaited = [s for s in self._expects if s not in state.idle]
        if not awaited or any(s not in state.marks for s in awaited):
            return []
        least_ns = min(state.marks[s] for s in awaited)
        if frontier_ns is not None:
            least_ns = min(least_ns, frontier_ns // NS * NS)
        if state.done_ns is None:
            firsts = [*state.views, *state.findings, least_ns]
            state.done_ns = min(firsts) - NS
        return seconds(state.done_ns, least_ns, [*state.views, *state.findings, *state.heard])

    def views_upto(self, frontier_ns: int | None) -> list[tuple[int, list[View]]]:
        """(second, its views in a fixed order) of each second that all have passed."""
        ready = []
        for second_ns in self._seconds(frontier_ns):
            views = self.state.views.pop(second_ns, [])
            views.sort(key=lambda v: (v.job, v.node, str(v.__struct_config__.tag)))
            ready.append((second_ns, views))
            self.state.done_ns = second_ns
        return ready

    def findings_upto(
        self, frontier_ns: int | None
    ) -> list[tuple[int, list[Finding], dict[str, int]]]:
        """(second, its findings in a fixed order, who was heard) of each passed second."""
        ready = []
        for second_ns in self._seconds(frontier_ns):
            findings = self.state.findings.pop(second_ns, [])
            findings.sort(key=lambda f: (f.observed_unix_ns, f.cleared, f.finding_id))
            ready.append((second_ns, findings, self.state.heard.pop(second_ns, {})))
            self.state.done_ns = second_ns
        return ready
