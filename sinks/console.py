"""Incidents as a table for a person: what, where, since when, how sure, what to do next."""

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stethoscope.schemas.findings import NS
from stethoscope.schemas.incidents import Incident, is_page
from stethoscope.schemas.labels import clean_text
from stethoscope.sinks.text import duration_text, listed, place_text, utc_text, value_text

STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "cyan"}
MAX_ACTIONS = 3
MAX_PROOF_CHARS = 180
MIN_TABLE_WIDTH = 110  # below that the columns are too narrow to read
MAX_WIDTH = 160  # lines longer than this are hard to follow


def render(
    incidents: list[Incident],
    *,
    raw_events_total: int,
    console: Console,
    show_info: bool = False,
) -> None:
    """Print the pages, oldest first, and how many raw events they stand for.

    ``show_info``: also incidents that page nobody (recorded only, or part of another).
    ``raw_events_total``: all events read, whether an incident came of them or not.
    """
    pages = [incident for incident in incidents if is_page(incident)]
    shown = sorted(incidents if show_info else pages, key=_order)
    if shown:
        if console.width < MIN_TABLE_WIDTH:
            for incident in shown:
                console.print(_card(incident))
        else:
            console.print(_table(shown, min(console.width, MAX_WIDTH)))
    console.print(_summary(incidents, pages, raw_events_total, show_info))


def _order(incident: Incident) -> tuple[int, str]:
    return incident.started_unix_ns, incident.incident_id


def _table(incidents: list[Incident], width: int) -> Table:
    table = Table(box=box.ROUNDED, show_lines=True, width=width, header_style="bold")
    table.add_column("What was wrong", ratio=7, overflow="fold")
    table.add_column("Where", ratio=5, overflow="fold")
    table.add_column("Since (UTC)", width=14)
    table.add_column("Sure", justify="right", width=5)
    table.add_column("What to do next", ratio=8, overflow="fold")
    for incident in incidents:
        table.add_row(
            _what(incident),
            _where(incident),
            _since(incident),
            Text(f"{incident.confidence:.0%}"),
            _next(incident),
        )
    return table


def _card(incident: Incident) -> Group:
    """The same facts under each other, for a narrow terminal."""
    head = Text()
    head.append(incident.severity.upper(), STYLES[incident.severity])
    head.append(f" {incident.alertname}", "bold")
    since = " ".join(_since(incident).plain.split("\n"))
    facts = f"{place_text(incident.root)} · {since} · {incident.confidence:.0%} sure"
    lines = [incident.title, *([proof] if (proof := _proof(incident)) else [])]
    body = Text("\n".join([facts, *lines]))
    return Group(head, Padding(body, (0, 0, 0, 2)), Padding(_next(incident), (0, 0, 1, 2)))


def _what(incident: Incident) -> Text:
    text = Text()
    text.append(incident.severity.upper(), STYLES[incident.severity])
    text.append(f" {incident.alertname}\n", "dim")
    text.append(incident.title)
    if proof := _proof(incident):
        text.append(f"\n{proof}", "italic dim")
    if incident.recurrence > 1:
        text.append(f"\n{incident.recurrence} times in 30 days", "dim")
    if incident.merged_into is not None:
        text.append(f"\npart of {incident.merged_into}", "dim")
    return text


def _proof(incident: Incident) -> str:
    """The number or line that proves it: what speaks for the root, else the first finding."""
    if incident.suspects and incident.suspects[0].reason.strip():
        return clean_text(incident.suspects[0].reason.strip(), MAX_PROOF_CHARS)
    first = next(iter(incident.findings.first), None)
    if first is None:
        return ""
    return clean_text(first.evidence.strip() or value_text(first), MAX_PROOF_CHARS)


def _where(incident: Incident) -> Text:
    text = Text(place_text(incident.root).replace(" · ", "\n"))
    others = [job for job in incident.jobs if job != incident.root.job_id]
    if others:
        text.append(f"\nhurts job {listed(others, at_most=3)}", "dim")
    nodes = [node for node in incident.nodes if node != incident.root.node]
    if nodes:
        text.append(f"\non {listed(nodes, at_most=3)}", "dim")
    return text


def _since(incident: Incident) -> Text:
    day, clock, _zone = utc_text(incident.started_unix_ns).split(" ")
    text = Text(f"{day}\n{clock}\n")
    if incident.ended_unix_ns is None or incident.state == "open":
        return text.append("still open", "bold")
    lasted_secs = (incident.ended_unix_ns - incident.started_unix_ns) / NS
    return text.append(f"for {duration_text(lasted_secs)}" if lasted_secs >= 1 else "ended", "dim")


def _next(incident: Incident) -> Table | Text:
    """Numbered steps, their continuation lines indented under the text."""
    if not incident.actions:
        return Text("nothing to do" if incident.severity == "info" else "look at the evidence")
    steps = Table.grid(padding=(0, 1, 0, 0))
    steps.add_column(justify="right", style="dim", no_wrap=True)
    steps.add_column(overflow="fold")
    for number, action in enumerate(incident.actions[:MAX_ACTIONS], 1):
        steps.add_row(f"{number}.", Text(action))
    left = len(incident.actions) - MAX_ACTIONS
    if left > 0:
        steps.add_row("", Text(f"and {left} more in the report", "dim"))
    return steps


def _summary(
    incidents: list[Incident], pages: list[Incident], raw_events_total: int, show_info: bool
) -> Text:
    folded = sum(page.raw_events for page in pages)
    hidden = len(incidents) - len(pages)
    text = Text()
    if pages:
        word = "page" if len(pages) == 1 else "pages"
        text.append(f"{len(pages)} {word}", "bold")
        text.append(f", into which {folded:,} raw events were folded")
    else:
        text.append("Nothing that should page anyone", "bold")
    text.append(f"; {raw_events_total:,} raw events read.")
    if hidden and not show_info:
        text.append(f"\n{hidden} more for the record only.", "dim")
    return text
