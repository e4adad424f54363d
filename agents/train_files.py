"""The set of training-log files: found by glob, opened, followed, forgotten."""

import glob
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from stethoscope.agents.reader import Counters
from stethoscope.agents.tail import FileTail, Position, Tailed

MAX_PARKED = 4096
MAX_READ_BYTES = 32 * 1024 * 1024


class FileSet:
    """Files that any of the globs names; a directory stands for the files in it.

    At most ``max_files`` are open, the last modified first. Positions of files that went are kept
    for ``MAX_PARKED`` paths, so that a path that comes back is not read twice.
    """

    def __init__(
        self, globs: Sequence[str], history_secs: float, max_files: int, counters: Counters
    ) -> None:
        self._globs = list(globs)
        self._history_ns = round(history_secs * 1e9)
        self._max_files = max_files
        self._counters = counters
        self._tails: dict[str, FileTail] = {}
        self._parked: OrderedDict[str, list[Position]] = OrderedDict()
        self._first = True

    def scan(self, unix_ns: int) -> None:
        """Look for files that are new; take up where their path was read to before."""
        for path, literal in self._found():
            if path in self._tails:
                continue
            positions = self._parked.get(path, [])
            tail = FileTail(path)
            try:
                tail.open_at(positions)
                old = unix_ns - Path(path).stat().st_mtime_ns > self._history_ns
            except OSError:
                self._counters.error(path)
                continue
            if self._first and not literal and not positions and old:
                tail.skip_to_end()
            self._parked.pop(path, None)
            self._tails[path] = tail
        self._first = False

    def read(self, monotonic_ns: int) -> Iterator[tuple[str, Tailed]]:
        """What is new, by path."""
        for path, tail in list(self._tails.items()):
            before = tail.positions()
            try:
                for tailed in tail.read(monotonic_ns, MAX_READ_BYTES):
                    yield path, tailed
            except FileNotFoundError:
                self._park(path, before)
            except OSError:
                self._counters.error(path)
                if tail.is_gone():
                    self._park(path, before)

    def is_following(self) -> bool:
        """Whether any file is open."""
        return bool(self._tails)

    def positions(self) -> list[Position]:
        """Where every file was read to, those that went included."""
        known = [at for tail in self._tails.values() for at in tail.positions()]
        return known + [at for positions in self._parked.values() for at in positions]

    def restore(self, positions: list[Position]) -> None:
        """Go on from positions of an earlier life."""
        for at in positions:
            self._parked.setdefault(at.path, []).append(at)
        self._first = False

    def close(self) -> None:
        """Let go of all files."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def _park(self, path: str, positions: list[Position]) -> None:
        self._tails.pop(path).close()
        if positions:
            self._parked[path] = positions
        while len(self._parked) > MAX_PARKED:
            self._parked.popitem(last=False)

    def _found(self) -> list[tuple[str, bool]]:
        """Paths and whether they were written out; each file once, under its own name."""
        literal: dict[str, bool] = {}
        for pattern in self._globs:
            plain = not glob.has_magic(pattern)
            # Path.glob takes no absolute patterns.
            for path in [pattern] if plain else glob.iglob(pattern, recursive=True):  # noqa: PTH207
                for file in _files_of(path):
                    literal[file] = plain or literal.get(file, False)
        named = [path for path in literal if _is_utf8(path)]
        if len(named) < len(literal):
            self._counters.skip("bad_file_name", len(literal) - len(named))
        files = [path for path in named if Path(path).is_file() or literal[path]]
        files.sort(key=lambda path: (Path(path).is_symlink(), path))
        by_target: dict[str, str] = {}
        for path in files:
            by_target.setdefault(os.path.realpath(path), path)
        chosen = list(by_target.values())
        if len(chosen) > self._max_files:
            chosen.sort(key=_modified, reverse=True)
            self._counters.skip("too_many_files", len(chosen) - self._max_files)
            chosen = chosen[: self._max_files]
        return [(path, literal[path]) for path in chosen]


def _files_of(path: str) -> list[str]:
    if not Path(path).is_dir():
        return [path]
    return [str(entry) for entry in Path(path).iterdir() if entry.is_file()]


def _is_utf8(path: str) -> bool:
    """Whether events and positions can hold the path."""
    try:
        path.encode()
    except UnicodeEncodeError:  # bytes that are none, as os.fsdecode keeps them
        return False
    return True


def _modified(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0  # it went between listing and asking: last in line
