"""Events from files: JSON Lines, plain or compressed, one file or folders of them, in order.

Several files are merged in event-time order (``received_unix_ns`` where events carry it); inside a
file the order is as written. A file is opened when the merge reaches its first event, so that
memory is bounded by the files that overlap in time.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from stethoscope.replay.chunks import CutShortError, chunks, lines
from stethoscope.schemas.codec import MAX_EVENT_BYTES, decode_line
from stethoscope.schemas.errors import BadEvent, InputError
from stethoscope.schemas.events import Event

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
_BOM = b"\xef\xbb\xbf"

OnBad: TypeAlias = Callable[[BadEvent, str], None]
OnBytes: TypeAlias = Callable[[int], None]


def read_events(
    paths: Sequence[Path], on_bad: OnBad, on_bytes: OnBytes | None = None
) -> Iterator[Event]:
    """All events under the paths, in order.

    Args:
        paths: files, or folders that are searched for event files.
        on_bad: told of what cannot be read, with ``file:line``.
        on_bytes: told how many bytes of the files (as stored) were read, for a progress bar.

    Raises:
        InputError: a path is missing, empty, of the wrong kind, or no file holds any event.
    """
    files = find_files(paths)
    count = _Counter(on_bad)
    for event in _merged(files, count.bad, on_bytes or _ignore_bytes):
        count.events += 1
        yield event
    if not count.events:
        detail = f"; first: {count.first}" if count.first else ""
        names = ", ".join(str(path) for path in paths)
        msg = f"{names}: no readable event ({count.refused} lines refused{detail})"
        raise InputError(msg)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The event files under the paths, each checked: present, not empty, what its name says.

    Raises:
        InputError: as ``read_events``. Inside a folder, empty files are passed over, and what a
            file holds is looked at only when it is read.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            files.update(dict.fromkeys(_folder(path)))
        else:
            _check(path)
            files[path] = None
    return list(files)


def _folder(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
    found = [path for path in found if path.stat().st_size]
    if not found:
        msg = f"{folder}: no event files in this folder; expected names ending in {_known()}"
        raise InputError(msg)
    return found  # each is checked when it is opened: one bad file does not spoil the rest


def _check(path: Path) -> None:
    if not path.exists():
        msg = f"{path}: no such file or folder; check the path"
        raise InputError(msg)
    if not path.name.endswith(SUFFIXES) or not path.is_file():
        msg = f"{path}: not an event file; expected a name ending in {_known()}"
        raise InputError(msg)
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise InputError(msg) from error
    if not head:
        msg = f"{path}: the file is empty; nothing to read"
        raise InputError(msg)
    _check_content(path, head)


def _check_content(path: Path, head: bytes) -> None:
    if magic := _MAGIC.get(path.suffix):
        if not head.startswith(magic):
            msg = (
                f"{path}: does not hold what its name says ({path.suffix}); rename or re-export it"
            )
            raise InputError(msg)
        return
    for suffix, magic in _MAGIC.items():
        if head.startswith(magic):
            msg = f"{path}: is compressed; rename it to end in .jsonl{suffix}"
            raise InputError(msg)
    if b"\0" in head and not head.lstrip(_BOM + b" \r\n\t").startswith(b"{"):
        msg = f"{path}: a binary file, not JSON Lines; expected one JSON object a line"
        raise InputError(msg)


def _known() -> str:
    return ", ".join(SUFFIXES)


class _Counter:
    """Counts events and refusals on their way through."""

    def __init__(self, on_bad: OnBad) -> None:
        self._on_bad = on_bad
        self.events = 0
        self.refused = 0
        self.first = ""

    def bad(self, error: BadEvent, where: str) -> None:
        """Pass a refusal on, and remember it."""
        self.refused += 1
        self.first = self.first or f"{where}: {error}"
        self._on_bad(error, where)


def _merged(files: list[Path], on_bad: OnBad, on_bytes: OnBytes) -> Iterator[Event]:
    if len(files) == 1:
        yield from _file_events(files[0], on_bad, on_bytes)
        return
    waiting = sorted((_first_key(path), i) for i, path in enumerate(files))
    waiting.reverse()  # the earliest is popped from the end
    heap: list[tuple[int, int, Event, Iterator[Event]]] = []
    while waiting or heap:
        while waiting and (not heap or waiting[-1] <= heap[0][:2]):
            index = waiting.pop()[1]
            _push(heap, index, _file_events(files[index], on_bad, on_bytes))
        if not heap:
            continue
        _, index, event, events = heapq.heappop(heap)
        yield event
        _push(heap, index, events)


def _push(
    heap: list[tuple[int, int, Event, Iterator[Event]]], index: int, events: Iterator[Event]
) -> None:
    event = next(events, None)
    if event is not None:
        heapq.heappush(heap, (event_order(event), index, event, events))


def event_order(event: Event) -> int:
    """When the event comes in a merge: its arrival, where it is known, else its time."""
    return event.time_unix_ns if event.received_unix_ns is None else event.received_unix_ns


def _first_key(path: Path) -> int:
    for event in _file_events(path, _ignore_bad, _ignore_bytes):
        return event_order(event)
    return 0


def _ignore_bad(error: BadEvent, where: str) -> None:
    """The first look at a file reports nothing; the real reading does."""


def _ignore_bytes(count: int) -> None:
    """Nobody watches the progress."""


def _file_events(path: Path, on_bad: OnBad, on_bytes: OnBytes) -> Iterator[Event]:
    number = 0
    try:
        _check(path)
    except InputError as error:
        on_bad(BadEvent("not_json", str(error)), str(path))
        return
    try:
        for line in lines(chunks(path, on_bytes), MAX_EVENT_BYTES):
            number += 1
            if number == 1 and line.startswith(_BOM):
                line = line[len(_BOM) :]
            try:
                event = decode_line(line)
            except BadEvent as error:
                if line and not line.isspace():
                    on_bad(error, f"{path}:{number}")
                continue
            yield event
    except CutShortError as error:
        on_bad(BadEvent("truncated", str(error)), f"{path}:{number + 1}")
