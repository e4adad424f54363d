import re
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from stethoscope.schemas.config import Links
from stethoscope.schemas.findings import Finding, Subject, Suspect
from stethoscope.schemas.incidents import FindingSummary, Incident
from stethoscope.sinks.alertmanager_types import to_datetime
from stethoscope.sinks.alerts import MAX_ANNOTATION_CHARS, annotations_of, labels_of, to_alert

MakeIncident = Callable[..., Incident]
T0 = 1_700_000_000_000_000_000
LINKS = Links(
    runbook_url="https://wiki/{cause}", dashboard_url="https://dash/?node={node}&job={job_id}"
)


def finding(**changes: object) -> Finding:
    fields: dict[str, object] = {
        "finding_id": "f",
        "detector": "gpu_thermal",
        "cause": "gpu_overheating",
        "subject": Subject(node="node01", gpu_index=1, rank=3),
        "started_unix_ns": T0,
        "observed_unix_ns": T0,
    }
    return Finding(**(fields | changes))  # type: ignore[arg-type]  # fields of mixed types


def test_a_person_is_told_when_where_how_much_and_whom_it_hurts(
    make_incident: MakeIncident,
) -> None:
    hot = finding(value=91.25, threshold=85.0, unit="celsius", evidence="91.25 C for 30 s")
    incident = make_incident(
        jobs=["4711", "4712"],
        nodes=[f"node{n:02}" for n in range(1, 13)],
        findings=FindingSummary(by_cause={"gpu_overheating": 2}, first=[hot, finding()]),
        suspects=[Suspect(subject=Subject(rank=0), reason="")],
        raw_events=512,
        recurrence=3,
        actions=["drain it", "clean the filter"],
    )
    notes = annotations_of(incident, LINKS)
    assert notes["summary"] == "GPU fell off the bus"
    assert notes["description"].splitlines() == [
        "Since 2023-11-14 22:13:20 UTC, seen 2 s later.",
        "Where: node01 gpu1.",
        "Measured: gpu_overheating 91.25 against 85 celsius.",
        "Jobs hurt: 4711, 4712.",
        "Ranks hurt: 0, 3.",
        "Nodes hurt: node01, node02, node03, node04, node05, node06, node07, node08 and 4 more.",
        "Confidence 90%, 512 raw events folded.",
        "The same here 3 times in 30 days.",
    ]
    assert notes["actions"] == "1. drain it\n2. clean the filter"
    assert notes["evidence"] == "91.25 C for 30 s"
    assert notes["runbook_url"] == "https://wiki/gpu_lost"
    assert notes["dashboard_url"] == "https://dash/?node=node01&job=4711"


def test_an_ended_and_merged_incident_says_so(make_incident: MakeIncident) -> None:
    incident = make_incident(ended_unix_ns=T0 + 10**10, merged_into="abcd", nodes=[])
    lines = annotations_of(incident, Links())["description"].splitlines()
    assert lines[0].endswith("seen 2 s later, ended 2023-11-14 22:13:30 UTC.")
    assert lines[-1] == "Part of incident abcd."


def test_what_is_empty_is_left_out(make_incident: MakeIncident) -> None:
    notes = annotations_of(make_incident(actions=[]), Links())
    assert set(notes) == {"summary", "description"}


def test_the_catalogue_is_the_runbook_where_none_is_configured(
    make_incident: MakeIncident,
) -> None:
    incident = make_incident(knowledge="https://docs/xid79")
    assert annotations_of(incident, Links())["runbook_url"] == "https://docs/xid79"
    assert annotations_of(incident, LINKS)["runbook_url"] == "https://wiki/gpu_lost"


def test_names_cannot_break_out_of_a_url(make_incident: MakeIncident) -> None:
    incident = make_incident(root=Subject(node="n1&x=/{job_id}"), jobs=["4 7"])
    url = annotations_of(incident, LINKS)["dashboard_url"]
    assert url == "https://dash/?node=n1%26x%3D%2F%7Bjob_id%7D&job=4%207"


def test_frozen_labels_win_over_what_is_known_now(make_incident: MakeIncident) -> None:
    frozen = {"alertname": "GpuLost", "incident_id": "1", "bad.name": "x", "empty": ""}
    incident = make_incident(severity="warning", page_labels=frozen)
    assert labels_of(incident) == {"alertname": "GpuLost", "incident_id": "1", "bad_name": "x"}
    assert labels_of(make_incident())["severity"] == "critical"


def test_equal_evidence_is_said_once_and_little_of_it(make_incident: MakeIncident) -> None:
    lines = ["same", "same", "x" * 9999, *(f"line {n}" for n in range(20))]
    findings = FindingSummary(by_cause={}, first=[finding(evidence=line) for line in lines])
    evidence = annotations_of(make_incident(findings=findings), Links())["evidence"]
    shown = evidence.splitlines()
    assert shown[0] == "same"
    assert len(shown) == 5
    assert len(shown[1]) == 500


def test_the_alerts_link_back_is_the_dashboard() -> None:
    start, end = to_datetime(T0), to_datetime(T0 + 1000)
    alert = to_alert({"a": "b"}, {"dashboard_url": "https://dash"}, start, end)
    assert (alert.starts_at, alert.ends_at, alert.generator_url) == (start, end, "https://dash")
    assert to_alert({"a": "b"}, {}, start, end).generator_url == ""


@given(st.text(st.characters(codec=None)), st.lists(st.text(st.characters(codec=None))))
def test_annotations_are_always_bounded_valid_text(
    make_incident: MakeIncident, title: str, actions: list[str]
) -> None:
    incident = make_incident(title=title * 1000, actions=actions, jobs=[title], knowledge=title)
    for name, text in annotations_of(incident, LINKS).items():
        assert re.fullmatch("[a-z_]+", name)
        assert 0 < len(text) <= MAX_ANNOTATION_CHARS
        assert text.encode("utf-8")
