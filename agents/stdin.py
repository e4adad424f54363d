"""Lines of standard input, read without waiting."""

import os
import select
import sys

from stethoscope.agents.tail import CHUNK_BYTES, Tailed, cut_lines

MAX_READ_BYTES = 16 * 1024 * 1024


class StreamTail:
    """Lines of a pipe: what comes is fed in, offsets count its bytes."""

    def __init__(self) -> None:
        self._rest = b""
        self._offset = 0
        self._skipping = False

    def feed(self, data: bytes, tailed: Tailed) -> None:
        """Add the whole lines so far to ``tailed``; the rest waits for more."""
        chunk = self._rest + data
        used, self._skipping = cut_lines(chunk, self._offset, tailed, skipping=self._skipping)
        self._offset += used
        self._rest = chunk[used:]

    def end(self, tailed: Tailed) -> None:
        """The pipe has closed: its last half line is whole."""
        self.feed(b"\n", tailed)


class Stdin:
    """Standard input. Its stream is named by when reading began: a pipe cannot be read again."""

    def __init__(self, started_boottime_ns: int) -> None:
        self._tail = StreamTail()
        self._stream = f"stdin:{started_boottime_ns}"
        self._ended = False

    def read(self, unix_ns: int) -> Tailed:
        """The whole lines that came; all of the rest once it has closed."""
        tailed = Tailed(self._stream, modified_unix_ns=unix_ns)
        handle = sys.stdin.fileno()
        taken = 0
        while not self._ended and taken < MAX_READ_BYTES and select.select([handle], [], [], 0)[0]:
            data = os.read(handle, CHUNK_BYTES)
            taken += len(data)
            if data:
                self._tail.feed(data, tailed)
            else:
                self._tail.end(tailed)
                self._ended = True
        return tailed
