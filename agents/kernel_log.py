"""The kernel log: ``/dev/kmsg``, else journald, else a file; equal lines folded."""

import shutil
from collections.abc import Iterator
from datetime import tzinfo
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct, field

from stethoscope.agents.fold import Fold, Stream
from stethoscope.agents.journal import Journal
from stethoscope.agents.kernel_text import matters, message_of
from stethoscope.agents.kmsg import Kmsg
from stethoscope.agents.line_time import line_time, load_zone, secs_since_boot_ns
from stethoscope.agents.reader import Context, Counters, Now
from stethoscope.agents.redact import redact
from stethoscope.agents.spans import Span, Spans
from stethoscope.agents.tail import FileTail, Position
from stethoscope.agents.train_lines import clean
from stethoscope.schemas.agent_config import KernelLog
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import Event, LogEvent

MAX_FILE_BYTES = 64 * 1024 * 1024
# A storm is the same few lines over and over.
_matters = lru_cache(maxsize=256)(matters)
_redact = lru_cache(maxsize=256)(redact)
# The wall clock drifts against the boot clock; a smaller step than this moves no event's time.
_STEP_NS = 10**9 // 2


class Line(NamedTuple):
    """One kernel line from whichever source."""

    stream: str
    seq: int
    unix_ns: int
    text: str


class Cursor(Struct, omit_defaults=True):
    """The reader's checkpoint, and its whole position: one of the three sources uses its part."""

    boot_id: str = ""
    next_seq: int = 0
    boot_unix_ns: int | None = None
    journal: str | None = None
    files: list[Position] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)


class Source(Protocol):
    """Where kernel lines come from. ``read`` goes on from the cursor and moves it."""

    def read(self, now: Now, cursor: Cursor) -> Iterator[Line]:
        """Lines not yet seen."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class KmsgSource:
    """``/dev/kmsg``. Times are the record's own, put on the wall clock by the time of boot."""

    def __init__(self, path: str, history_secs: float, counters: Counters) -> None:
        self._kmsg = Kmsg(path)
        self._history_ns = round(history_secs * 1e9)
        self._counters = counters

    def read(self, now: Now, cursor: Cursor) -> Iterator[Line]:
        """Records not yet seen; the very first read leaves out what is older than the history."""
        boot_unix_ns = _boot_unix_ns(now, cursor)
        first = cursor.next_seq == 0
        self._kmsg.next_seq = cursor.next_seq
        for record in self._kmsg.read():
            cursor.next_seq = record.seq + 1
            unix_ns = boot_unix_ns + record.usec * 1000
            if first and now.unix_ns - unix_ns > self._history_ns:
                self._counters.skip("old")
                continue
            yield Line("kernel", record.seq, unix_ns, record.text)
        if self._kmsg.overruns:
            self._counters.skip("overrun", self._kmsg.overruns)
            self._kmsg.overruns = 0

    def close(self) -> None:
        """Let go of the device."""
        self._kmsg.close()


class JournalSource:
    """journald's copy of the kernel log."""

    def __init__(self, history_secs: float) -> None:
        self._journal = Journal(["-k"])
        self._history_ns = round(history_secs * 1e9)

    def read(self, now: Now, cursor: Cursor) -> Iterator[Line]:
        """Entries after the cursor."""
        self._journal.cursor = cursor.journal
        for entry in self._journal.read(now.unix_ns - self._history_ns):
            yield Line(f"kernel:journal:{entry.stream}", entry.seq, entry.unix_ns, entry.text)
        cursor.journal = self._journal.cursor

    def close(self) -> None:
        """Nothing is held."""


class FileSource:
    """A file that ``dmesg`` or a syslog daemon writes; followed through rotation."""

    def __init__(self, path: str, zone: tzinfo | None, counters: Counters) -> None:
        self._tail = FileTail(path)
        self._zone = zone
        self._counters = counters
        self._spans = Spans()
        self._opened = False

    def read(self, now: Now, cursor: Cursor) -> Iterator[Line]:
        """New lines of the kernel, by the file's text."""
        if not self._opened:
            self._tail.open_at(cursor.files)
            self._spans.expect(cursor.spans)
            self._opened = True
        self._spans.begin()
        boot_unix_ns = _boot_unix_ns(now, cursor)
        for tailed in self._tail.read(now.monotonic_ns, MAX_FILE_BYTES):
            if tailed.cut:
                self._counters.skip("too_long", tailed.cut)
            for span, lines in self._spans.split(tailed, now.unix_ns, None):
                for raw in lines:
                    text = clean(raw.body)
                    message = message_of(text)
                    if message is None:
                        self._counters.skip("no_rule")
                        continue
                    unix_ns = self._time_of(text, span, boot_unix_ns)
                    yield Line(f"kernel:{tailed.stream}", raw.offset, unix_ns, message)
        cursor.files = self._tail.positions()
        cursor.spans = self._spans.used

    def close(self) -> None:
        """Let go of the file."""
        self._tail.close()

    def _time_of(self, text: str, span: Span, boot_unix_ns: int) -> int:
        if stamp := line_time(text, span.now_unix_ns, self._zone):
            return stamp.unix_ns
        since_boot_ns = secs_since_boot_ns(text)
        if since_boot_ns is not None and boot_unix_ns + since_boot_ns <= span.now_unix_ns:
            return boot_unix_ns + since_boot_ns
        return min(span.now_unix_ns, span.modified_unix_ns)


