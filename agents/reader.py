"""What a reader is: one source on a node, read once a period, whose events it returns."""

from typing import Protocol, TypedDict

from msgspec import Struct, field

from stethoscope.agents.clock import Now
from stethoscope.schemas.events import Event, Value
from stethoscope.schemas.metrics import clean, registry

__all__ = ["Context", "Counters", "Now", "Reader", "Repeating", "Resumable", "Stamp"]


class Stamp(TypedDict):
    """What a node's samples of one read share: fields of their events."""

    cluster: str
    node: str
    boot_id: str
    stream: str | None
    time_unix_ns: int
    seq: int
    period_secs: float


class Context(Struct, frozen=True):
    """The identity that readers stamp on their events."""

    cluster: str = "default"
    node: str = ""
    boot_id: str = ""

    def stamp(self, now: Now, period_secs: float, stream: str | None = None) -> Stamp:
        """For a sample of that moment; ``stream`` only where the kind does not say enough."""
        return Stamp(
            cluster=self.cluster,
            node=self.node,
            boot_id=self.boot_id,
            stream=stream,
            time_unix_ns=now.unix_ns,
            seq=now.boottime_ns,
            period_secs=period_secs,
        )


class Counters(Struct):
    """What a reader counts about itself; the loop exposes it on ``/metrics``.

    Attributes:
        invalid_samples_total: values that were blank, not finite or out of range.
        collector_errors: failures by file, call or target; bounded by ``MAX_SOURCES``.
        skipped: lines or records left out on purpose, by a constant reason (``no_rule``,
            ``rate_limited``, ``too_long``, ``overrun``).
    """

    invalid_samples_total: int = 0
    collector_errors: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str, count: int = 1) -> None:
        """Count what was left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + count

    def clean(self, name: str, value: Value) -> Value:
        """The metric's value; one that it cannot have is null, and counted."""
        cleaned = clean(registry()[name], value)
        self.invalid_samples_total += cleaned is None
        return cleaned

    def error(self, source: str) -> None:
        """Count one failure of ``source`` (a file, a call, a URL without its secrets)."""
        if source not in self.collector_errors and len(self.collector_errors) >= MAX_SOURCES:
            source = "other"
        self.collector_errors[source] = self.collector_errors.get(source, 0) + 1


MAX_SOURCES = 500


class Reader(Protocol):
    """One source on a node.

    Attributes:
        name: as in ``registry.READERS`` and on the command line.
        period_secs: default time between reads.
        hazardous: may hang in a system call (NVML, a dead NFS mount): the loop runs it in a
            worker process, where it is built anew from its name by ``registry.build``.
        counters: what it counts about itself.
    """

    name: str
    period_secs: float
    hazardous: bool
    counters: Counters

    def probe(self) -> None:
        """Find out whether this node has something to read; cheap, may be called again.

        Raises:
            ReaderUnsupported: nothing here to read; the message says what is missing.
        """
        ...

    def read(self, now: Now) -> list[Event]:
        """Read once. Partial failure is counted, not raised; what raises is wholly failed.

        Raises:
            ServiceError, OSError: the source as a whole cannot be read now.
        """
        ...

    def close(self) -> None:
        """Release handles; never raises; may be called twice."""
        ...


class Resumable(Reader, Protocol):
    """A reader with a position (kernel log, files): the shell keeps the position for it.

    The loop takes ``checkpoint()`` right after each ``read``, stores it once the events of that
    read are safe (acknowledged or spooled), and gives the last stored one to ``restore`` before
    the first ``read`` after a restart. Events read again carry the same ids and bodies.
    """

    def checkpoint(self) -> str:
        """The position after the last ``read``; the same text while nothing moved."""
        ...

    def restore(self, state: str) -> None:
        """Go on from there; text that cannot be read are counted and ignored."""
        ...


class Repeating(Resumable, Protocol):
    """A resumable reader whose events depend on more than what it reads, such as the time."""

    def expect(self, checkpoints: list[str]) -> None:
        """Events up to these may be out already: after ``restore``, make the same ones again."""
        ...
