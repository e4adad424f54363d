"""Training logs: the lines that a rule reads, of files, journald units and standard input."""

import glob
import re
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct, field

from stethoscope.agents.journal import Entry, Journal
from stethoscope.agents.line_time import load_zone
from stethoscope.agents.reader import Context, Counters, Now
from stethoscope.agents.redact import redact
from stethoscope.agents.spans import Span, Spans
from stethoscope.agents.stdin import Stdin
from stethoscope.agents.tail import Position, Tailed
from stethoscope.agents.train_files import FileSet
from stethoscope.agents.train_lines import FilterState, Kept, Limit, LineFilter, clean, unwrapped
from stethoscope.agents.train_rules import RULES, compile_pattern, user_rules
from stethoscope.agents.train_time import times_of
from stethoscope.schemas.agent_config import TrainLog
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Event, LogEvent

MAX_STREAMS = 4096
MAX_STATE_ENTRIES = 4096  # of all filters together, in a checkpoint
# Text that one read sends at most; files not come to by then wait for the next.
MAX_SENT_CHARS = 16 * 1024 * 1024


class _Cursor(Struct):
    """The reader's checkpoint."""

    files: list[Position] = field(default_factory=list)
    journal: str | None = None
    spans: list[Span] = field(default_factory=list)
    filters: dict[str, FilterState] = field(default_factory=dict)


class Origin(Struct, frozen=True):
    """What a log's path says of its lines."""

    job_id: str | None = None
    rank: int | None = None


