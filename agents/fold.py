"""Equal log lines, folded at the source: the first, then at powers of two, then the rest.

A function of the lines and their own times alone, so that lines read again after a restart fold
into the very same events. ``count`` sums to the number of lines.
"""

import re
from collections import OrderedDict
from functools import lru_cache

from msgspec import Struct, structs

from stethoscope.schemas.events import LogEvent

MAX_STREAMS = 512
# A storm that goes on is told of at least this often: an incident lives 15 minutes after its last.
MAX_WAIT_NS = 60 * 10**9

_VARYING = re.compile(
    r"^\[\s*\d+\.\d+\]\s*|0x[0-9a-f]{5,}(?:_[0-9a-f]+)?|\b[0-9a-f]{12,16}\b", re.IGNORECASE
)
# NVLink errors (Xid 74, 144 to 150) put their meaning into hexadecimal words.
_HEX_IS_MEANING = re.compile(r"Xid[^:]*\([^)]*\): (?:74|14[4-9]|150),|SXid")


def fold_key(event: LogEvent) -> str:
    """What makes two lines equal: source, path, and the text but for stamps and addresses.

    Process ids and PCI addresses stay: they tell faults apart.
    """
    return f"{event.source}\0{event.path or ''}\0{event.rank}\0{_constant_part(event.line)}"


@lru_cache(maxsize=256)  # a storm is the same few lines over and over
def _constant_part(line: str) -> str:
    return line if _HEX_IS_MEANING.search(line) else _VARYING.sub("~", line)


class Stream(Struct):
    """One line being counted: lines so far, those not yet sent, and when one was last sent.

    ``seen_monotonic_ns``: when the last was taken, on the reader's clock.
    """

    total: int
    unsent: int
    sent_unix_ns: int
    seen_monotonic_ns: int
    last: LogEvent


class Fold:
    """Counts equal lines. At most ``MAX_STREAMS`` at a time; the longest quiet one gives way."""

    def __init__(self, quiet_secs: float) -> None:
        self._quiet_ns = round(quiet_secs * 1e9)
        self._streams: OrderedDict[str, Stream] = OrderedDict()
        self._newest_unix_ns = 0

    def add(self, event: LogEvent, monotonic_ns: int) -> list[LogEvent]:
        """Take one line; events to send, those of streams that fell quiet before it first."""
        self._newest_unix_ns = max(self._newest_unix_ns, event.time_unix_ns)
        sent = self.end_older_than(self._newest_unix_ns - self._quiet_ns)
        key = fold_key(event)
        stream = self._streams.pop(key, None)
        if stream is None:
            stream = Stream(0, 0, event.time_unix_ns, monotonic_ns, event)
        stream.total += 1
        stream.unsent += 1
        stream.seen_monotonic_ns = monotonic_ns
        stream.last = event
        self._streams[key] = stream
        waited_ns = event.time_unix_ns - stream.sent_unix_ns
        if stream.total & (stream.total - 1) == 0 or waited_ns >= MAX_WAIT_NS:
            sent.append(_send(stream))
        if len(self._streams) > MAX_STREAMS:
            sent.extend(self._retire())
        return sent

    def flush(self, monotonic_ns: int) -> list[LogEvent]:
        """End the streams of which nothing came for ``quiet_secs``: the rest of their counts."""
        sent: list[LogEvent] = []
        while self._streams:
            oldest = next(iter(self._streams.values()))
            if monotonic_ns - oldest.seen_monotonic_ns <= self._quiet_ns:
                break
            sent.extend(self._retire())
        return sent

    def end_older_than(self, unix_ns: int) -> list[LogEvent]:
        """End the streams whose last line was written before that."""
        sent: list[LogEvent] = []
        while self._streams:
            oldest = next(iter(self._streams.values()))
            if oldest.last.time_unix_ns >= unix_ns:
                break
            sent.extend(self._retire())
        return sent

    def drain(self) -> list[LogEvent]:
        """End all streams."""
        sent: list[LogEvent] = []
        while self._streams:
            sent.extend(self._retire())
        return sent

    def state(self) -> list[Stream]:
        """The open streams, the longest quiet first."""
        return list(self._streams.values())

    def restore(self, streams: list[Stream], monotonic_ns: int) -> None:
        """Go on with streams that ``state`` gave, as if their last lines came now."""
        for stream in streams[-MAX_STREAMS:]:
            stream.seen_monotonic_ns = monotonic_ns
            self._streams[fold_key(stream.last)] = stream

    def _retire(self) -> list[LogEvent]:
        _, stream = self._streams.popitem(last=False)
        return [_send(stream)] if stream.unsent else []


def _send(stream: Stream) -> LogEvent:
    count, stream.unsent = stream.unsent, 0
    stream.sent_unix_ns = stream.last.time_unix_ns
    return stream.last if count == 1 else structs.replace(stream.last, count=count)
