"""Findings: what one detector says of one subject, and the subjects they speak of."""

import hashlib

from msgspec import Struct, field
from msgspec.structs import asdict

NS = 1_000_000_000


class Subject(Struct, frozen=True, omit_defaults=True, order=False):
    """A place: those of the fields that apply, flat.

    >>> Subject(node="node01", gpu_index=1).label()
    'node=node01 gpu_index=1'
    """

    # By a factory, so that it is always written: defaults are left out by identity, and a string
    # that came from bytes is another object than the one in the code.
    cluster: str = field(default_factory=lambda: "default")
    rack: str | None = None
    node: str | None = None
    gpu_uuid: str | None = None
    gpu_index: int | None = None
    gpu_pci: str | None = None
    ib_device: str | None = None
    ib_port: int | None = None
    switch: str | None = None
    mount: str | None = None
    metric: str | None = None
    pid: int | None = None
    job_id: str | None = None
    rank: int | None = None

    def key(self) -> str:
        """The subject as one sortable string; subjects are equal exactly when their keys are."""
        return "|".join(f"{k}={v}" for k, v in asdict(self).items() if v is not None)

    def label(self) -> str:
        """For a person: without the cluster and without identifiers nobody reads aloud."""
        hidden = ("cluster", "gpu_uuid", "gpu_pci")
        shown = [f"{k}={v}" for k, v in asdict(self).items() if v is not None and k not in hidden]
        return " ".join(shown) or f"cluster={self.cluster}"


class Finding(Struct, frozen=True, omit_defaults=True):
    """What one detector says of one subject.

    ``score`` has one scale for all detectors: 1.0 is the boundary of abnormal, rising; ``None`` is
    unknown. ``started_unix_ns`` is the onset, ``observed_unix_ns`` when it was noticed. A level
    that ends is said again with ``cleared``, the same ``finding_id`` and ``ended_unix_ns``. A
    ``moment`` (an exit, an out-of-memory) is never cleared.
    """

    finding_id: str
    detector: str
    cause: str
    subject: Subject
    started_unix_ns: int
    observed_unix_ns: int
    moment: bool = False
    cleared: bool = False
    ended_unix_ns: int | None = None
    value: float | None = None
    threshold: float | None = None
    unit: str = ""
    score: float | None = None
    evidence: str = ""
    mode: str = field(default_factory=lambda: "page")
    severity: str | None = None
    raw_events: int = 1
    suspects: list["Suspect"] = field(default_factory=list)


class Suspect(Struct, frozen=True, omit_defaults=True):
    """A subject that may be the root, and why."""

    subject: Subject
    reason: str
    score: float | None = None


def digest(*parts: object) -> str:
    """A short stable id of the parts: 16 hex digits of blake2b.

    >>> digest("a", 1)
    '8181c16b4ad83cc1'
    """
    text = "\x1f".join(str(part) for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def finding_id(detector: str, cause: str, subject: Subject, started_unix_ns: int) -> str:
    """The deterministic id of a finding: detector, cause, subject and onset."""
    return digest(detector, cause, subject.key(), started_unix_ns)


def rounded(value: float | None) -> float | None:
    """Six significant digits, so that output does not differ in the last bits.

    >>> rounded(0.123456789)
    0.123457
    """
    if value is None or value != value:
        return None
    return float(f"{value:.6g}")
