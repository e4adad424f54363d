"""Follow one file's lines through growth, rotation, truncation and whatever else befalls it.

Position is kept at the end of the last whole line, so that what is half written is read again.
A rotated file is read on beside its successor until it is quiet. The *generation* counts the files
seen at a path, so that (path, inode, generation, offset) never names two lines.
"""

import errno
import os
import stat
import time
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

MAX_LINE_BYTES = 64 * 1024
CHUNK_BYTES = 256 * 1024
# After this long without growth a half-written last line is taken as whole (its writer died), and
# a rotated file is left.
QUIET_SECS = 10.0
_MARK_BYTES = 32


class Position(Struct, frozen=True, omit_defaults=True):
    """Where a file was read to.

    ``mark_hex``: the last bytes before the offset, by which a truncated and refilled file shows.
    ``skipping``: the offset is inside a line too long, whose rest is dropped.
    """

    path: str
    inode: int = 0
    generation: int = 0
    offset: int = 0
    mark_hex: str = ""
    skipping: bool = False

    @property
    def stream(self) -> str:
        """Names the file, so that an offset in it names a line."""
        return f"{self.path}:{self.inode}.{self.generation}"


class RawLine(NamedTuple):
    """One line: its first byte's offset, and its bytes without the line end."""

    offset: int
    body: bytes


class Tailed(Struct):
    """Lines read at once from one file.

    ``cut``: how many of them were too long and lost their rest. ``modified_unix_ns``: the file's
    own last change.
    """

    stream: str
    lines: list[RawLine] = field(default_factory=list)
    cut: int = 0
    modified_unix_ns: int = 0


class OpenFile:
    """One open file, whatever its name by now, and where it was read to."""

    def __init__(self, handle: int, at: Position) -> None:
        self._handle = handle
        self.at = at
        self._size = -1
        self._grown_monotonic_ns = 0

    def is_same(self, status: os.stat_result) -> bool:
        """Whether that is this file."""
        mine = os.fstat(self._handle)
        return (status.st_dev, status.st_ino) == (mine.st_dev, mine.st_ino)

    def restart_if_truncated(self) -> None:
        """Begin anew, as the next generation, where the bytes before the position have changed."""
        mark = bytes.fromhex(self.at.mark_hex)
        before = os.pread(self._handle, len(mark), self.at.offset - len(mark)) if mark else b""
        if before != mark or os.fstat(self._handle).st_size < self.at.offset:
            self.at = Position(self.at.path, self.at.inode, self.at.generation + 1)

    def skip_to_end(self) -> None:
        """Go on after what is there now; a line under way is left out as well."""
        size = os.fstat(self._handle).st_size
        mark = os.pread(self._handle, _MARK_BYTES, max(0, size - _MARK_BYTES))
        self._move(size, mark, skipping=size > 0 and mark[-1:] not in {b"\n", b"\r"})

    def take(self, monotonic_ns: int, max_bytes: int) -> Tailed:
        """Whole lines from the position on, and a half one that nobody finishes."""
        status = os.fstat(self._handle)
        if status.st_size != self._size:
            # At first sight, a file that nobody has written to for long is quiet already.
            idle_ns = time.time_ns() - status.st_mtime_ns if self._size < 0 else 0
            self._size, self._grown_monotonic_ns = status.st_size, monotonic_ns - max(0, idle_ns)
        tailed = Tailed(stream=self.at.stream, modified_unix_ns=status.st_mtime_ns)
        while max_bytes > 0:
            chunk = os.pread(self._handle, CHUNK_BYTES, self.at.offset)
            used = self._cut_lines(chunk, tailed)
            if used == 0:
                if chunk and self.is_quiet(monotonic_ns):
                    self._take_half(chunk, tailed)
                break
            max_bytes -= used
        return tailed

    def is_quiet(self, monotonic_ns: int) -> bool:
        """Nothing came for ``QUIET_SECS``."""
        return monotonic_ns - self._grown_monotonic_ns >= QUIET_SECS * 1e9

    def is_finished(self, monotonic_ns: int) -> bool:
        """Quiet, and read to its end."""
        return self.is_quiet(monotonic_ns) and self.at.offset >= self._size

    def close(self) -> None:
        """Let go of the file; not to be used afterwards."""
        os.close(self._handle)

    def _cut_lines(self, chunk: bytes, tailed: Tailed) -> int:
        """Take whole lines from the chunk; how many bytes they and their ends took."""
        used, skipping = cut_lines(chunk, self.at.offset, tailed, skipping=self.at.skipping)
        if used:
            self._move(self.at.offset + used, chunk[:used], skipping=skipping)
        return used

    def _take_half(self, chunk: bytes, tailed: Tailed) -> None:
        if not self.at.skipping:
            tailed.lines.append(RawLine(self.at.offset, chunk))
        self._move(self.at.offset + len(chunk), chunk, skipping=self.at.skipping)

    def _move(self, offset: int, before: bytes, *, skipping: bool) -> None:
        at = self.at
        mark_hex = before[-_MARK_BYTES:].hex()
        self.at = Position(at.path, at.inode, at.generation, offset, mark_hex, skipping)


