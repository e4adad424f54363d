"""Configuration structs that are not a detector's own. Defaults stand here once.

A detector's settings stand beside the detector; ``streams/config.py`` joins all into one file.
Secrets are never in the file: it names an environment variable or a file that holds them.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

PositiveSecs: TypeAlias = Annotated[float, Meta(gt=0)]
Secs: TypeAlias = Annotated[float, Meta(ge=0)]
Mode: TypeAlias = Literal["page", "observe", "off"]


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every configuration struct: frozen, unknown keys are errors."""


class Secret(Section, frozen=True):
    """Where a secret is: exactly one of an environment variable and a file."""

    env: str | None = None
    file: str | None = None


class Tls(Section, frozen=True):
    """TLS towards a service. Paths to PEM files; absent ones use the system's."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: Secret | None = None
    verify: bool = True


class Sasl(Section, frozen=True, kw_only=True):
    """SASL towards Kafka."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str
    password: Secret


class Kafka(Section, frozen=True):
    """The brokers and how our topics are laid out on them."""

    brokers: list[str] = field(default_factory=lambda: ["127.0.0.1:9092"])
    tls: Tls | None = None
    sasl: Sasl | None = None
    partitions: Annotated[int, Meta(ge=1, le=1024)] = 4
    replication: Annotated[int, Meta(ge=1, le=7)] = 1
    group: str = "stethoscope"


class BasicAuth(Section, frozen=True):
    """HTTP basic authentication."""

    username: str
    password: Secret


class Alertmanager(Section, frozen=True):
    """Where pages go, and how often they are repeated to it. Alertmanager sends them on."""

    urls: list[str] = field(default_factory=list)
    tls: Tls | None = None
    basic_auth: BasicAuth | None = None
    bearer_token: Secret | None = None
    resend_secs: PositiveSecs = 60.0
    timeout_secs: PositiveSecs = 10.0


class Timing(Section, frozen=True):
    """Event-time rules of the pipeline (docs/architecture.md, "Time")."""

    reorder_secs: Secs = 2.0
    max_skew_secs: PositiveSecs = 60.0
    idle_secs: PositiveSecs = 5.0


class Correlation(Section, frozen=True):
    """How findings become incidents."""

    attach_wait_secs: Secs = 3.0
    lift_wait_secs: Secs = 10.0
    moment_ttl_secs: PositiveSecs = 900.0
    join_ended_job_secs: Secs = 300.0
    recurrence_days: PositiveSecs = 30.0


class Links(Section, frozen=True):
    """URL templates for annotations; ``{cause}``, ``{node}``, ``{job_id}`` are filled in."""

    runbook_url: str = ""
    dashboard_url: str = ""


class Match(Section, frozen=True):
    """Whom a detector applies to, as globs; an empty list is everyone."""

    gpu_models: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    job_names: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)


class DetectorConfig(Section, frozen=True, tag_field="kind"):
    """What every detector can be told. ``name`` tells several of one kind apart.

    ``for_secs``: how long a condition must hold; ``keep_firing_secs``: how long it must be good
    before it clears. Subclasses set their own defaults, each with its source.
    """

    name: str = ""
    mode: Mode = "page"
    severity: Literal["critical", "warning", "info"] | None = None
    match: Match = field(default_factory=Match)
    for_secs: Secs = 0.0
    keep_firing_secs: Secs = 30.0
