"""What Alertmanager's HTTP API, version 2, takes and gives.

Unknown fields are ignored, so that newer servers can be read. Times are aware ``datetime``,
to the microsecond.
"""

from datetime import UTC, datetime, timedelta
from typing import Literal

from msgspec import Struct, field

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(unix_ns: int) -> datetime:
    """Nanoseconds since 1970 UTC as a ``datetime``; what is below a microsecond is cut off."""
    return EPOCH + timedelta(microseconds=unix_ns // 1000)


def to_unix_ns(moment: datetime) -> int:
    """An aware ``datetime`` as nanoseconds since 1970 UTC."""
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


class _Api(Struct, frozen=True, rename="camel", kw_only=True):
    """Base: camelCase on the wire."""


class Alert(_Api, frozen=True, omit_defaults=True):
    """One alert as posted. Its identity is ``labels``; without ``ends_at`` the server decides."""

    labels: dict[str, str]
    annotations: dict[str, str] = field(default_factory=dict)
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    generator_url: str = field(default="", name="generatorURL")


class AlertStatus(_Api, frozen=True):
    """Whether somebody is told, and if not, why."""

    state: Literal["unprocessed", "active", "suppressed"]
    silenced_by: list[str] = field(default_factory=list)
    inhibited_by: list[str] = field(default_factory=list)


class Receiver(_Api, frozen=True):
    """Where alerts are sent on to."""

    name: str


class GettableAlert(_Api, frozen=True):
    """One alert as the server holds it."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: datetime
    ends_at: datetime
    updated_at: datetime
    fingerprint: str
    status: AlertStatus
    receivers: list[Receiver] = field(default_factory=list)
    generator_url: str = field(default="", name="generatorURL")


class Matcher(_Api, frozen=True):
    """A condition on one label."""

    name: str
    value: str
    is_regex: bool = False
    is_equal: bool = True


class Silence(_Api, frozen=True, omit_defaults=True):
    """One silence as posted; with an ``id`` it replaces that silence."""

    matchers: list[Matcher]
    starts_at: datetime
    ends_at: datetime
    created_by: str
    comment: str
    id: str | None = None


class SilenceStatus(_Api, frozen=True):
    """Where a silence is in its life."""

    state: Literal["expired", "active", "pending"]


class GettableSilence(_Api, frozen=True):
    """One silence as the server holds it."""

    id: str
    matchers: list[Matcher]
    starts_at: datetime
    ends_at: datetime
    updated_at: datetime
    created_by: str
    comment: str
    status: SilenceStatus


class CreatedSilence(_Api, frozen=True):
    """The answer to a posted silence."""

    silence_id: str = field(name="silenceID")


class Peer(_Api, frozen=True):
    """Another Alertmanager of the same cluster."""

    name: str
    address: str


class ClusterStatus(_Api, frozen=True):
    """How Alertmanager's own cluster is; ``disabled`` on a server that stands alone."""

    status: Literal["ready", "settling", "disabled"]
    name: str = ""
    peers: list[Peer] = field(default_factory=list)


class VersionInfo(_Api, frozen=True):
    """The server's build."""

    version: str
    revision: str = ""


class Status(_Api, frozen=True):
    """The server's own state."""

    cluster: ClusterStatus
    version_info: VersionInfo
    uptime: datetime