def origin_of(path: str, patterns: Iterable["re.Pattern[str]"]) -> Origin:
    """Job and rank, by the first pattern that has each in a group of that name.

    A group ``namespace`` goes before the job's name, as Kubernetes' jobs are named.

    >>> origin_of("/logs/slurm-4711.out", [re.compile(r"slurm-(?P<job_id>[0-9]+)")]).job_id
    '4711'
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        if match := pattern.search(path):
            named = {name: text for name, text in match.groupdict().items() if text}
            found = named | found
    rank = found.get("rank", "")
    job_id = found.get("job_id")
    if job_id is not None and "namespace" in found:
        job_id = f"{found['namespace']}/{job_id}"
    return Origin(job_id, int(rank) if rank.isdecimal() else None)


class TrainLogReader:
    """Follows training logs. Reads nothing twice: ``seq`` is the line's byte offset in its file."""

    name = "train_log"

    def __init__(self, context: Context, section: TrainLog) -> None:
        self.period_secs = section.period_secs
        # Logs lie on network file systems; standard input belongs to this process alone.
        self.hazardous = not section.stdin
        self.counters = Counters()
        self._context = context
        self._section = section
        self._zone = load_zone(section.timezone)
        self._rules = (*user_rules(section.rules), *RULES)
        self._patterns = [
            compile_pattern(text, "train_log.path_patterns") for text in section.path_patterns
        ]
        self._files = FileSet(section.globs, section.history_secs, section.max_files, self.counters)
        units = [argument for unit in section.units for argument in ("-u", unit)]
        self._journal = Journal(units) if units else None
        self._stdin: Stdin | None = None
        self._filters: dict[str, LineFilter] = {}
        self._restored: dict[str, FilterState] = {}
        self._spans = Spans()
        self._last_read_unix_ns: int | None = None
        self._scanned_monotonic_ns: int | None = None
        self._names_files_only = (
            bool(section.globs)
            and not any(map(glob.has_magic, section.globs))
            and not (section.units or section.stdin)
        )

    def probe(self) -> None:
        """Something must be configured.

        Raises:
            ReaderUnsupported: no glob, unit or standard input is.
        """
        if not (self._section.globs or self._section.units or self._section.stdin):
            message = "train_log.globs is empty: name the logs to follow"
            raise ReaderUnsupported(message)

    def read(self, now: Now) -> list[Event]:
        """What is new in all logs.

        Raises:
            ServiceError: journald cannot be read; no file that was named is there.
        """
        self._scan(now)
        if not self._files.is_following() and self._names_files_only:
            message = f"nothing to read at {', '.join(self._section.globs)}"
            raise ServiceError(message)
        self._spans.begin()
        events: list[Event] = []
        sent_chars = 0
        for path, tailed in self._files.read(now.monotonic_ns):
            for event in self._events(path, tailed, now):
                events.append(event)
                sent_chars += len(event.line)
            if sent_chars > MAX_SENT_CHARS:
                break
        if self._section.stdin:
            self._stdin = self._stdin or Stdin(now.boottime_ns)
            events.extend(self._events("stdin", self._stdin.read(now.unix_ns), now))
        if self._journal is not None:
            since_unix_ns = now.unix_ns - round(self._section.history_secs * 1e9)
            events.extend(self._journal_events(self._journal.read(since_unix_ns), now))
        self._last_read_unix_ns = now.unix_ns
        return events

    def checkpoint(self) -> str:
        """Positions of all files and of the journal, and what the lines after them depend on."""
        cursor = _Cursor(
            files=self._files.positions(),
            journal=self._journal.cursor if self._journal is not None else None,
            spans=self._spans.used,
            filters=self._filter_states(),
        )
        return msgspec.json.encode(cursor).decode()

    def restore(self, state: str) -> None:
        """Go on from there."""
        try:
            cursor = msgspec.json.decode(state, type=_Cursor)
        except msgspec.DecodeError:
            self.counters.error("checkpoint")
            return
        self._files.restore(cursor.files)
        self._restored = cursor.filters
        if self._journal is not None:
            self._journal.cursor = cursor.journal

    def expect(self, checkpoints: list[str]) -> None:
        """Lines read up to there, if they come again, keep the times that they had."""
        for text in checkpoints:
            try:
                self._spans.expect(msgspec.json.decode(text, type=_Cursor).spans)
            except msgspec.DecodeError:
                self.counters.error("checkpoint")

    def close(self) -> None:
        """Let go of all files."""
        self._files.close()

    def _scan(self, now: Now) -> None:
        last = self._scanned_monotonic_ns
        if last is None or now.monotonic_ns - last >= self._section.rescan_secs * 1e9:
            self._files.scan(now.unix_ns)
            self._scanned_monotonic_ns = now.monotonic_ns

    def _events(self, path: str, tailed: Tailed, now: Now) -> Iterator[LogEvent]:
        if tailed.cut:
            self.counters.skip("too_long", tailed.cut)
        origin = origin_of(path, self._patterns)
        last_ns = self._last_read_unix_ns if tailed.stream in self._filters else None
        chosen = self._filter(tailed.stream)
        for span, lines in self._spans.split(tailed, now.unix_ns, last_ns):
            texts = [clean(raw.body) for raw in lines]
            times = times_of(
                texts,
                self._zone,
                now_unix_ns=span.now_unix_ns,
                modified_unix_ns=span.modified_unix_ns,
                last_read_unix_ns=span.last_read_unix_ns,
            )
            for raw, text, unix_ns in zip(lines, texts, times, strict=True):
                if (kept := chosen.take(unwrapped(text), now.monotonic_ns)) is not None:
                    yield self._event(kept, origin, path, tailed.stream, raw.offset, unix_ns)

    def _journal_events(self, entries: list[Entry], now: Now) -> Iterator[LogEvent]:
        for entry in entries:
            chosen = self._filter("journal")
            if (kept := chosen.take(clean(entry.text.encode()), now.monotonic_ns)) is not None:
                stream = f"journal:{entry.stream}"
                yield self._event(kept, Origin(), None, stream, entry.seq, entry.unix_ns)

    def _event(
        self,
        kept: Kept,
        origin: Origin,
        path: str | None,
        stream: str,
        seq: int,
        unix_ns: int,
    ) -> LogEvent:
        return LogEvent(
            time_unix_ns=unix_ns,
            cluster=self._context.cluster,
            node=self._context.node,
            boot_id=self._context.boot_id,
            stream=f"train:{stream}",
            seq=seq,
            source=kept.source,
            line=redact(kept.line),
            job_id=origin.job_id or self._section.job_id,
            rank=kept.rank if kept.rank is not None else origin.rank,
            path=path,
        )

    def _filter(self, stream: str) -> LineFilter:
        if stream not in self._filters:
            limit = Limit(self._section.max_lines_per_sec, self._section.burst_lines)
            state = self._restored.pop(stream, None)
            self._filters[stream] = LineFilter(self._rules, limit, self.counters, state)
            if len(self._filters) > MAX_STREAMS:
                del self._filters[next(iter(self._filters))]
        return self._filters[stream]

    def _filter_states(self) -> dict[str, FilterState]:
        """The states of filters that have one, of files that may go on."""
        followed = {at.stream for at in self._files.positions()}
        states = self._restored | {name: chosen.state for name, chosen in self._filters.items()}
        left = MAX_STATE_ENTRIES
        kept: dict[str, FilterState] = {}
        for stream, state in states.items():
            if stream in followed and 0 < state.size <= left:
                kept[stream] = state
                left -= state.size
        return kept
