"""The report of a replay: one HTML file that needs nothing else, for whoever was not there."""

from datetime import UTC, datetime
from html import escape
from string import Template

from stethoscope.replay.run import Outcome
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.incidents import Incident, is_page
from stethoscope.sinks.text import duration_text, listed, place_text

DAY_NS = 86_400 * NS
_ROW_PX = 26
_LABEL_PX = 250
_WIDTH_PX = 1100

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Stethoscope: $title</title>
<style>
:root { color-scheme: light dark; --critical: #d03b3b; --warning: #d98a1f; --info: #7a8ca3; }
body { font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 1120px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.facts { opacity: .75; margin-top: .2rem; } .fault { color: var(--critical); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
tr:target { background: #8882; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; }
th { font-weight: 600; border-bottom: 2px solid #8886; } td { border-bottom: 1px solid #8883; }
.critical { color: var(--critical); } .warning { color: var(--warning); }
.info { color: var(--info); }
.sev { font-weight: 600; white-space: nowrap; } .num { white-space: nowrap; }
.what { min-width: 17rem; } .where { min-width: 8rem; }
.next { min-width: 13rem; } small { opacity: .8; }
code { font-size: .85em; } code, small { overflow-wrap: anywhere; }
ol, ul { margin: 0; padding-left: 1.1rem; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-size: 12px; }
svg .grid { stroke: #8884; } svg rect { fill: currentColor; }
</style></head><body>
<h1>$headline</h1>
<p class="facts">$facts</p>
$failed$body
</body></html>
""")


def html_report(outcome: Outcome, title: str) -> str:
    """The whole page, as text. ``title`` names what was replayed."""
    pages = sum(is_page(one) for one in outcome.incidents)
    headline = f"{_count(pages, 'page')}, {_count(len(outcome.incidents), 'incident')}"
    body = _body(outcome) if outcome.incidents else "<p>Nothing was wrong.</p>"
    return _PAGE.substitute(
        title=escape(title),
        headline=headline,
        facts=_facts(outcome, title),
        failed=_failed(outcome),
        body=body,
    )


def _body(outcome: Outcome) -> str:
    rows = "\n".join(_row(incident) for incident in outcome.incidents)
    return (
        f"<h2>Timeline (UTC)</h2>\n{_timeline(outcome)}\n<h2>Incidents</h2>\n"
        '<div class="wide"><table><thead><tr><th>Severity</th><th class="what">What</th>'
        '<th class="where">Where</th><th>Since (UTC)</th><th>Sure</th>'
        f'<th class="next">Next</th></tr></thead><tbody>\n{rows}\n</tbody></table></div>'
    )


def _facts(outcome: Outcome, title: str) -> str:
    facts = [escape(title), f"{outcome.raw_events:,} raw events"]
    if outcome.first_unix_ns is not None and outcome.last_unix_ns is not None:
        first, last = _utc(outcome.first_unix_ns, "%Y-%m-%d %H:%M:%S"), _utc(outcome.last_unix_ns)
        facts.append(f"{first} to {last} UTC")
    refused = ", ".join(f"{n} {escape(reason)}" for reason, n in sorted(outcome.refused.items()))
    if refused:
        facts.append(f"refused: {refused}")
    return " · ".join(facts)


def _failed(outcome: Outcome) -> str:
    """Detectors that failed: what they would have found is not here."""
    if not outcome.failed:
        return ""
    names = ", ".join(f"{escape(name)} failed {n:,} ×" for name, n in outcome.failed.items())
    return f'<p class="fault">Incomplete: a fault in detectors ({names}).</p>\n'


def _row(incident: Incident) -> str:
    severity = incident.severity
    cells = (
        f'<span class="sev {severity}">{severity}</span>',
        f"<b>{escape(incident.alertname)}</b><br>{escape(incident.title)}{_reason(incident)}"
        f"{_merged(incident)}{_again(incident)}{_suspects(incident)}{_evidence(incident)}",
        f"{escape(place_text(incident.root)).replace(' · ', '<br>')}{_also(incident)}",
        f'<span class="num">{_utc(incident.started_unix_ns, "%Y-%m-%d")}<br>'
        f"{_utc(incident.started_unix_ns)}</span><br>"
        f'<span class="num">{_lasted(incident)}</span><br>'
        f'<small class="num">seen {_seen_after(incident)} later</small>',
        f"{incident.confidence:.0%}",
        _list("ol", incident.actions),
    )
    anchor = escape(incident.incident_id, quote=True)
    return f'<tr id="{anchor}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _reason(incident: Incident) -> str:
    """Why the first suspect is suspected."""
    reason = incident.suspects[0].reason if incident.suspects else ""
    return f"<br><small>{escape(reason)}</small>" if reason else ""


def _merged(incident: Incident) -> str:
    if incident.merged_into is None:
        return ""
    other = escape(incident.merged_into, quote=True)
    return f'<br><small>part of <a href="#{other}">{other}</a></small>'


def _again(incident: Incident) -> str:
    if incident.recurrence < 2:
        return ""
    return f"<br><small>{incident.recurrence} times in 30 days</small>"


def _suspects(incident: Incident) -> str:
    """The ranked alternatives, where there are any."""
    ranked = [f"{place_text(one.subject)}: {one.reason}" for one in incident.suspects]
    if len(ranked) < 2:
        return ""
    count = _count(len(ranked), "suspect")
    return f"<details><summary>{count}</summary>{_list('ol', ranked)}</details>"


def _evidence(incident: Incident) -> str:
    known = {"", *(one.reason for one in incident.suspects[:1])}  # that one stands above it
    shown = [_said(one) for one in incident.findings.first if one.evidence not in known]
    if not shown:
        return ""
    return f"<details><summary>evidence</summary>{_list('ul', shown, code=True)}</details>"


def _said(finding: Finding) -> str:
    return f"{_utc(finding.started_unix_ns)} {finding.cause}: {finding.evidence}"


def _also(incident: Incident) -> str:
    """Jobs and nodes it hurts beside the place itself."""
    jobs = [job for job in incident.jobs if job != incident.root.job_id]
    nodes = [node for node in incident.nodes if node != incident.root.node]
    hurt = [f"hurts job {listed(jobs)}"] if jobs else []
    hurt += [f"on {listed(nodes)}"] if nodes else []
    return "".join(f"<br><small>{escape(line)}</small>" for line in hurt)


def _list(tag: str, items: list[str], *, code: bool = False) -> str:
    left, right = ("<code>", "</code>") if code else ("", "")
    inner = "".join(f"<li>{left}{escape(item)}{right}</li>" for item in items)
    return f"<{tag}>{inner}</{tag}>" if items else ""


def _timeline(outcome: Outcome) -> str:
    """One bar an incident, from its onset to its end, or to the end of the recording."""
    incidents = outcome.incidents
    first = min(incidents[0].started_unix_ns, outcome.first_unix_ns or incidents[0].started_unix_ns)
    ends = [one.ended_unix_ns or one.detected_unix_ns for one in incidents]
    last = max(outcome.last_unix_ns or 0, *ends, first + NS)
    scale = (_WIDTH_PX - _LABEL_PX) / (last - first)
    height = _ROW_PX * (len(incidents) + 1)
    parts = [f'<svg viewBox="0 0 {_WIDTH_PX} {height}" role="img" aria-label="Timeline">']
    form = "%H:%M:%S" if last - first < DAY_NS else "%m-%d %H:%M"
    for tenth in range(0, 11, 2):
        x = _LABEL_PX + (_WIDTH_PX - _LABEL_PX) * tenth / 10
        anchor = "end" if tenth == 10 else "start"
        time = _utc(first + (last - first) * tenth // 10, form)
        parts.append(f'<line class="grid" x1="{x:.0f}" x2="{x:.0f}" y1="16" y2="{height}"/>')
        parts.append(f'<text x="{x:.0f}" y="12" text-anchor="{anchor}">{time}</text>')
    for row, incident in enumerate(incidents, 1):
        until = incident.ended_unix_ns or last
        parts.append(
            _bar(
                incident,
                row,
                (incident.started_unix_ns - first) * scale,
                (until - incident.started_unix_ns) * scale,
            )
        )
    return "\n".join([*parts, "</svg>"])


def _bar(incident: Incident, row: int, left_px: float, width_px: float) -> str:
    y = row * _ROW_PX
    name = escape(f"{incident.cause} {' '.join(incident.jobs)}".strip())[:40]
    anchor = escape(incident.incident_id, quote=True)
    return (
        f'<a href="#{anchor}"><text x="0" y="{y + 13}">{name}</text>'
        f'<rect class="{incident.severity}" x="{_LABEL_PX + left_px:.1f}" y="{y}" height="16"'
        f' width="{max(width_px, 3):.1f}" rx="3"><title>{escape(incident.title)}</title></rect></a>'
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _seen_after(incident: Incident) -> str:
    return _span(incident.detected_unix_ns - incident.started_unix_ns)


def _lasted(incident: Incident) -> str:
    if incident.ended_unix_ns is None:
        return "still open"
    return f"for {_span(incident.ended_unix_ns - incident.started_unix_ns)}"


def _span(span_ns: int) -> str:
    secs = span_ns / NS
    return f"{secs:.1f} s" if secs < 60 else duration_text(secs)


def _utc(unix_ns: int, form: str = "%H:%M:%S") -> str:
    return datetime.fromtimestamp(unix_ns / NS, UTC).strftime(form)
