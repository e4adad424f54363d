"""Incident to alert. Pure.

Labels are the incident's frozen identity; whatever varies is an annotation.
"""

from datetime import datetime
from urllib.parse import quote

from stethoscope.schemas.config import Links
from stethoscope.schemas.findings import NS
from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.labels import clean_labels, clean_text, page_labels
from stethoscope.sinks.alertmanager_types import Alert
from stethoscope.sinks.text import (
    duration_text,
    listed,
    place_text,
    ranks_of,
    utc_text,
    value_text,
)

# Receivers cut long texts (a chat message holds 2 to 4 kB), and one alert must stay far below the
# 1 MiB of a batch.
MAX_ANNOTATION_CHARS = 4_000
MAX_EVIDENCE_LINES = 5
MAX_EVIDENCE_CHARS = 500


def labels_of(incident: Incident) -> dict[str, str]:
    """The labels frozen at its first page; of an incident not yet paged, those it would have."""
    return clean_labels(incident.page_labels) or page_labels(incident)


def annotations_of(incident: Incident, links: Links) -> dict[str, str]:
    """Everything that may change while the incident is open; empty ones are left out."""
    texts = {
        "summary": incident.title,
        "description": _description(incident),
        "actions": "\n".join(f"{n}. {step}" for n, step in enumerate(incident.actions, 1)),
        "runbook_url": _filled(links.runbook_url, incident) or incident.knowledge,
        "dashboard_url": _filled(links.dashboard_url, incident),
        "evidence": _evidence(incident),
    }
    return {name: clean_text(text, MAX_ANNOTATION_CHARS) for name, text in texts.items() if text}


def to_alert(
    labels: dict[str, str],
    annotations: dict[str, str],
    starts_at: datetime,
    ends_at: datetime,
) -> Alert:
    """The alert to post; its link back is the dashboard, where there is one."""
    return Alert(
        labels=labels,
        annotations=annotations,
        starts_at=starts_at,
        ends_at=ends_at,
        generator_url=annotations.get("dashboard_url", ""),
    )


def _description(incident: Incident) -> str:
    """When, where, value against threshold, whom it hurts, how sure; a line each."""
    seen_secs = (incident.detected_unix_ns - incident.started_unix_ns) / NS
    when = f"Since {utc_text(incident.started_unix_ns)}, seen {duration_text(seen_secs)} later"
    if incident.ended_unix_ns is not None:
        when += f", ended {utc_text(incident.ended_unix_ns)}"
    lines = [f"{when}.", f"Where: {place_text(incident.root)}."]
    measured = next((f for f in incident.findings.first if f.value is not None), None)
    if measured is not None:
        lines.append(f"Measured: {measured.cause} {value_text(measured)}.")
    for word, names in (
        ("Jobs", incident.jobs),
        ("Ranks", ranks_of(incident)),
        ("Nodes", incident.nodes),
    ):
        if names:
            lines.append(f"{word} hurt: {listed(names)}.")
    lines.append(f"Confidence {incident.confidence:.0%}, {incident.raw_events} raw events folded.")
    if incident.recurrence > 1:
        lines.append(f"The same here {incident.recurrence} times in 30 days.")
    if incident.merged_into:
        lines.append(f"Part of incident {incident.merged_into}.")
    return "\n".join(lines)


def _evidence(incident: Incident) -> str:
    lines = dict.fromkeys(f.evidence for f in incident.findings.first if f.evidence)
    shown = list(lines)[:MAX_EVIDENCE_LINES]
    return "\n".join(clean_text(line, MAX_EVIDENCE_CHARS) for line in shown)


def _filled(template: str, incident: Incident) -> str:
    """A URL template with the incident's own words in it, made safe for a URL."""
    node = incident.root.node or next(iter(incident.nodes), "")
    job_id = next(iter(incident.jobs), incident.root.job_id or "")
    words = {"{cause}": incident.cause, "{node}": node, "{job_id}": job_id}
    for placeholder, word in words.items():
        template = template.replace(placeholder, quote(word, safe="", errors="replace"))
    return template
