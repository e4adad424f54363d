"""Run recorded events through the pipeline and keep the final state of each incident."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol, TextIO

import msgspec
from msgspec import Struct, field

from stethoscope.schemas.errors import BadEvent
from stethoscope.schemas.events import Event, LogEvent
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.incidents import Incident

_BATCH_EVENTS = 512
_INTERNAL = ("paged_unix_ns", "page_labels")


class Changes(Protocol):
    """What a pipeline says of a batch of events."""

    @property
    def findings(self) -> list[Finding]:
        """New and cleared findings."""

    @property
    def incidents(self) -> list[Incident]:
        """Incidents that changed, in order of change."""


class Pipeline(Protocol):
    """What a replay needs of ``streams.pipeline.Pipeline``."""

    rejects: list[tuple[str, str]]

    def feed(self, events: Iterable[Event], /) -> Changes:
        """Take events in."""

    def finish(self) -> Changes:
        """The input ends: release what is held, tick nothing more."""


class Window(Struct, frozen=True):
    """What is reported: incidents detected from ``from_unix_ns`` to ``to_unix_ns``, both included.

    Events before the window are replayed too, so that baselines are warm; events after it are not.
    """

    from_unix_ns: int | None = None
    to_unix_ns: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it ends before it begins."""
        if self.from_unix_ns is None or self.to_unix_ns is None:
            return False
        return self.to_unix_ns < self.from_unix_ns

    def reports(self, unix_ns: int) -> bool:
        """Whether something seen at that time is reported."""
        return self.from_unix_ns is None or unix_ns >= self.from_unix_ns

    def reads(self, event: Event) -> bool:
        """Whether the event is replayed."""
        return self.to_unix_ns is None or event.time_unix_ns <= self.to_unix_ns


class DeadLetters:
    """Counts what was refused, by reason, and writes each refusal as a line of JSON.

    Attributes:
        by_reason: how many of each reason word.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._first = ""
        self.by_reason: Counter[str] = Counter()

    def add(self, error: BadEvent, where: str) -> None:
        """A line that could not be read."""
        self._add(error.reason, error.detail, where)

    def drain(self, rejects: list[tuple[str, str]]) -> None:
        """Events that the pipeline refused; empties the list."""
        for reason, detail in rejects:
            self._add(reason, detail, "")
        rejects.clear()

    def summary(self) -> str:
        """One line for a person; empty when nothing was refused."""
        if not self.by_reason:
            return ""
        parts = ", ".join(f"{n} {reason}" for reason, n in sorted(self.by_reason.items()))
        word = "dead letter" if self.by_reason.total() == 1 else "dead letters"
        return f"{self.by_reason.total()} {word}: {parts}; the first: {self._first}"

    def _add(self, reason: str, detail: str, where: str) -> None:
        self.by_reason[reason] += 1
        self._first = self._first or f"{where}: {detail}".removeprefix(": ")
        if self._file is not None:
            record = {"where": where, "reason": reason, "detail": detail}
            self._file.write(msgspec.json.encode(record).decode() + "\n")


class Outcome(Struct, frozen=True):
    """What a replay came to.

    ``raw_events`` counts input events, log lines by their ``count``; ``refused`` counts dead
    letters by reason; ``failed`` how often each detector that failed did.
    """

    incidents: list[Incident]
    raw_events: int
    first_unix_ns: int | None = None
    last_unix_ns: int | None = None
    refused: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)


def run(
    events: Iterable[Event],
    pipeline: Pipeline,
    letters: DeadLetters,
    window: Window | None = None,
    on_finding: Callable[[Finding], None] | None = None,
) -> Outcome:
    """Replay events; incidents come in their final state, by (start, id)."""
    window = window or Window()
    latest: dict[str, Incident] = {}
    span = _Span()

    def take(changes: Changes) -> None:
        for incident in changes.incidents:
            latest[incident.incident_id] = incident
        for finding in changes.findings if on_finding else ():
            if on_finding and window.reports(finding.observed_unix_ns):
                on_finding(finding)
        letters.drain(pipeline.rejects)

    with _rare_collections():
        for batch in _batches(filter(window.reads, events)):
            span.see(batch)
            take(pipeline.feed(batch))
        take(pipeline.finish())
    reported = (x for x in latest.values() if window.reports(x.detected_unix_ns))
    return Outcome(
        incidents=sorted(reported, key=lambda x: (x.started_unix_ns, x.incident_id)),
        raw_events=span.raw_events,
        first_unix_ns=span.first_unix_ns,
        last_unix_ns=span.last_unix_ns,
        refused=dict(letters.by_reason),
    )


def incident_line(incident: Incident) -> bytes:
    """The incident as one line of JSON, without what is internal to the sender."""
    plain = msgspec.to_builtins(incident)
    for name in _INTERNAL:
        plain.pop(name, None)
    return msgspec.json.encode(plain)


class _Span:
    """How many events were replayed, and over which time."""

    def __init__(self) -> None:
        self.raw_events = 0
        self.first_unix_ns: int | None = None
        self.last_unix_ns: int | None = None

    def see(self, batch: list[Event]) -> None:
        """Count a batch."""
        self.raw_events += sum(e.count if isinstance(e, LogEvent) else 1 for e in batch)
        times = [event.time_unix_ns for event in batch]
        first, last = min(times), max(times)
        self.first_unix_ns = min(first, self.first_unix_ns or first)
        self.last_unix_ns = max(last, self.last_unix_ns or last)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect cycles seldom: events have none, and looking for them costs a sixth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    iterator = iter(events)
    while batch := list(islice(iterator, _BATCH_EVENTS)):
        yield batch
