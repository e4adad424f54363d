"""Words for people: times, places and numbers, the same in alerts and on the console."""

from collections.abc import Iterable

from stethoscope.schemas.findings import Finding, Subject
from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.labels import device_of
from stethoscope.sinks.alertmanager_types import to_datetime


def utc_text(unix_ns: int) -> str:
    """A moment, to the second.

    >>> utc_text(1_700_000_000_000_000_000)
    '2023-11-14 22:13:20 UTC'
    """
    return to_datetime(unix_ns).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration_text(secs: float) -> str:
    """A length of time in its two largest units.

    >>> [duration_text(secs) for secs in (0.2, 75, 3600, 200_000)]
    ['0 s', '1 min 15 s', '1 h', '2 d 7 h']
    """
    left = max(0, round(secs))
    words = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {unit}")
        elif words:
            break
    return " ".join(words[:2]) or "0 s"


def place_text(subject: Subject) -> str:
    """Where, from the largest to the smallest.

    >>> place_text(Subject(node="node01", gpu_index=1, job_id="7", rank=3))
    'node01 gpu1 · job 7 rank 3'
    """
    outer = subject.switch or subject.node or (subject.rack and f"rack {subject.rack}")
    process = None if subject.pid is None else f"pid {subject.pid}"
    hardware = [outer, device_of(subject), process]
    job = None if subject.job_id is None else f"job {subject.job_id}"
    rank = None if subject.rank is None else f"rank {subject.rank}"
    groups = (" ".join(word for word in group if word) for group in (hardware, [job, rank]))
    return " · ".join(group for group in groups if group) or f"cluster {subject.cluster}"


def listed(names: Iterable[object], at_most: int = 8) -> str:
    """Names with commas, the rest as a number.

    >>> listed(range(12), at_most=3)
    '0, 1, 2 and 9 more'
    """
    words = [str(name) for name in names]
    rest = len(words) - at_most
    return ", ".join(words[:at_most]) + (f" and {rest} more" if rest > 0 else "")


def value_text(finding: Finding) -> str:
    """The value against its threshold; empty where the finding has no number.

    >>> value_text(Finding("", "", "", Subject(), 0, 0, value=91.25, threshold=85, unit="celsius"))
    '91.25 against 85 celsius'
    """
    if finding.value is None:
        return ""
    against = "" if finding.threshold is None else f" against {finding.threshold:.6g}"
    return f"{finding.value:.6g}{against} {finding.unit}".rstrip()


def ranks_of(incident: Incident) -> list[int]:
    """The ranks that its findings and suspects name, in order."""
    subjects = [incident.root, *(finding.subject for finding in incident.findings.first)]
    subjects += [suspect.subject for suspect in incident.suspects]
    return sorted({subject.rank for subject in subjects if subject.rank is not None})
