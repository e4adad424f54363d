"""The three pure stages, as the shells see them.

    events ──► NodeStage ──views──► JobStage ──findings──► ClusterStage ──► incidents
                    └───────────────findings──────────────────▲

A stage is pushed inputs and asked to ``advance``. It releases whole seconds of event time, in
order, once every source has passed them, and gives one ``Envelope`` (or one list of incident
changes) a second. ``snapshot`` and ``restore`` carry the whole state, buffers included, as bytes.
"""

from collections.abc import Iterable
from typing import Protocol

from stethoscope.schemas.events import Event
from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.views import Envelope
from stethoscope.streams.intake import Reject


class Stage(Protocol):
    """What the shell needs of the node and the job stage."""

    def push_cluster(self, events: Iterable[Event]) -> None:
        """``job``, ``topology`` and ``clock`` events of the jobs topic."""

    def set_frontier(self, jobs_unix_ns: int | None) -> None:
        """Release nothing later than this: how far the jobs topic was read. ``None``: no limit."""

    def advance(self) -> list[Envelope]:
        """The envelopes of the seconds that can be released now, oldest first."""

    def snapshot(self) -> bytes:
        """The whole state."""

    def restore(self, state: bytes) -> None:
        """Become what ``snapshot`` described; configuration is this object's own."""


class EventStage(Stage, Protocol):
    """The node stage of one pair of telemetry and logs partitions."""

    def push(self, events: Iterable[Event]) -> None:
        """Events of nodes, and ``clock`` events of the partition."""

    def drain_rejects(self) -> list[Reject]:
        """What could not be used since the last call."""


class EnvelopeStage(Stage, Protocol):
    """The job stage of one job-view partition."""

    def push(self, envelope: Envelope) -> None:
        """An envelope of a node stage (views of this partition's jobs only)."""


class IncidentStage(Protocol):
    """The cluster stage. Its ``advance`` gives incidents that changed, in order of change."""

    def push(self, envelope: Envelope) -> None:
        """An envelope of a node or job stage."""

    def push_cluster(self, events: Iterable[Event]) -> None:
        """As ``Stage``."""

    def set_frontier(self, jobs_unix_ns: int | None) -> None:
        """As ``Stage``."""

    def advance(self) -> list[Incident]:
        """The incidents that changed in the seconds that all sources have passed."""

    def snapshot(self) -> bytes:
        """As ``Stage``."""

    def restore(self, state: bytes) -> None:
        """As ``Stage``."""
