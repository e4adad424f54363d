"""What the node stage reduces for the job stage, and the envelope between stages."""

from typing import TypeAlias

from msgspec import Struct, field

from stethoscope.schemas.findings import Finding


class _View(Struct, frozen=True, tag_field="view", kw_only=True, omit_defaults=True):
    """Fields common to all views: ``job`` routes it, ``second_unix_ns`` is the tick it is of."""

    job: str
    node: str
    second_unix_ns: int


class GpuView(_View, frozen=True, tag="gpu", kw_only=True):
    """A second of the GPUs that a job has on one node.

    ``metrics[name][i]`` is the mean over the second's samples of ``uuids[i]``, NaN where missing.
    """

    indices: list[int]
    uuids: list[str]
    metrics: dict[str, list[float | None]]


class HostView(_View, frozen=True, tag="host", kw_only=True):
    """A host's numbers, and the training processes seen on it."""

    metrics: dict[str, float | None]
    pids: list[tuple[int, str | None, int | None, str | None]] = field(default_factory=list)


class Step(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One step line, parsed. Absent is ``None``; ``loss`` may be NaN or infinite."""

    time_unix_ns: int
    iteration: int | None = None
    step_secs: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    work: float | None = None
    skipped: int = 0
    nan_iterations: int = 0
    lines: int = 1
    loss_bad: str | None = None
    grad_bad: str | None = None


class LogView(_View, frozen=True, tag="log", kw_only=True):
    """A second of a job's log: its step lines, and the marks other lines set.

    ``marks``: (time, kind, rank, text); kinds as in ``detectors/trainlog.py``.
    """

    rank: int | None = None
    steps: list[Step] = field(default_factory=list)
    marks: list[tuple[int, str, int | None, str]] = field(default_factory=list)


View: TypeAlias = GpuView | HostView | LogView


class Envelope(Struct, frozen=True, kw_only=True):
    """One whole second of one stage's output.

    A stage sends exactly one envelope for each second its watermark passes, even an empty one, in
    rising order of ``watermark_unix_ns``: so a receiver can drop what it has seen (watermark not
    above the last one of that ``source``) after a restart has sent it twice. ``idle``: the source
    has nothing to say for now and is left out of the least; its watermark does not count.
    """

    source: str
    watermark_unix_ns: int
    views: list[View] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    idle: bool = False
