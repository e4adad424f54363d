"""Incidents: what a person should hear about once."""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from stethoscope.schemas.findings import Finding, Subject, Suspect

Severity: TypeAlias = Literal["critical", "warning", "info"]
Audience: TypeAlias = Literal["infra", "job"]
SEVERITY_RANK: dict[str, int] = {"info": 0, "warning": 1, "critical": 2}


class FindingSummary(Struct, frozen=True, omit_defaults=True):
    """Findings behind an incident: how many of each cause, and the first few."""

    by_cause: dict[str, int]
    first: list[Finding] = field(default_factory=list)


class Incident(Struct, frozen=True):
    """One fault, as known now.

    ``incident_id`` is a hash of cluster, cause, root and onset as at opening and never changes.
    A page is severity ``warning`` or above; ``paged_unix_ns`` says when its labels froze (``None``:
    not paged), ``page_labels`` are those labels.
    """

    incident_id: str
    state: Literal["open", "resolved"]
    cause: str
    alertname: str
    severity: Severity
    audience: Audience
    title: str
    started_unix_ns: int
    detected_unix_ns: int
    ended_unix_ns: int | None
    root: Subject
    confidence: float
    suspects: list[Suspect]
    jobs: list[str]
    nodes: list[str]
    findings: FindingSummary
    raw_events: int
    recurrence: int
    merged_into: str | None
    actions: list[str]
    knowledge: str
    paged_unix_ns: int | None = None
    page_labels: dict[str, str] = field(default_factory=dict)


def is_page(incident: Incident) -> bool:
    """Whether a person is told: warning or above, and not folded into another incident."""
    return SEVERITY_RANK[incident.severity] >= 1 and incident.merged_into is None


def alertname_of(cause: str) -> str:
    """The cause in CamelCase.

    >>> alertname_of("nccl_wrong_path")
    'NcclWrongPath'
    """
    return "".join(word.capitalize() for word in cause.split("_"))
