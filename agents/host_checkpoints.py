"""The newest complete checkpoint of a directory, whatever framework wrote it.

Known layouts: Megatron-LM and NeMo (``iter_0001000``, ``latest_checkpointed_iteration.txt``),
DeepSpeed (``global_step100``, ``latest``), Hugging Face (``checkpoint-500`` with
``trainer_state.json``), torch distributed checkpoint (``step-100`` with ``.metadata``), Lightning
(``epoch=1-step=100.ckpt``) and plain files ``*_100.pt``.
"""

import os
import re
from pathlib import Path

from msgspec import Struct

from stethoscope.schemas.events import Checkpoint

MAX_ENTRIES = 10_000
MAX_FILES = 20_000
TRACKERS = ("latest_checkpointed_iteration.txt", "latest", "latest_checkpoint.txt")
_STEP = re.compile(r"(?:iter|step|checkpoint|ckpt)[_=-]?0*(\d{1,12})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,12})(?=\D*$)")
_UNFINISHED = re.compile(r"(?:^tmp|^\.|[._-](?:tmp|temp|partial|incomplete|unfinished)\b)", re.I)
_FILES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp")
# What a framework writes last, once everything else is there.
_LAST_WRITTEN = (".metadata", "trainer_state.json", "metadata.json", "common.pt")


class _Entry(Struct, frozen=True):
    """One checkpoint: a folder, or a file of its own."""

    path: Path
    step: int
    modified_ns: int
    is_dir: bool


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name.

    >>> step_of("iter_0001000"), step_of("epoch=1-step=250.ckpt"), step_of("logs")
    (1000, 250, None)
    """
    match = _STEP.search(name)
    if match is None and name.endswith(_FILES):
        match = _LAST_NUMBER.search(name.rsplit(".", 1)[0])
    return int(match[1]) if match else None


def newest_checkpoint(directory: Path) -> Checkpoint:
    """Look at one directory of checkpoints.

    ``complete`` is false when only unfinished ones exist, ``None`` when there are none at all.

    Raises:
        OSError: the directory cannot be read.
    """
    entries = sorted(_entries(directory), key=lambda e: (e.step, e.modified_ns), reverse=True)
    tracked = _tracked_step(directory)
    for entry in entries:
        if _is_complete(entry, tracked):
            return _checkpoint(directory, entry, complete=True)
    if entries:
        return _checkpoint(directory, entries[0], complete=False)
    return Checkpoint(path=str(directory))


def _entries(directory: Path) -> list[_Entry]:
    found: list[_Entry] = []
    with os.scandir(directory) as listing:
        for count, item in enumerate(listing):
            if count >= MAX_ENTRIES:
                break
            step = step_of(item.name)
            is_dir = item.is_dir()
            if step is None or not (is_dir or item.name.endswith(_FILES)):
                continue
            try:
                modified_ns = item.stat().st_mtime_ns
            except FileNotFoundError:  # removed meanwhile
                continue
            found.append(_Entry(Path(item.path), step, modified_ns, is_dir))
    return found


def _tracked_step(directory: Path) -> int | None:
    """The step of the framework's own note of the last checkpoint it finished."""
    for name in TRACKERS:
        path = directory / name
        if path.is_file():
            with path.open("rb") as file:
                text = file.read(200).decode(errors="replace").strip()
            if text.isascii() and text.isdigit():
                return int(text)
            if (step := step_of(text)) is not None:
                return step
    return None


def _is_complete(entry: _Entry, tracked: int | None) -> bool:
    if _UNFINISHED.search(entry.path.name):
        return False
    if tracked is not None:
        return entry.step <= tracked
    if not entry.is_dir:
        return True
    names = {path.name for path in entry.path.iterdir()}
    if names & set(_LAST_WRITTEN):
        return True
    # Shards of a distributed checkpoint without its .metadata are still being written.
    return bool(names) and not any(name.endswith(".distcp") for name in names)


def _checkpoint(directory: Path, entry: _Entry, complete: bool) -> Checkpoint:
    size, modified_ns = _size(entry)
    return Checkpoint(
        path=str(directory),
        newest_unix_ns=modified_ns,
        newest_step=entry.step,
        bytes=size,
        complete=complete,
    )


def _size(entry: _Entry) -> tuple[int, int]:
    """Bytes of all files, and when the last of them was written."""
    if not entry.is_dir:
        return entry.path.stat().st_size, entry.modified_ns
    total, newest, files = 0, 0, 0
    for folder, _, names in os.walk(entry.path):
        for name in names:
            files += 1
            if files > MAX_FILES:
                return total, newest or entry.modified_ns
            try:
                status = (Path(folder) / name).stat()
            except FileNotFoundError:  # removed meanwhile
                continue
            total += status.st_size
            newest = max(newest, status.st_mtime_ns)
    return total, newest or entry.modified_ns
