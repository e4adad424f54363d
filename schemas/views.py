"""What the node stage reduces for the job stage, and the envelope between stages."""

from typing import TypeAlias

from msgspec import Struct, field

from stethoscope.schemas.events import Process
from stethoscope.schemas.findings import Finding


class _View(Struct, frozen=True, tag_field="view", kw_only=True, omit_defaults=True):
    """Fields common to all views: ``job`` routes it, ``second_unix_ns`` is the tick it is of."""

    job: str
    node: str
    second_unix_ns: int


class GpuView(_View, frozen=True, tag="gpu", kw_only=True):
    """A second of the GPUs that a job has on one node.

    ``metrics[name][i]`` is the mean over the second's samples of ``uuids[i]``, absent if missing.
    ``fabrics``: what was seen to work on the node: ``nvlink`` (data moved), ``ib`` (active port).
    """

    indices: list[int]
    uuids: list[str]
    metrics: dict[str, list[float | None]]
    fabrics: list[str] = field(default_factory=list)
    model: str = ""


class HostView(_View, frozen=True, tag="host", kw_only=True):
    """A host's numbers, and the training processes seen on it, as one source (``stream``) has them.

    A node has several sources, and none knows everything.
    """

    metrics: dict[str, float | None]
    processes: list[Process] = field(default_factory=list)
    stream: str = ""


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
    rank: int | None = None


class Mark(Struct, frozen=True, array_like=True):
    """What a log line that is no step line says; kinds in ``detectors/marks.py``.

    ``count``: equal marks of that second that this one stands for.
    """

    time_unix_ns: int
    mark: str
    rank: int | None
    text: str
    count: int = 1
    node: str | None = None


class LogView(_View, frozen=True, tag="log", kw_only=True):
    """A second of a job's log on one node: its step lines, and the marks other lines set."""

    rank: int | None = None
    steps: list[Step] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


View: TypeAlias = GpuView | HostView | LogView


class Envelope(Struct, frozen=True, kw_only=True):
    """One whole second of one stage's output.

    A stage sends exactly one envelope for each second its watermark passes, even an empty one, in
    rising order of ``watermark_unix_ns``: so a receiver can drop what it has seen (watermark not
    above the last one of that ``source``) after a restart has sent it twice. ``idle``: the source
    has nothing to say for now and is left out of the least; its watermark does not count.
    ``heard``: every few seconds, the newest event time of each ``cluster/node``.
    """

    source: str
    watermark_unix_ns: int
    views: list[View] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    idle: bool = False
