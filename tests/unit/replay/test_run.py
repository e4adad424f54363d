"""Running a recording: final states, window, dead letters; and the report made of it."""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest

from stethoscope.replay.report import html_report
from stethoscope.replay.run import DeadLetters, Outcome, Window, incident_line, run
from stethoscope.schemas.errors import BadEvent
from stethoscope.schemas.events import ClockEvent, Event, LogEvent
from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.incidents import FindingSummary, Incident, Severity


def incident(
    incident_id: str,
    started: int,
    detected: int,
    ended: int | None = None,
    title: str = "it broke",
    severity: Severity = "critical",
) -> Incident:
    return Incident(
        incident_id=incident_id,
        state="open" if ended is None else "resolved",
        cause="gpu_lost",
        alertname="GpuLost",
        severity=severity,
        audience="infra",
        title=title,
        started_unix_ns=started * NS,
        detected_unix_ns=detected * NS,
        ended_unix_ns=None if ended is None else ended * NS,
        root=Subject(node="n1", gpu_index=2),
        confidence=0.9,
        suspects=[],
        jobs=["7"],
        nodes=["n1"],
        findings=FindingSummary(by_cause={"gpu_lost": 1}, first=[finding(started)]),
        raw_events=4,
        recurrence=0,
        merged_into=None,
        actions=["Drain <n1>."],
        knowledge="",
        paged_unix_ns=detected * NS,
        page_labels={"alertname": "GpuLost"},
    )


def finding(observed: int) -> Finding:
    return Finding(
        finding_id=f"f{observed}",
        detector="xid",
        cause="gpu_lost",
        subject=Subject(node="n1"),
        started_unix_ns=observed * NS,
        observed_unix_ns=observed * NS,
        evidence="Xid 79 <b>",
    )


@dataclass
class Changes:
    findings: list[Finding] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)


class Script:
    """A pipeline that says what it was told to say at a given second."""

    def __init__(self, says: dict[int, Changes], last: Changes | None = None) -> None:
        self.says = says
        self.last = last or Changes()
        self.rejects: list[tuple[str, str]] = []
        self.seen: list[int] = []

    def feed(self, events: Iterable[Event]) -> Changes:
        out = Changes()
        for event in events:
            second = event.time_unix_ns // NS
            self.seen.append(second)
            said = self.says.get(second, Changes())
            out.findings += said.findings
            out.incidents += said.incidents
        return out

    def finish(self) -> Changes:
        return self.last


def clocks(*seconds: int) -> list[Event]:
    return [ClockEvent(time_unix_ns=second * NS) for second in seconds]


def test_an_incident_comes_once_in_its_final_state() -> None:
    opened, resolved = incident("a", 1, 2), incident("a", 1, 2, ended=9)
    pipeline = Script({2: Changes(incidents=[opened])}, Changes(incidents=[resolved]))
    outcome = run(clocks(1, 2, 3), pipeline, DeadLetters())
    assert outcome.incidents == [resolved]
    assert (outcome.first_unix_ns, outcome.last_unix_ns) == (NS, 3 * NS)


def test_incidents_are_ordered_by_start_then_id() -> None:
    said = [incident("b", 5, 9), incident("a", 5, 8), incident("z", 1, 9)]
    outcome = run(clocks(9), Script({9: Changes(incidents=said)}), DeadLetters())
    assert [one.incident_id for one in outcome.incidents] == ["z", "a", "b"]


def test_the_window_warms_up_in_silence_and_ends_on_time() -> None:
    says = {t: Changes([finding(t)], [incident(str(t), t, t)]) for t in (1, 4, 6, 9)}
    pipeline = Script(says)
    seen: list[str] = []
    outcome = run(
        clocks(1, 4, 6, 9),
        pipeline,
        DeadLetters(),
        Window(from_unix_ns=4 * NS, to_unix_ns=6 * NS),
        lambda one: seen.append(one.finding_id),
    )
    assert pipeline.seen == [1, 4, 6]
    assert [one.incident_id for one in outcome.incidents] == ["4", "6"]
    assert seen == ["f4", "f6"]


def test_log_lines_count_by_their_count() -> None:
    line = LogEvent(time_unix_ns=NS, node="n1", source="kernel", line="x", count=40)
    assert run([line, *clocks(2)], Script({}), DeadLetters()).raw_events == 41


def test_dead_letters_are_counted_and_written() -> None:
    file = io.StringIO()
    letters = DeadLetters(file)
    letters.add(BadEvent("truncated", "the end"), "x.jsonl:7")
    pipeline = Script({})
    pipeline.rejects = [("unknown_metric", "gpu_mood"), ("unknown_metric", "gpu_luck")]
    outcome = run(clocks(1), pipeline, letters)
    assert outcome.refused == {"truncated": 1, "unknown_metric": 2}
    assert letters.summary() == (
        "3 dead letters: 1 truncated, 2 unknown_metric; the first: x.jsonl:7: the end"
    )
    records = [json.loads(line) for line in file.getvalue().splitlines()]
    assert records[0] == {"where": "x.jsonl:7", "reason": "truncated", "detail": "the end"}
    assert pipeline.rejects == []


def test_no_dead_letters_no_summary() -> None:
    assert DeadLetters().summary() == ""


def test_the_json_of_an_incident_holds_the_public_fields_only() -> None:
    plain = json.loads(incident_line(incident("a", 1, 2)))
    assert list(plain) == [
        "incident_id", "state", "cause", "alertname", "severity", "audience", "title",
        "started_unix_ns", "detected_unix_ns", "ended_unix_ns", "root", "confidence", "suspects",
        "jobs", "nodes", "findings", "raw_events", "recurrence", "merged_into", "actions",
        "knowledge",
    ]  # fmt: skip
    assert plain["ended_unix_ns"] is None


class Tags(HTMLParser):
    """Every tag opened and closed, and every address named."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_whole_and_needs_nothing_from_outside() -> None:
    outcome = Outcome(
        incidents=[incident("a", 100, 102, 130, "5 < 6 & more"), incident("b", 150, 151)],
        raw_events=12345,
        first_unix_ns=90 * NS,
        last_unix_ns=200 * NS,
        refused={"truncated": 2},
    )
    page = html_report(outcome, "x.jsonl")
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert all(address.startswith("#") for address in tags.addresses)
    assert "2 pages, 2 incidents" in page
    assert "12,345 raw events" in page
    assert "5 &lt; 6 &amp; more" in page
    assert "Drain &lt;n1&gt;." in page
    assert "Xid 79 &lt;b&gt;" in page
    assert "refused: 2 truncated" in page
    assert "still open" in page
    assert page == html_report(outcome, "x.jsonl")


@pytest.mark.parametrize("outcome", [Outcome([], 0), Outcome([], 7, 1, 5)])
def test_the_report_of_a_quiet_time(outcome: Outcome) -> None:
    assert "Nothing was wrong." in html_report(outcome, "x")
