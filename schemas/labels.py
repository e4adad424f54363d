"""The labels of a page: its identity in Alertmanager, frozen when it first goes out.

Whatever can change while an incident is open is an annotation, never a label: a changed label is
another alert, and the old one "resolves".
"""

import re
from collections.abc import Mapping

from stethoscope.schemas.findings import Subject
from stethoscope.schemas.incidents import Incident

MAX_VALUE_CHARS = 1024
_BAD_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")


def page_labels(
    incident: Incident, job_name: str | None = None, user: str | None = None
) -> dict[str, str]:
    """The labels of the incident as known now; those that do not apply are absent.

    ``job_name`` and ``user`` belong to the first of ``incident.jobs``: identity has one value.
    """
    root = incident.root
    job_id = incident.jobs[0] if incident.jobs else root.job_id
    return clean_labels(
        {
            "alertname": incident.alertname,
            "cluster": root.cluster,
            "severity": incident.severity,
            "audience": incident.audience,
            "incident_id": incident.incident_id,
            "cause": incident.cause,
            "node": root.node,
            "device": device_of(root),
            "rack": root.rack,
            "job_id": job_id,
            "job_name": job_name if job_id else None,
            "user": user if job_id else None,
            "switch": root.switch,
        }
    )


def device_of(subject: Subject) -> str | None:
    """The part of a node or switch, in the words of the tools that show it.

    >>> device_of(Subject(node="n1", gpu_index=3))
    'gpu3'
    >>> device_of(Subject(node="n1", ib_device="mlx5_0", ib_port=1))
    'mlx5_0/1'
    """
    if subject.gpu_index is not None:
        return f"gpu{subject.gpu_index}"
    if subject.gpu_uuid or subject.gpu_pci:
        return subject.gpu_uuid or subject.gpu_pci
    if subject.ib_device is not None:
        port = "" if subject.ib_port is None else f"/{subject.ib_port}"
        return subject.ib_device + port
    if subject.ib_port is not None:
        return f"port{subject.ib_port}"
    return subject.mount


def clean_labels(labels: Mapping[str, str | None]) -> dict[str, str]:
    """Labels that Alertmanager takes: valid names, no empty values, text that is valid UTF-8.

    Alertmanager drops empty values itself; dropped here, the identity is the same on both sides.
    Of two names that become one, the first keeps its value.

    >>> clean_labels({"foo.bar": "1", "": "x", "node": None, "2nd": "b"})
    {'foo_bar': '1', '_2nd': 'b'}
    """
    cleaned: dict[str, str] = {}
    for name, value in labels.items():
        text = clean_text(value or "", MAX_VALUE_CHARS)
        if name and text:
            cleaned.setdefault(clean_label_name(name), text)
    return cleaned


def clean_label_name(name: str) -> str:
    """A name of letters, digits and ``_`` that does not begin with a digit.

    >>> clean_label_name("json.value[/x]"), clean_label_name("9lives")
    ('json_value__x_', '_9lives')
    """
    cleaned = _BAD_CHARACTER.sub("_", name)
    return "_" + cleaned if not cleaned or cleaned[0].isdigit() else cleaned


def clean_text(text: str, max_chars: int) -> str:
    """Text that can be written as UTF-8, cut to ``max_chars`` with an ellipsis.

    >>> clean_text("ab" + chr(0xDCFF), 10), clean_text("abcdef", 4)
    ('ab?', 'abc…')
    """
    valid = text.encode("utf-8", "replace").decode("utf-8")
    return valid if len(valid) <= max_chars else valid[: max_chars - 1] + "…"
