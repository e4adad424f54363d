"""A case: an incident while it is being worked out, and how it is written down."""

from msgspec import Struct, field

from stethoscope.correlation.relations import CONFIDENCE, SURE
from stethoscope.schemas.causes import cause_catalogue
from stethoscope.schemas.findings import Finding, Subject, Suspect, digest
from stethoscope.schemas.incidents import (
    SEVERITY_RANK,
    FindingSummary,
    Incident,
    Severity,
    alertname_of,
)

FIRST_FINDINGS = 5
MAX_SUSPECTS = 8


class Case(Struct):
    """What correlation knows of one incident. Bound: five findings kept, the rest counted."""

    incident_id: str
    cause: str
    root: Subject
    severity: Severity
    started_ns: int
    detected_ns: int
    seen_ns: int
    state: str = "open"
    ended_ns: int | None = None
    jobs: list[str] = field(default_factory=list)
    job_keys: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)
    has_moments: bool = False
    by_cause: dict[str, int] = field(default_factory=dict)
    first: list[Finding] = field(default_factory=list)
    root_finding: Finding | None = None
    suspects: list[Suspect] = field(default_factory=list)
    raw_events: int = 0
    recurrence: int = 0
    merged_into: str | None = None
    muted: bool = False
    paged_ns: int | None = None
    page_labels: dict[str, str] = field(default_factory=dict)
    job_name: str | None = None
    user: str | None = None

    def is_open(self) -> bool:
        """Whether it goes on."""
        return self.state == "open"


def open_case(finding: Finding, severity: Severity, recurrence: int) -> Case:
    """A new case for a finding that belongs nowhere yet."""
    subject = finding.subject
    identity = digest(subject.cluster, finding.cause, subject.key(), finding.started_unix_ns)
    return Case(
        incident_id=identity,
        cause=finding.cause,
        root=subject,
        severity=severity,
        started_ns=finding.started_unix_ns,
        detected_ns=finding.observed_unix_ns,
        seen_ns=finding.observed_unix_ns,
        recurrence=recurrence,
        root_finding=finding,
    )


def add(case: Case, finding: Finding, severity: Severity, moment: bool) -> None:
    """Put a finding into a case; its severity may rise, never fall."""
    case.seen_ns = max(case.seen_ns, finding.observed_unix_ns)
    if finding.cause == case.cause:  # a symptom may be dated back by a timeout's length
        case.started_ns = min(case.started_ns, finding.started_unix_ns)
    case.by_cause[finding.cause] = case.by_cause.get(finding.cause, 0) + 1
    case.raw_events += finding.raw_events
    if len(case.first) < FIRST_FINDINGS:
        case.first.append(finding)
    for suspect in finding.suspects:
        known = [s.subject.key() for s in case.suspects]
        if suspect.subject.key() not in known and len(case.suspects) < MAX_SUSPECTS:
            case.suspects.append(suspect)
    if moment:
        case.has_moments = True
    elif finding.finding_id not in case.levels:
        case.levels.append(finding.finding_id)
    if SEVERITY_RANK[severity] > SEVERITY_RANK[case.severity]:
        case.severity = severity
        if finding.cause == case.cause:
            case.root_finding = finding
    node = finding.subject.node
    if node is not None and node not in case.nodes:
        case.nodes.append(node)


def reroot(case: Case, finding: Finding) -> None:
    """A deeper cause is known: the same incident, with another root. Its id stays."""
    case.cause = finding.cause
    case.root = finding.subject
    case.root_finding = finding


def absorb(case: Case, other: Case) -> None:
    """``other`` turns out to be part of ``case``."""
    other.state = "resolved"
    other.merged_into = case.incident_id
    other.ended_ns = other.seen_ns
    case.raw_events += other.raw_events
    case.started_ns = min(case.started_ns, other.started_ns)
    case.levels += [level for level in other.levels if level not in case.levels]
    case.jobs += [job for job in other.jobs if job not in case.jobs]
    case.job_keys += [key for key in other.job_keys if key not in case.job_keys]
    case.nodes += [node for node in other.nodes if node not in case.nodes]
    case.has_moments = case.has_moments or other.has_moments
    if SEVERITY_RANK[other.severity] > SEVERITY_RANK[case.severity]:
        case.severity = other.severity
    for cause, count in other.by_cause.items():
        case.by_cause[cause] = case.by_cause.get(cause, 0) + count


def to_incident(case: Case) -> Incident:
    """The case as it is told now: nothing of it changes with the case."""
    known = cause_catalogue()[case.cause]
    base = CONFIDENCE.get(case.cause, SURE)
    more = len(case.by_cause) - 1
    root = Suspect(case.root, case.root_finding.evidence if case.root_finding else "")
    others = [s for s in case.suspects if s.subject.key() != case.root.key()]
    return Incident(
        incident_id=case.incident_id,
        state="open" if case.is_open() else "resolved",
        cause=case.cause,
        alertname=alertname_of(case.cause),
        severity="info" if case.muted else case.severity,
        audience=known.audience,
        title=title(case),
        started_unix_ns=case.started_ns,
        detected_unix_ns=case.detected_ns,
        ended_unix_ns=case.ended_ns,
        root=case.root,
        confidence=min(0.99, round(base + 0.03 * more, 2)),
        suspects=[root, *others],
        jobs=list(case.jobs),
        nodes=list(case.nodes),
        findings=FindingSummary(dict(sorted(case.by_cause.items())), list(case.first)),
        raw_events=case.raw_events,
        recurrence=case.recurrence,
        merged_into=case.merged_into,
        actions=_actions(case, known.actions),
        knowledge=f"docs/causes.md#{case.cause}",
        paged_unix_ns=case.paged_ns,
        page_labels=dict(case.page_labels),
    )


def _actions(case: Case, actions: list[str]) -> list[str]:
    """The catalogue's steps; a step that asks for a code gets the one that was seen."""
    finding = case.root_finding
    if finding is None or finding.unit != "xid" or finding.value is None:
        return actions
    return [action.replace("CODE", f"{finding.value:.0f}") for action in actions]


def title(case: Case) -> str:
    """One line: what, where, whose."""
    root = case.root
    where = []
    if root.switch:
        where.append(f"switch {root.switch}")
    if root.gpu_index is not None:
        where.append(f"GPU {root.gpu_index}")
    elif root.gpu_pci:
        where.append(f"GPU {root.gpu_pci}")
    if root.ib_device:
        where.append(f"port {root.ib_device}/{root.ib_port or 1}")
    if root.node:
        where.append(f"of {root.node}" if where else root.node)
    elif case.nodes:
        where.append(f"{len(case.nodes)} nodes")
    if root.rank is not None:
        where.append(f"(rank {root.rank})")
    jobs = f", job {', '.join(case.jobs[:3])}" if case.jobs else ""
    more = f" and {len(case.jobs) - 3} more" if len(case.jobs) > 3 else ""
    return f"{cause_catalogue()[case.cause].meaning}: {' '.join(where)}{jobs}{more}"
