import io
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.incidents import FindingSummary, Incident
from stethoscope.sinks.console import MIN_TABLE_WIDTH, render

MakeIncident = Callable[..., Incident]
T0 = 1_700_000_000 * NS


def shown(incidents: list[Incident], width: int = 100, show_info: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    render(incidents, raw_events_total=45_120, console=console, show_info=show_info)
    return out.getvalue()


@pytest.fixture
def lost(make_incident: MakeIncident) -> Incident:
    return make_incident(
        jobs=["4711"],
        raw_events=5120,
        root=Subject(node="gpu-node-0017", gpu_index=3, gpu_uuid="GPU-5a8c6fbe"),
        nodes=["gpu-node-0017", "node2"],
        actions=["Drain it: scontrol update nodename=gpu-node-0017 state=drain", "b", "c", "d"],
    )


@pytest.fixture
def slow(make_incident: MakeIncident) -> Incident:
    return make_incident(
        incident_id="slow",
        severity="warning",
        alertname="StepTimeRegression",
        state="resolved",
        title="Steps of [bold]job 4712 take 1.84 s instead of 0.92 s",
        root=Subject(job_id="4712"),
        jobs=["4712"],
        started_unix_ns=T0 - 60 * NS,
        ended_unix_ns=T0 + 15 * NS,
        confidence=0.45,
        recurrence=3,
    )


def test_it_says_what_where_since_when_how_sure_and_what_next(lost: Incident) -> None:
    text = shown([lost], width=140)
    for words in (
        "CRITICAL GpuLost",
        "GPU fell off the bus",
        "gpu-node-0017 gpu3",
        "hurts job 4711",
        "on node2",
        "2023-11-14",
        "22:13:20",
        "still open",
        "90%",
        "1. Drain it",
        "and 1 more in the report",
        "1 page, into which 5,120 raw events were folded; 45,120 raw events read.",
    ):
        assert words in text


def test_titles_are_text_not_markup_and_the_oldest_is_first(lost: Incident, slow: Incident) -> None:
    text = shown([lost, slow], width=140)
    assert "[bold]job 4712" in text
    assert text.index("StepTimeRegression") < text.index("GpuLost")
    assert "for 1 min 15 s" in text
    assert "3 times in 30 days" in text


@pytest.mark.parametrize(
    ("evidence", "proof"),
    [("Xid 79, fallen off the bus", "Xid 79, fallen off the bus"), ("", "91.5 against 85 celsius")],
)
def test_the_first_proof_is_shown(make_incident: MakeIncident, evidence: str, proof: str) -> None:
    place = Subject(node="node01")
    hot = Finding("f", "d", "c", place, T0, T0, value=91.5, threshold=85, unit="celsius")
    first = [replace(hot, evidence=evidence), replace(hot, evidence="another")]
    text = shown([make_incident(findings=FindingSummary({"c": 2}, first))], width=160)
    assert proof in text
    assert "another" not in text


def test_a_moment_has_no_duration(make_incident: MakeIncident) -> None:
    text = shown([make_incident(state="resolved", ended_unix_ns=T0)])
    assert "ended" in text
    assert "0 s" not in text


@pytest.mark.parametrize("width", [60, 80, 100, 140, 300])
def test_every_line_fits_and_no_name_is_cut(width: int, lost: Incident, slow: Incident) -> None:
    text = shown([lost, slow], width=width)
    lines = text.splitlines()
    assert max(cell_len(line) for line in lines) <= min(width, 160)
    assert "…" not in text
    table = [line for line in lines if line[:1] in "╭│├╰"]
    edges = {cell_len(line) for line in table}  # a clean right edge, where there is a table
    assert len(edges) == (1 if width >= MIN_TABLE_WIDTH else 0)


def test_what_pages_nobody_is_counted_and_shown_on_request(
    lost: Incident, make_incident: MakeIncident
) -> None:
    note = make_incident(
        incident_id="note", severity="info", alertname="AppError", actions=[], jobs=["9"]
    )
    merged = make_incident(incident_id="m", merged_into=lost.incident_id, title="a symptom")
    text = shown([lost, note, merged])
    assert "AppError" not in text
    assert "2 more for the record only." in text
    text = shown([lost, note, merged], width=140, show_info=True)
    assert "INFO AppError" in text
    assert f"part of {lost.incident_id}" in text
    assert "nothing to do" in text
    assert "for the record only" not in text


def test_nothing_wrong_is_said_in_one_line() -> None:
    assert shown([]) == "Nothing that should page anyone; 45,120 raw events read.\n"
