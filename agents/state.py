"""The agent's state directory: small files written whole or not at all, and its lock.

``cursors.json`` holds, for each reader that reads on from a position, where its source was read
to. A position is written only once the events before it are acked by Kafka or lie in the spool.
``ahead.json`` holds the later positions whose events may be out already.
"""

import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from stethoscope.schemas.errors import UsageError

T = TypeVar("T")
MAX_STATE_BYTES = 4 * 1024 * 1024


def write_atomically(path: Path, body: bytes, *, durable: bool = True) -> None:
    """Replace the file's content whole. ``durable``: also after a power cut.

    Raises:
        OSError: the disk refused; the old content stands.
    """
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(body)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    part.replace(path)
    if durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, kind: type[T]) -> T | None:
    """The file's content; ``None`` where it is absent, too large or cannot be read as ``kind``."""
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def default_state_dir(environ: dict[str, str]) -> Path:
    """Where the state goes unless told: systemd's ``STATE_DIRECTORY``, or by the user."""
    if given := environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/stethoscope")
    home = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "stethoscope"


class _Ahead(Struct, frozen=True):
    """Readers' positions beyond the written ones, oldest first; worth nothing in another boot."""

    boot_id: str
    positions: dict[str, list[str]]


class StateDir:
    """A directory that one agent at a time uses."""

    def __init__(self, path: Path) -> None:
        """Make and lock the directory.

        Raises:
            UsageError: it cannot be made or written, or another agent holds it.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            message = f"{path}: {error.strerror}; give a writable one with --state-dir"
            raise UsageError(message) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            message = f"{path}: another agent uses it; give this one its own with --state-dir"
            raise UsageError(message) from error

    def load_cursors(self) -> dict[str, str]:
        """Reader name → its position, in the reader's own words."""
        return read_json(self.path / "cursors.json", dict[str, str]) or {}

    def save_cursors(self, cursors: dict[str, str]) -> None:
        """Replace all positions.

        Raises:
            OSError: the disk refused; the old positions stand.
        """
        write_atomically(self.path / "cursors.json", msgspec.json.encode(cursors))

    def load_ahead(self, boot_id: str) -> dict[str, list[str]]:
        """Reader name → positions beyond the written one, whose events may be out already."""
        ahead = read_json(self.path / "ahead.json", _Ahead)
        return ahead.positions if ahead is not None and ahead.boot_id == boot_id else {}

    def save_ahead(self, boot_id: str, positions: dict[str, list[str]]) -> None:
        """Replace those. Outlives this process, not the machine: another boot has other ids.

        Raises:
            OSError: the disk refused.
        """
        body = msgspec.json.encode(_Ahead(boot_id, positions))
        write_atomically(self.path / "ahead.json", body, durable=False)

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._lock)