def _boot_unix_ns(now: Now, cursor: Cursor) -> int:
    """When the machine started; the same from read to read, unless the wall clock was set."""
    boot_unix_ns = now.unix_ns - now.monotonic_ns
    known_ns = cursor.boot_unix_ns
    if known_ns is None or abs(boot_unix_ns - known_ns) > _STEP_NS:
        cursor.boot_unix_ns = known_ns = boot_unix_ns
    return known_ns


class KernelLogReader:
    """Kernel lines that faults leave, once by (boot, sequence), equal ones with their count."""

    name = "kernel_log"
    hazardous = False

    def __init__(self, context: Context, section: KernelLog) -> None:
        self.period_secs = section.period_secs
        self.counters = Counters()
        self._context = context
        self._section = section
        self._zone = load_zone(section.timezone)
        self._source: Source | None = None
        self._fold = Fold(section.quiet_secs)
        self._cursor = Cursor(boot_id=context.boot_id)
        self._restored: list[Stream] = []
        self._is_first = True

    def probe(self) -> None:
        """One of the three sources can be read.

        Raises:
            ReaderUnsupported: none can; says why of each.
        """
        if self._source is None:
            self._source = self._choose()

    def read(self, now: Now) -> list[Event]:
        """New lines, and the rest of the counts of lines that stopped.

        Raises:
            ReaderUnsupported: no source, if ``probe`` was not called.
            OSError, ServiceError: the source went away.
        """
        self.probe()
        if self._restored:
            self._fold.restore(self._restored, now.monotonic_ns)
            self._restored = []
        events: list[Event] = []
        if self._source is not None:
            for line in self._source.read(now, self._cursor):
                if _matters(line.text):
                    events.extend(self._fold.add(self._event(line), now.monotonic_ns))
                else:
                    self.counters.skip("no_rule")
        if self._is_first:  # of a backlog, nothing more will come
            quiet_ns = round(self._section.quiet_secs * 1e9)
            events.extend(self._fold.end_older_than(now.unix_ns - quiet_ns))
            self._is_first = False
        events.extend(self._fold.flush(now.monotonic_ns))
        return events

    def checkpoint(self) -> str:
        """Position in the source, and the counts under way."""
        self._cursor.streams = self._fold.state()
        return msgspec.json.encode(self._cursor).decode()

    def restore(self, state: str) -> None:
        """Go on from there; kmsg's sequence and counts only within the same boot."""
        try:
            cursor = msgspec.json.decode(state, type=Cursor)
        except msgspec.DecodeError:
            self.counters.error("checkpoint")
            return
        if cursor.boot_id != self._context.boot_id:
            cursor = Cursor(journal=cursor.journal, files=cursor.files, streams=cursor.streams)
            cursor.boot_id = self._context.boot_id
        self._restored = cursor.streams
        self._is_first = False
        self._cursor = cursor

    def expect(self, checkpoints: list[str]) -> None:
        """Lines read up to there, if they come again, keep the times that they had."""
        for text in checkpoints:
            try:
                ahead = msgspec.json.decode(text, type=Cursor)
            except msgspec.DecodeError:
                self.counters.error("checkpoint")
                continue
            self._cursor.boot_unix_ns = ahead.boot_unix_ns or self._cursor.boot_unix_ns
            self._cursor.spans += ahead.spans

    def close(self) -> None:
        """Let go of the source."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _choose(self) -> Source:
        section = self._section
        if section.file is not None:
            if not Path(section.file).exists():
                message = f"{section.file} does not exist"
                raise ReaderUnsupported(message)
            return FileSource(section.file, self._zone, self.counters)
        try:
            return KmsgSource(section.device, section.history_secs, self.counters)
        except OSError as error:
            refused = f"{section.device}: {error.strerror}"
        if shutil.which("journalctl") and Path("/run/systemd/journal").is_dir():
            return JournalSource(section.history_secs)
        message = f"{refused} (give CAP_SYSLOG), no journald, and kernel_log.file is not set"
        raise ReaderUnsupported(message)

    def _event(self, line: Line) -> LogEvent:
        return LogEvent(
            time_unix_ns=line.unix_ns,
            cluster=self._context.cluster,
            node=self._context.node,
            boot_id=self._context.boot_id,
            stream=line.stream,
            seq=line.seq,
            source="kernel",
            line=_redact(line.text),
        )
