"""How well incidents tell the truth: compare them with labels. Pure.

A *page* is an incident of severity warning or above that was not merged into another. A page can
find a fault when its cause is one of the label's, its jobs (else its nodes) overlap the label's,
and its time overlaps the label's, grace included. Each fault is found by one page, the rest are
``extra``; a page that can find no fault is false, unless a decoy tolerates its cause.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct, field

from stethoscope.replay.labels import Label
from stethoscope.schemas.findings import NS, rounded
from stethoscope.schemas.incidents import Incident, is_page


class Found(Struct, frozen=True):
    """A fault and the page that found it. ``delay_secs`` runs from onset to detection."""

    label_id: str
    label_cause: str
    incident_id: str
    cause: str
    root_right: bool
    delay_secs: float
    optional: bool = False


class Page(Struct, frozen=True):
    """A page that found nothing new. ``near``: the label or decoy it falls on, if any."""

    incident_id: str
    cause: str
    title: str
    started_unix_ns: int
    near: str | None = None


class Tally(Struct, frozen=True):
    """Numbers of one cause, or of all. Ratios are ``None`` where nothing can be divided."""

    faults: int
    found: int
    pages: int
    false_pages: int
    extra_pages: int
    precision: float | None
    recall: float | None
    root_accuracy: float | None
    delay_median_secs: float | None
    delay_max_secs: float | None
    events_per_page: float | None


class Score(Struct, frozen=True):
    """The verdict. ``by_cause`` counts faults by label cause and other pages by their own."""

    total: Tally
    by_cause: dict[str, Tally]
    found: list[Found] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    false_pages: list[Page] = field(default_factory=list)
    extra_pages: list[Page] = field(default_factory=list)

    @property
    def perfect(self) -> bool:
        """Nothing missed and no false page."""
        return not self.missed and not self.false_pages


def score(incidents: Iterable[Incident], labels: Sequence[Label]) -> Score:
    """Compare a run with the truth."""
    pages = sorted(
        (one for one in incidents if is_page(one)),
        key=lambda one: (one.started_unix_ns, one.incident_id),
    )
    faults = [label for label in labels if label.page]
    chosen = _assign(pages, faults)
    found = [_found(label, chosen[label.id]) for label in faults if label.id in chosen]
    used = {one.incident_id for one in found}
    extra: list[Page] = []
    false: list[Page] = []
    for page in pages:
        if page.incident_id in used:
            continue
        if fault := next((label for label in faults if matches(page, label)), None):
            extra.append(_page(page, fault.id))
        elif not any(_tolerates(label, page) for label in labels if not label.page):
            near = next((x.id for x in labels if not x.page and _falls_on(page, x)), None)
            false.append(_page(page, near))
    missed = [label for label in faults if label.required and label.id not in chosen]
    return _verdict(pages, found, missed, false, extra)


def matches(incident: Incident, label: Label) -> bool:
    """Whether the incident can be about the label: cause, place and time."""
    return incident.cause in label.causes and _falls_on(incident, label)


def root_right(incident: Incident, label: Label) -> bool:
    """Whether the incident names the label's root, in every key that the label gives."""
    root, truth = incident.root, label.root
    jobs = {root.job_id, *incident.jobs}
    nodes = {root.node} if root.node else set(incident.nodes)
    return (
        (truth.node is None or nodes == {truth.node})
        and (truth.gpu_index is None or root.gpu_index == truth.gpu_index)
        and (truth.rank is None or root.rank == truth.rank)
        and (truth.job_id is None or truth.job_id in jobs)
    )


def _tolerates(decoy: Label, incident: Incident) -> bool:
    return incident.cause in decoy.tolerated and _falls_on(incident, decoy)


def _falls_on(incident: Incident, label: Label) -> bool:
    last_unix_ns = max(incident.detected_unix_ns, incident.ended_unix_ns or 0)
    in_time = incident.started_unix_ns <= label.last_unix_ns and last_unix_ns >= label.start_unix_ns
    return in_time and _same_place(incident, label)


def _same_place(incident: Incident, label: Label) -> bool:
    jobs = {*incident.jobs, incident.root.job_id} - {None}
    if label.job_ids and jobs:
        return not jobs.isdisjoint(label.job_ids)
    nodes = {*incident.nodes, incident.root.node} - {None}
    return not nodes.isdisjoint(label.nodes or [label.root.node])


