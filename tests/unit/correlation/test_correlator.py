"""Findings to incidents: fold, attach, re-root, mute, page, end."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from stethoscope.correlation.correlator import CorrelatorState
from stethoscope.correlation.placement import Placement
from stethoscope.schemas.config import Correlation
from stethoscope.schemas.events import JobEvent
from stethoscope.schemas.findings import Finding, Subject, Suspect
from stethoscope.streams.state_codec import decode_state, encode_state

from .build import Desk, at, finding, job

GPU: dict[str, Any] = {"gpu_index": 1, "gpu_uuid": "GPU-b", "gpu_pci": "0000:00:07"}
RANK: dict[str, Any] = {"gpu_index": 1, "gpu_uuid": "GPU-b", "job_id": "77", "rank": 1}
JOB: dict[str, Any] = {"job_id": "77"}


def shown(*said: Finding | JobEvent, secs: int = 60, desk: Desk | None = None) -> Desk:
    """What became of it after ``secs``; job 77 runs on node01 and node02."""
    desk = desk or Desk()
    desk.until(secs, job(nodes=["node01", "node02"]), *said)
    return desk


# One incident a fault.


def test_fallen_off_the_bus_is_the_root_of_what_the_job_says() -> None:
    ranks = [
        finding("nccl_timeout", 45 + i / 10, onset=15, moment=True, **JOB | {"rank": i})
        for i in range(8)
    ]
    desk = shown(
        finding("gpu_lost", 20, moment=True, severity="critical", **GPU),
        *ranks,
        finding("rank_lost", 47, moment=True, **RANK),
        job(state="FAILED", secs=48, end=48, nodes=["node01", "node02"]),
        finding("job_failed", 51, onset=48, moment=True, **JOB),
    )
    assert len(desk.pages) == 1
    only = desk.only
    assert (only.cause, only.root.gpu_index, only.severity) == ("gpu_lost", 1, "critical")
    assert only.jobs == ["77"]
    assert only.findings.by_cause == {
        "gpu_lost": 1,
        "job_failed": 1,
        "nccl_timeout": 8,
        "rank_lost": 1,
    }
    assert only.started_unix_ns == at(20)
    assert only.raw_events == 11


def test_a_timeout_reported_half_an_hour_later_has_its_cause() -> None:
    desk = Desk(Correlation(moment_ttl_secs=3600.0))
    shown(
        finding("gpu_xid", 20, moment=True, severity="warning", **GPU),
        finding("nccl_timeout", 1815, onset=15, moment=True, **JOB),
        secs=1900,
        desk=desk,
    )
    assert [i.cause for i in desk.incidents] == ["gpu_xid"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("step_time_regression", "straggler"),
        ("step_time_regression", "gpu_contention"),
        ("straggler", "gpu_throttled"),
        ("rank_lost", "host_oom"),
        ("job_hang", "gpu_lost"),
        ("job_failed", "cuda_oom"),
        ("nccl_timeout", "nvlink_error"),
        ("grad_explosion", "loss_spike"),
    ],
)
def test_a_deeper_cause_that_comes_later_takes_over(first: str, second: str) -> None:
    place = JOB if second in ("straggler", "cuda_oom", "loss_spike", "gpu_contention") else {}
    desk = shown(finding(first, 20, **JOB), finding(second, 21, onset=20, **GPU | place))
    only = desk.only
    assert only.cause == second
    assert only.findings.by_cause == {first: 1, second: 1}
    assert len({i.incident_id for i in desk.incidents}) == 1
    assert len(desk.pages) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("straggler", "step_time_regression"),
        ("cuda_oom", "rank_lost"),
        ("cuda_oom", "job_failed"),
        ("rank_lost", "job_failed"),
        ("job_hang", "nccl_timeout"),
        ("nccl_timeout", "job_hang"),
        ("loss_nan", "app_error"),
        ("app_error", "nccl_timeout"),
        ("nccl_wrong_path", "step_time_regression"),
        ("host_contention", "data_stall"),
        ("agent_silent", "job_hang"),
    ],
)
def test_a_symptom_joins_its_cause(first: str, second: str) -> None:
    root = {} if first in ("agent_silent",) else JOB
    severity = "warning" if first == "app_error" else None
    desk = shown(finding(first, 20, severity=severity, **root), finding(second, 25, **JOB))
    assert desk.only.cause == first
    assert desk.only.findings.by_cause == {first: 1, second: 1}


def test_each_order_of_arrival_ends_in_one_incident_with_the_same_root() -> None:
    fault = [
        finding("gpu_lost", 20, moment=True, severity="critical", **GPU),
        finding("job_hang", 20, onset=20, **RANK),
        finding("rank_lost", 20, moment=True, **RANK),
    ]
    for order in permutations(fault):
        desk = Desk()
        desk.until(19, job())
        for one in order:
            desk.correlator.take(one)
        desk.until(60)
        assert desk.only.cause == "gpu_lost"
        assert [i.cause for i in desk.pages] == ["gpu_lost"]


def test_the_same_fault_said_by_two_detectors_folds() -> None:
    by_line = finding("gpu_lost", 20, moment=True, severity="critical", **GPU)
    by_count = finding("gpu_lost", 22, onset=19, **GPU)
    desk = shown(by_line, by_count)
    assert desk.only.findings.by_cause == {"gpu_lost": 2}


def test_the_same_gpu_lost_folds_though_its_job_ended_meanwhile() -> None:
    desk = shown(
        finding("gpu_lost", 20, moment=True, severity="critical", **GPU),
        job(state="FAILED", secs=21, end=21, nodes=["node01", "node02"]),
        finding("gpu_lost", 40, moment=True, severity="critical", **GPU),
    )
    assert len(desk.incidents) == 1


def test_a_fault_noticed_after_it_ended_its_job_is_that_jobs() -> None:
    desk = shown(
        job(state="FAILED", secs=21, end=21, nodes=["node01", "node02"]),
        finding("job_failed", 24, onset=21, moment=True, **JOB),
        finding("gpu_lost", 25, onset=20, **GPU),
    )
    assert (desk.only.cause, desk.only.jobs) == ("gpu_lost", ["77"])


# What must stay apart.


def test_two_gpus_of_one_job_are_two_faults() -> None:
    desk = shown(
        finding("gpu_ecc_uncorrectable", 20, moment=True, **GPU),
        finding("gpu_ecc_uncorrectable", 25, moment=True, **GPU | {"node": "node02"}),
    )
    assert len(desk.pages) == 2


def test_what_hardware_says_of_another_node_is_another_fault() -> None:
    desk = shown(
        finding("gpu_lost", 20, moment=True, severity="critical", **GPU),
        finding("gpu_xid", 25, moment=True, severity="warning", **GPU | {"node": "node02"}),
    )
    assert sorted(i.cause for i in desk.pages) == ["gpu_lost", "gpu_xid"]


def test_a_job_that_does_not_run_there_is_not_hurt() -> None:
    desk = shown(
        job("88", nodes=["node09"]),
        finding("gpu_lost", 20, moment=True, severity="critical", **GPU),
        finding("job_hang", 25, node="node09", job_id="88"),
    )
    assert sorted(i.cause for i in desk.pages) == ["gpu_lost", "job_hang"]
    assert [i.jobs for i in desk.incidents] == [["77"], ["88"]]


def test_a_gpu_of_another_job_on_the_node_is_not_ours() -> None:
    desk = Desk()
    desk.until(
        60,
        job("1", gpus={"node01": [0]}),
        job("2", gpus={"node01": [1]}),
        finding("gpu_lost", 20, moment=True, severity="critical", **GPU),
        finding("job_hang", 25, job_id="1"),
    )
    assert [i.jobs for i in desk.pages] == [["2"], ["1"]]


def test_causes_that_explain_nothing_of_each_other_stay_apart() -> None:
    desk = shown(finding("loss_nan", 20, **JOB), finding("straggler", 25, **RANK))
    assert len(desk.pages) == 2


def test_an_info_case_explains_nothing() -> None:
    desk = shown(
        finding("gpu_xid", 20, moment=True, severity="info", **GPU),
        finding("job_hang", 25, **JOB),
    )
    assert sorted(i.cause for i in desk.incidents) == ["gpu_xid", "job_hang"]
    assert [i.cause for i in desk.pages] == ["job_hang"]


def test_a_new_episode_is_a_new_incident() -> None:
    first = finding("straggler", 20, **RANK)
    desk = shown(first)
    desk.clear(first, 70, ended=65)
    desk.until(120, finding("straggler", 110, **RANK))
    assert [i.state for i in desk.incidents] == ["resolved", "open"]
    assert desk.incidents[1].recurrence == 1


# Teardown, severity, waiting.


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "TIMEOUT", "PREEMPTED", "COMPLETED"])
def test_an_orderly_end_explains_what_it_leaves_behind(state: str) -> None:
    desk = shown(
        job(state=state, secs=30, end=30, nodes=["node01", "node02"]),
        finding("rank_lost", 31, moment=True, **RANK),
        finding("nccl_timeout", 32, moment=True, **JOB),
    )
    assert desk.pages == []
    assert {i.severity for i in desk.incidents} == {"info"}


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_a_bad_end_explains_nothing_away(state: str) -> None:
    desk = shown(
        job(state=state, secs=30, end=30, nodes=["node01", "node02"]),
        finding("rank_lost", 31, moment=True, **RANK),
    )
    assert [i.cause for i in desk.pages] == ["rank_lost"]


def test_what_went_wrong_long_before_the_end_is_no_teardown() -> None:
    desk = shown(
        finding("job_hang", 10, **JOB),
        job(state="CANCELLED", secs=40, end=40, nodes=["node01", "node02"]),
    )
    assert [i.cause for i in desk.pages] == ["job_hang"]


def test_hardware_is_not_muted_by_an_orderly_end() -> None:
    desk = shown(
        job(state="CANCELLED", secs=19, end=19, nodes=["node01", "node02"]),
        finding("gpu_lost", 20, moment=True, severity="critical", **GPU),
    )
    assert [i.cause for i in desk.pages] == ["gpu_lost"]


@pytest.mark.parametrize(
    ("severity", "configured", "expected"),
    [
        (None, {}, "warning"),
        ("info", {}, "info"),
        ("critical", {}, "critical"),
        (None, {"straggler": "critical"}, "critical"),
        (None, {"straggler": "info"}, "info"),
        ("info", {"straggler": "critical"}, "info"),
    ],
)
def test_severity(severity: str | None, configured: dict[str, str], expected: str) -> None:
    desk = Desk(severity=configured)  # type: ignore[arg-type]  # words of severity
    shown(finding("straggler", 20, severity=severity, **RANK), desk=desk)
    assert desk.only.severity == expected
    assert (desk.only.paged_unix_ns is None) == (expected == "info")


def test_observed_findings_make_no_incident() -> None:
    assert shown(finding("straggler", 20, mode="observe", **RANK)).incidents == []


@pytest.mark.parametrize(
    ("cause", "wait_secs"),
    [("gpu_lost", 0), ("gpu_ecc_uncorrectable", 0), ("straggler", 3), ("agent_silent", 10)],
)
def test_pages_wait_for_their_siblings(cause: str, wait_secs: int) -> None:
    place = RANK if cause == "straggler" else {}
    desk = shown(finding(cause, 20, **place))
    assert desk.only.detected_unix_ns == at(20)
    assert desk.only.paged_unix_ns == at(20 + wait_secs)


def test_labels_freeze_at_the_first_page() -> None:
    desk = shown(finding("step_time_regression", 20, **JOB), secs=30)
    frozen = desk.only.page_labels
    assert frozen["cause"] == "step_time_regression"
    assert (frozen["job_id"], frozen["job_name"], frozen["user"]) == ("77", "gpt", "alice")
    desk.until(60, finding("straggler", 35, onset=20, **RANK))
    assert desk.only.cause == "straggler"
    assert desk.only.page_labels == frozen
    assert desk.only.incident_id == frozen["incident_id"]


def test_severity_rises_and_never_falls() -> None:
    desk = shown(
        finding("gpu_xid", 20, moment=True, severity="warning", **GPU),
        finding("job_hang", 25, **JOB),
        finding("gpu_xid", 40, moment=True, severity="info", **GPU),
    )
    assert (desk.only.cause, desk.only.severity) == ("gpu_xid", "critical")


def test_a_page_that_turns_out_to_belong_to_another_ends_in_it() -> None:
    desk = shown(
        job("88", nodes=["node01"]),
        finding("job_hang", 20, **JOB),
        finding("job_hang", 20.5, job_id="88"),
        finding("gpu_lost", 30, onset=19, severity="critical", **GPU),
    )
    lost = [i for i in desk.incidents if i.merged_into is None]
    assert [i.cause for i in lost] == ["gpu_lost"]
    merged = [i for i in desk.incidents if i.merged_into is not None]
    assert [i.merged_into for i in merged] == [lost[0].incident_id]
    assert merged[0].state == "resolved"
    assert sorted(lost[0].jobs) == ["77", "88"]
    assert lost[0].findings.by_cause == {"gpu_lost": 1, "job_hang": 2}


# Ends.


def test_a_level_ends_when_it_was_last_seen() -> None:
    raised = finding("straggler", 20, **RANK)
    desk = shown(raised)
    desk.clear(raised, 70, ended=65)
    assert (desk.only.state, desk.only.ended_unix_ns) == ("resolved", at(65))


def test_several_levels_end_together() -> None:
    one = finding("straggler", 20, **RANK)
    two = finding("step_time_regression", 22, **JOB)
    desk = shown(one, two)
    desk.clear(one, 70)
    assert [i.state for i in desk.incidents] == ["open"]
    desk.clear(two, 75)
    assert [i.state for i in desk.incidents] == ["resolved"]


def test_a_moment_of_a_job_ends_with_it() -> None:
    desk = shown(
        finding("rank_lost", 20, moment=True, **RANK),
        job(state="FAILED", secs=40, end=39, nodes=["node01", "node02"]),
    )
    assert (desk.only.state, desk.only.ended_unix_ns) == ("resolved", at(39))


def test_a_moment_of_hardware_ends_fifteen_minutes_after_its_last_repeat() -> None:
    desk = shown(
        finding("gpu_xid", 20, moment=True, severity="warning", **GPU),
        finding("gpu_xid", 500, moment=True, severity="warning", **GPU),
        secs=1399,
    )
    assert desk.only.state == "open"
    desk.until(1401)
    assert (desk.only.state, desk.only.ended_unix_ns) == ("resolved", at(500))


def test_findings_about_an_ended_job_join_its_last_incident_for_five_minutes() -> None:
    end = job(state="FAILED", secs=40, end=40, nodes=["node01", "node02"])
    desk = shown(finding("rank_lost", 20, moment=True, **RANK), end, secs=41)
    desk.until(400, finding("job_failed", 300, onset=40, moment=True, **JOB))
    assert len(desk.incidents) == 1
    desk.until(900, finding("nccl_timeout", 800, moment=True, **JOB))
    assert len(desk.incidents) == 2


def test_recurrence_counts_the_same_gpu_under_any_job() -> None:
    desk = Desk()
    for i in range(3):
        name = f"8{i}"
        raised = finding("straggler", 100 * i + 20, **RANK | {"job_id": name})
        desk.until(100 * i + 50, job(name, secs=100 * i, start=100 * i), raised)
        desk.clear(raised, 100 * i + 60)
        desk.until(100 * i + 70, job(name, "COMPLETED", 100 * i + 70, start=100 * i))
    assert [i.recurrence for i in desk.incidents] == [0, 1, 2]


def test_recurrence_of_thirty_days_ago_is_forgotten() -> None:
    desk = Desk(Correlation(recurrence_days=0.01))
    shown(finding("gpu_xid", 20, moment=True, severity="warning", **GPU), secs=1000, desk=desk)
    desk.until(2000, finding("gpu_xid", 1990, moment=True, severity="warning", **GPU))
    assert [i.recurrence for i in desk.incidents] == [0, 0]


def test_state_is_forgotten_in_time() -> None:
    desk = Desk(Correlation(recurrence_days=0.01))
    for i in range(20):
        raised = finding("straggler", 30 * i + 20, job_id=f"9{i}", gpu_uuid=f"GPU-{i}")
        desk.until(30 * i + 25, raised)
        desk.clear(raised, 30 * i + 26)
    desk.until(9000)
    state = desk.correlator.state
    assert state.cases == {}
    assert state.history == {}


# Determinism.


def test_ids_follow_from_what_was_seen_first() -> None:
    ids = {shown(finding("straggler", 20, **RANK)).only.incident_id for _ in range(2)}
    assert len(ids) == 1
    assert shown(finding("straggler", 21, **RANK)).only.incident_id not in ids


def test_a_finding_said_twice_counts_once() -> None:
    twice = finding("straggler", 20, **RANK)
    again = msgspec.structs.replace(twice, observed_unix_ns=at(30))
    assert shown(twice, again).only.findings.by_cause == {"straggler": 1}


def test_a_restart_in_the_middle_changes_nothing() -> None:
    said: list[Finding | JobEvent] = [
        finding("step_time_regression", 20, **JOB),
        finding("straggler", 35, onset=20, **RANK),
        finding("gpu_throttled", 45, onset=19, **GPU),
        job(state="FAILED", secs=50, end=50, nodes=["node01", "node02"]),
        finding("job_failed", 53, onset=50, moment=True, **JOB),
    ]
    whole = shown(*said, secs=100)
    for cut in (10, 21, 40, 51, 60):
        desk = shown(*said, secs=cut)
        state = encode_state(desk.correlator.state)
        placement = encode_state(desk.correlator.placement)
        fresh = Desk()
        fresh.told, fresh.second = desk.told, desk.second
        fresh.correlator.state = decode_state(state, CorrelatorState)
        fresh.correlator.placement = decode_state(placement, Placement)
        fresh.until(100, *said)
        assert fresh.told == whole.told


def test_what_was_told_does_not_change_afterwards() -> None:
    desk = shown(finding("step_time_regression", 20, **JOB), secs=30)
    told = msgspec.json.encode(desk.only)
    first = desk.told[desk.only.incident_id][-1]
    desk.until(60, job("88"), finding("gpu_throttled", 45, onset=19, **GPU))
    assert len(desk.told[first.incident_id]) > 1
    assert msgspec.json.encode(first) == told


def test_suspects_are_ranked_with_the_root_first() -> None:
    suspects = [Suspect(Subject(node="node02", rank=5), "did not report")]
    desk = shown(finding("job_hang", 20, suspects=suspects, **RANK))
    assert [s.subject.rank for s in desk.only.suspects] == [1, 5]
    assert desk.only.suspects[0].reason == "job_hang was seen"


def test_an_incident_says_what_to_do() -> None:
    only = shown(finding("straggler", 20, **RANK)).only
    assert only.alertname == "Straggler"
    assert only.actions
    assert "GPU 1 of node01" in only.title
    assert "job 77" in only.title
    assert 0.0 < only.confidence < 1.0


# How long a cause explains.


def test_a_port_that_has_been_down_for_hours_does_not_hide_a_new_hang() -> None:
    desk = shown(
        finding("ib_port_down", 20, ib_device="mlx5_0", ib_port=1),
        finding("job_hang", 7_300, onset=7_250, **JOB),
        secs=7_400,
    )
    assert [i.cause for i in desk.pages] == ["ib_port_down", "job_hang"]


def test_what_begins_long_after_a_symptom_is_not_its_reason() -> None:
    desk = shown(
        finding("step_time_regression", 20, **JOB),
        finding("gpu_contention", 620, onset=600, **RANK),
        secs=700,
    )
    assert [i.cause for i in desk.pages] == ["step_time_regression", "gpu_contention"]


def test_a_straggler_and_then_a_stranger_are_two_faults() -> None:
    desk = shown(
        finding("straggler", 20, **RANK),
        finding("gpu_contention", 50, onset=45, **RANK | {"gpu_index": 0, "rank": 0}),
        secs=90,
    )
    assert [i.cause for i in desk.pages] == ["straggler", "gpu_contention"]
