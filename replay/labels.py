"""The truth about a recording: one label a fault or decoy, as JSON Lines."""

from pathlib import Path

import msgspec
from msgspec import Struct, field

from stethoscope.schemas.errors import InputError
from stethoscope.schemas.findings import NS


class Root(Struct, frozen=True, omit_defaults=True):
    """Where the fault sits; other keys are ignored."""

    node: str | None = None
    gpu_index: int | None = None
    rank: int | None = None
    job_id: str | None = None


class Label(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault that happened, or one decoy.

    ``also``: other causes that are right too. ``page`` false is a decoy: nothing may page for it
    but the causes in ``tolerated``. ``optional``: true, but nobody need report it.
    ``grace_secs``: how long after the end a report still belongs to it.
    """

    id: str
    cause: str
    start_unix_ns: int
    end_unix_ns: int
    page: bool = True
    also: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)
    root: Root = field(default_factory=Root)
    tolerated: list[str] = field(default_factory=list)
    optional: bool = False
    grace_secs: float = 0.0

    @property
    def required(self) -> bool:
        """Whether a run that does not page for it has missed it."""
        return self.page and not self.optional

    @property
    def causes(self) -> set[str]:
        """Every cause that is right."""
        return {self.cause, *self.also}

    @property
    def last_unix_ns(self) -> int:
        """The end, with its grace."""
        return self.end_unix_ns + round(self.grace_secs * NS)


def read_labels(path: Path) -> list[Label]:
    """The labels of a file.

    Raises:
        InputError: missing, empty, or a line that is no label; names file and line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError as error:
        msg = f"{path}: no such file; check the path"
        raise InputError(msg) from error
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise InputError(msg) from error
    labels = [_label(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not labels:
        msg = f"{path}: holds no label; expected one JSON object a line"
        raise InputError(msg)
    return labels


def _label(line: bytes, where: str) -> Label:
    try:
        return msgspec.json.decode(line, type=Label)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        msg = f"{where}: not a label: {error}; see docs/tuning.md"
        raise InputError(msg) from error