def _assign(pages: Sequence[Incident], faults: Sequence[Label]) -> dict[str, Incident]:
    """Label id to page, one to one, as many as can be (augmenting paths), required faults first.

    Among the pages that can find a fault, the one with the very cause goes first, then the right
    root, then the nearest onset.
    """
    by_id = {label.id: label for label in faults}
    order = sorted(faults, key=lambda label: (label.optional, label.start_unix_ns, label.id))
    options = {x.id: sorted(_options(pages, x), key=lambda p: _distance(p, x)) for x in order}
    owner: dict[str, str] = {}  # incident id -> label id

    def claim(label: Label, tried: set[str]) -> bool:
        for page in options[label.id]:
            if page.incident_id in tried:
                continue
            tried.add(page.incident_id)
            holder = owner.get(page.incident_id)
            if holder is None or claim(by_id[holder], tried):
                owner[page.incident_id] = label.id
                return True
        return False

    for label in order:
        claim(label, set())
    by_incident = {page.incident_id: page for page in pages}
    return {label_id: by_incident[incident_id] for incident_id, label_id in owner.items()}


def _options(pages: Sequence[Incident], label: Label) -> list[Incident]:
    return [page for page in pages if matches(page, label)]


def _distance(page: Incident, label: Label) -> tuple[bool, bool, int, str]:
    return (
        page.cause != label.cause,
        not root_right(page, label),
        abs(page.started_unix_ns - label.start_unix_ns),
        page.incident_id,
    )


def _found(label: Label, page: Incident) -> Found:
    return Found(
        label_id=label.id,
        label_cause=label.cause,
        incident_id=page.incident_id,
        cause=page.cause,
        root_right=root_right(page, label),
        delay_secs=rounded((page.detected_unix_ns - label.start_unix_ns) / NS) or 0.0,
        optional=label.optional,
    )


def _page(incident: Incident, near: str | None) -> Page:
    return Page(
        incident_id=incident.incident_id,
        cause=incident.cause,
        title=incident.title,
        started_unix_ns=incident.started_unix_ns,
        near=near,
    )


def _verdict(
    pages: Sequence[Incident],
    found: list[Found],
    missed: list[Label],
    false: list[Page],
    extra: list[Page],
) -> Score:
    raw_events = {page.incident_id: page.raw_events for page in pages}
    label_cause = {one.incident_id: one.label_cause for one in found}
    cause_of = {page.incident_id: label_cause.get(page.incident_id, page.cause) for page in pages}
    causes = sorted({*cause_of.values(), *(label.cause for label in missed)})
    return Score(
        total=_tally(found, len(missed), false, extra, list(raw_events.values())),
        by_cause={
            cause: _tally(
                [one for one in found if one.label_cause == cause],
                sum(label.cause == cause for label in missed),
                [one for one in false if one.cause == cause],
                [one for one in extra if one.cause == cause],
                [n for incident_id, n in raw_events.items() if cause_of[incident_id] == cause],
            )
            for cause in causes
        },
        found=found,
        missed=[label.id for label in missed],
        false_pages=false,
        extra_pages=extra,
    )


def _tally(
    found: list[Found], missed: int, false: list[Page], extra: list[Page], raw_events: list[int]
) -> Tally:
    required = [one for one in found if not one.optional]
    delays = [one.delay_secs for one in required]
    true_pages = len(found) + len(extra)
    return Tally(
        faults=len(required) + missed,
        found=len(required),
        pages=len(raw_events),
        false_pages=len(false),
        extra_pages=len(extra),
        precision=_ratio(true_pages, true_pages + len(false)),
        recall=_ratio(len(required), len(required) + missed),
        root_accuracy=_ratio(sum(one.root_right for one in required), len(required)),
        delay_median_secs=rounded(median(delays)) if delays else None,
        delay_max_secs=max(delays, default=None),
        events_per_page=_ratio(sum(raw_events), len(raw_events)),
    )


def _ratio(part: float, whole: float) -> float | None:
    return rounded(part / whole) if whole else None