class FileTail:
    """One path: the file there now, and the one that was there before until it falls quiet."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._current: OpenFile | None = None
        self._old: OpenFile | None = None
        self._generation = 0
        self._last: Position | None = None

    def open_at(self, positions: list[Position]) -> None:
        """Open the path, going on from where it was read to before, rotated meanwhile or not.

        Raises:
            OSError: the path cannot be read: gone, forbidden, a directory.
        """
        self._generation = max((at.generation for at in positions), default=-1) + 1
        here = _inode(self.path)
        for at in positions:
            if at.inode != here and (handle := _find(at)) is not None:
                self._old = OpenFile(handle, at)
                break
        current = self._open()
        same = [at for at in positions if at.inode == current.at.inode]
        if same:
            current.at = same[0]
        self._current = current

    def skip_to_end(self) -> None:
        """Go on after what is there now."""
        if self._current is not None:
            self._current.skip_to_end()

    def read(self, monotonic_ns: int, max_bytes: int = 1 << 30) -> list[Tailed]:
        """What is new: of the old file, then of the one at the path.

        Raises:
            OSError: the path cannot be read, and no file that was there before is left to read.
        """
        self._follow_path()
        found: list[Tailed] = []
        if self._old is not None:
            found.append(self._old.take(monotonic_ns, max_bytes))
            if self._old.is_finished(monotonic_ns):
                self._let_go_of_old()
        if self._current is not None:
            self._current.restart_if_truncated()
            self._generation = max(self._generation, self._current.at.generation + 1)
            found.append(self._current.take(monotonic_ns, max_bytes))
        return [tailed for tailed in found if tailed.lines or tailed.cut]

    def positions(self) -> list[Position]:
        """Where the files were read to, the one at the path first; of those gone, the last one."""
        there = [file.at for file in (self._current, self._old) if file is not None]
        # The file system may give the number of a deleted file to the next: generations go on.
        return there or ([self._last] if self._last is not None else [])

    def is_gone(self) -> bool:
        """Nothing left to read."""
        return self._current is None and self._old is None

    def close(self) -> None:
        """Let go of the files."""
        for file in (self._current, self._old):
            if file is not None:
                file.close()
        self._current = self._old = None

    def _follow_path(self) -> None:
        try:
            status = Path(self.path).stat()
            if self._current is None or not self._current.is_same(status):
                self._retire()
                self._current = self._open()
        except OSError:
            self._retire()
            if self._old is None:
                raise

    def _retire(self) -> None:
        if self._current is None:
            return
        self._let_go_of_old()
        self._old, self._current = self._current, None

    def _let_go_of_old(self) -> None:
        if self._old is not None:
            self._old.close()
            self._last, self._old = self._old.at, None

    def _open(self) -> OpenFile:
        # Without O_NONBLOCK a FIFO that nobody writes to would block for ever.
        handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "not a regular file", self.path)
        return OpenFile(handle, Position(self.path, status.st_ino, self._generation))


def _inode(path: str) -> int | None:
    try:
        return Path(path).stat().st_ino
    except OSError:
        return None  # opening it will say why


def _find(at: Position) -> int | None:
    """The file of that position, where it lies beside its path under another name now."""
    try:
        with os.scandir(Path(at.path).parent) as entries:
            for entry in entries:
                if entry.inode() == at.inode and entry.path != at.path and entry.is_file():
                    return os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # the directory or the file went meanwhile: nothing left to finish
    return None


def cut_lines(chunk: bytes, offset: int, tailed: Tailed, *, skipping: bool) -> tuple[int, bool]:
    r"""Add the chunk's whole lines to ``tailed``; bytes used, and whether a long line goes on.

    A line ends at ``\n`` or ``\r``: a progress bar's frame is one. ``offset`` is the chunk's
    first byte's; ``skipping``: the chunk begins inside of a line of which enough is taken.
    """
    start = 0
    for piece in chunk.replace(b"\r", b"\n").split(b"\n")[:-1]:
        if piece and not skipping:
            tailed.lines.append(_capped(offset + start, piece, tailed))
        skipping = False
        start += len(piece) + 1
    if len(chunk) - start > MAX_LINE_BYTES:
        if not skipping:
            tailed.lines.append(_capped(offset + start, chunk[start:], tailed))
        return len(chunk), True
    return start, skipping


def _capped(offset: int, body: bytes, tailed: Tailed) -> RawLine:
    if len(body) > MAX_LINE_BYTES:
        tailed.cut += 1
        body = body[:MAX_LINE_BYTES]
    return RawLine(offset, body)
