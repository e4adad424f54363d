"""What gave the lines of each read of a file their times, so that a line read again has the same.

A line without an exact stamp takes its time from when it was read. After a crash, lines that may
have been sent already are read again, and their events must not differ.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from stethoscope.agents.tail import RawLine, Tailed


class Span(Struct, frozen=True, array_like=True):
    """One read of one file: its first and last line by offset, and the times that it went by."""

    stream: str
    first: int
    last: int
    now_unix_ns: int
    modified_unix_ns: int
    last_read_unix_ns: int | None = None


class Spans:
    """The spans of the newest read that found lines, and those expected to come again."""

    def __init__(self) -> None:
        self._expected: dict[str, list[Span]] = {}
        self._used: list[Span] = []
        self._is_new_read = True

    @property
    def used(self) -> list[Span]:
        """Those of the newest read that found lines."""
        return self._used

    def expect(self, spans: Sequence[Span]) -> None:
        """Lines in these may be read again; in the order they were read."""
        for span in spans:
            self._expected.setdefault(span.stream, []).append(span)

    def begin(self) -> None:
        """A new read starts."""
        self._is_new_read = True

    def split(
        self, tailed: Tailed, now_unix_ns: int, last_read_unix_ns: int | None
    ) -> Iterator[tuple[Span, list[RawLine]]]:
        """The lines by span: as they were read before, the rest as they are read now."""
        fresh = Span(tailed.stream, 0, 0, now_unix_ns, tailed.modified_unix_ns, last_read_unix_ns)
        left = tailed.lines
        for span in self._passed(tailed):
            before = [line for line in left if line.offset < span.first]
            again = [line for line in left if span.first <= line.offset <= span.last]
            left = [line for line in left if line.offset > span.last]
            if before:
                yield self._use(_over(before, fresh)), before
            if again:
                yield self._use(span), again
        if left:
            yield self._use(_over(left, fresh)), left

    def _passed(self, tailed: Tailed) -> list[Span]:
        """What is expected of this stream; what these lines go beyond, for the last time."""
        spans = self._expected.pop(tailed.stream, [])
        end = tailed.lines[-1].offset if tailed.lines else -1
        if later := [span for span in spans if span.last > end]:
            self._expected[tailed.stream] = later
        return spans

    def _use(self, span: Span) -> Span:
        if self._is_new_read:
            self._used, self._is_new_read = [], False
        self._used.append(span)
        return span


def _over(lines: list[RawLine], span: Span) -> Span:
    return replace(span, first=lines[0].offset, last=lines[-1].offset)
