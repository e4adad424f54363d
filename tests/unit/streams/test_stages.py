"""The node and job stages by themselves: views, lateness, runs of a job, snapshots."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from stethoscope.schemas.events import (
    ClockEvent,
    Event,
    GpuEvent,
    IbEvent,
    Port,
    Process,
    TopologyEvent,
)
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.views import Envelope, GpuView, HostView, LogView
from stethoscope.streams.cluster_events import ClusterEvents, ClusterEventsState
from stethoscope.streams.config import Config
from stethoscope.streams.job_stage import JobStage
from stethoscope.streams.node_stage import NodeStage
from stethoscope.streams.pipeline import make_stages
from stethoscope.streams.state_codec import decode_state, encode_state

from .made import at, gpus, healthy, host, job, line, step


def node_stage() -> NodeStage:
    return make_stages(Config()).node_stage("node/0")


def job_stage() -> JobStage:
    return make_stages(Config()).job_stage("job/0", ["node/0"])


def through(events: list[Event], stage: NodeStage | None = None) -> list[Envelope]:
    """What a node stage makes of the events, the end included."""
    stage = stage or node_stage()
    envelopes = []
    for event in events:
        stage.push_cluster([event])
        stage.push([event])
        envelopes += stage.advance()
    stage.end()
    envelopes += stage.advance()
    last = stage.flush()
    return [*envelopes, last] if last else envelopes


def findings(envelopes: list[Envelope]) -> list[Finding]:
    return [f for e in envelopes for f in e.findings]


# The node stage.


def test_one_envelope_a_second_without_a_gap() -> None:
    events = [*healthy(range(5)), *healthy(range(9, 12))]
    marks = [e.watermark_unix_ns for e in through(events)]
    assert marks[0] == at(1)
    assert all(b - a == NS for a, b in pairwise(marks))


def test_a_second_is_reduced_to_views_of_its_job() -> None:
    envelopes = through([job(), *healthy(range(3)), gpus(2.6, tensor_active_ratio=0.8)])
    third = envelopes[2]
    (gpu,) = (v for v in third.views if isinstance(v, GpuView))
    (log,) = (v for v in third.views if isinstance(v, LogView))
    (cpu,) = (v for v in third.views if isinstance(v, HostView))
    assert gpu.job == log.job == cpu.job == f"default/77.0@{at(0)}"
    assert gpu.indices == [0, 1]
    assert gpu.metrics["tensor_active_ratio"] == pytest.approx([0.6, 0.6])
    assert [s.iteration for s in log.steps] == [4, 5]
    assert cpu.metrics["cpu_busy_ratio"] == 0.1


def test_a_job_sees_its_own_gpus_only() -> None:
    placed = structs.replace(job(), gpus={"node01": [1]})
    (view,) = (v for v in through([placed, gpus(0.5)])[0].views if isinstance(v, GpuView))
    assert (view.indices, view.uuids) == ([1], ["GPU-node01-1"])


def test_a_line_of_a_job_that_nobody_placed_is_kept_under_its_name() -> None:
    (view,) = through([step(0.5, 1, job_id="99")])[0].views
    assert view.job == "default/99.0@?"


def test_values_out_of_range_and_sentinels_are_missing_and_counted() -> None:
    stage = node_stage()
    blank = gpus(0.5, sm_active_ratio=140737488355328.0, gpu_utilization_ratio=4294967295.0)
    (view,) = (v for v in through([job(), blank], stage)[0].views if isinstance(v, GpuView))
    assert view.metrics["sm_active_ratio"] == [None, None]
    assert view.metrics["gpu_utilization_ratio"] == [None, None]
    assert view.metrics["tensor_active_ratio"] == [0.4, 0.4]
    assert stage.counts.invalid_samples == 4


def test_unknown_metrics_are_refused_once_and_counted() -> None:
    stage = node_stage()
    through([gpus(s + 0.5, shoe_size=43.0) for s in range(3)], stage)
    rejects = stage.drain_rejects()
    assert [r.reason for r in rejects] == ["unknown_metric"]
    assert "shoe_size" in rejects[0].detail
    assert stage.counts.unknown_metrics == 3


def test_a_column_of_another_length_is_refused_and_the_rest_counts() -> None:
    scrape = gpus(0.5)
    wrong = structs.replace(scrape, metrics=scrape.metrics | {"power_watts": [1.0]})
    stage = node_stage()
    (view,) = (v for v in through([job(), wrong], stage)[0].views if isinstance(v, GpuView))
    assert view.metrics["power_watts"] == [None, None]
    assert view.metrics["sm_active_ratio"] == [0.6, 0.6]
    assert [r.reason for r in stage.drain_rejects()] == ["wrong_type"]


def test_an_empty_scrape_is_no_view() -> None:
    empty = GpuEvent(time_unix_ns=at(0.5), node="node01", devices=[], metrics={})
    assert through([job(), empty])[0].views == []


def test_a_lost_gpu_is_found_with_its_onset() -> None:
    events: list[Event] = [gpus(s + 0.5, count=8) for s in range(10)]
    events += [gpus(s + 0.5, count=7) for s in range(10, 20)]
    (only,) = findings(through(events))
    assert (only.cause, only.subject.gpu_index) == ("gpu_lost", 7)
    assert only.started_unix_ns == at(9.5)


def test_slow_scrapes_after_a_restart_lose_no_gpu() -> None:
    stage = node_stage()
    found: list[Finding] = []
    for second in range(0, 300, 5):
        for event in (gpus(second + 0.123456789), host(second + 4.1)):
            stage.push([event])
            found += findings(stage.advance())
        fresh = node_stage()
        fresh.restore(stage.snapshot())
        stage = fresh
    assert found == []


def test_kernel_lines_name_the_gpu_that_was_scraped() -> None:
    xid = line(1.0, "NVRM: Xid (PCI:0000:00:07): 79, GPU has fallen", source="kernel")
    (only,) = findings(through([gpus(0.5), xid, gpus(1.5)]))
    assert (only.cause, only.subject.gpu_index) == ("gpu_lost", 1)


def test_racks_of_the_topology_stand_in_subjects() -> None:
    topology = TopologyEvent(time_unix_ns=at(0), racks={"node01": "rack7"})
    xid = line(1.0, "NVRM: Xid (PCI:0000:00:07): 79, GPU has fallen", source="kernel")
    (only,) = findings(through([topology, gpus(0.5), xid, gpus(1.5)]))
    assert only.subject.rack == "rack7"


def test_a_clock_that_stood_at_1970_does_not_make_anybody_wait_for_a_billion_seconds() -> None:
    unset = structs.replace(gpus(0.5, "node09"), time_unix_ns=5 * NS)
    envelopes = through([unset, *healthy(range(3))])
    assert envelopes[0].watermark_unix_ns == 5 * NS
    assert len(envelopes) < 2 * 86_400 + 10
    assert envelopes[-1].watermark_unix_ns == at(3)
    stage = job_stage()
    for envelope in envelopes:
        stage.push(envelope)
    assert 3 <= len(stage.advance()) <= len(envelopes)


def test_numbers_beyond_64_bits_are_refused() -> None:
    stage = node_stage()
    ports = [Port(device="mlx5_0", port=1)]
    wrong = IbEvent(
        time_unix_ns=at(0.5), node="node01", ports=ports, counters={"symbol_error": [2**64]}
    )
    through([wrong, *healthy(range(3))], stage)
    (reject,) = stage.drain_rejects()
    assert (reject.reason, stage.counts.rejected) == ("wrong_type", 1)


def test_only_nodes_that_spoke_are_heard() -> None:
    topology = TopologyEvent(time_unix_ns=at(0), racks={"node01": "r1", "node02": "r2"})
    heard = [e.heard for e in through([topology, *healthy(range(12))]) if e.heard]
    assert [list(h) for h in heard] == [["default/node01"]] * 2


def test_late_samples_are_no_peers_and_late_lines_count() -> None:
    live = [event for s in range(30) for event in healthy(range(s, s + 1), "node01")]
    late: list[Event] = [
        gpus(3.1, "node02"),
        host(3.2, "node02"),
        line(3.3, "NVRM: Xid (PCI:0000:00:07): 79, x", "node02", "kernel"),
        step(3.4, 7, node="node02"),
    ]
    both = ["node01", "node02"]
    envelopes = through([job(nodes=both), *live, *late, *healthy(range(30, 45))])
    (only,) = findings(envelopes)
    assert (only.subject.node, only.started_unix_ns) == ("node02", at(3.3))
    views = [v for e in envelopes for v in e.views if v.node == "node02"]
    assert [type(v) for v in views] == [LogView]


def test_the_frontier_holds_the_stage_back() -> None:
    stage = node_stage()
    stage.set_frontier(at(3))
    stage.push(healthy(range(10)))
    assert [e.watermark_unix_ns for e in stage.advance()] == [at(1), at(2), at(3)]
    stage.set_frontier(None)
    assert stage.advance()[0].watermark_unix_ns == at(4)


def test_a_clock_passes_silence() -> None:
    stage = node_stage()
    stage.push(healthy(range(3)))
    stage.advance()
    stage.push([ClockEvent(time_unix_ns=at(20))])
    assert stage.advance()[-1].watermark_unix_ns == at(18)


def test_equal_lines_of_a_second_fold_into_a_count() -> None:
    text = "[rank0]: NCCL WARN NET/IB : Got completion with status=12 opcode=0"
    events: list[Event] = [line(0.1 + i / 1000, text) for i in range(50)]
    (view,) = (v for v in through([job(), *events])[0].views if isinstance(v, LogView))
    assert [m.count for m in view.marks] == [1, 49]


def test_a_node_stage_restarts_anywhere() -> None:
    events: list[Event] = [job(), *healthy(range(12))]
    events.insert(20, line(3.0, "NVRM: Xid (PCI:0000:00:07): 79, x", source="kernel"))
    events += [gpus(s + 0.5, gpu_temp_celsius=95.0) for s in range(12, 60)]
    whole = through(events)
    stage, restarted = node_stage(), []
    for i, event in enumerate(events):
        stage.push_cluster([event])
        stage.push([event])
        restarted += stage.advance()
        if i % 3 == 0:
            fresh = node_stage()
            fresh.restore(stage.snapshot())
            assert fresh.snapshot() == stage.snapshot()
            stage = fresh
    restarted += through([], stage)
    assert [encode_state(e) for e in restarted] == [encode_state(e) for e in whole]


# The jobs topic.


def test_job_events_come_in_order_each_once() -> None:
    late, early = job(secs=5), job("88", secs=2)
    cluster = ClusterEvents()
    cluster.push([late, early, late, structs.replace(late, received_unix_ns=at(9))])
    assert [e.time_unix_ns for e in cluster.upto(at(2))] == [at(2)]
    assert [e.time_unix_ns for e in cluster.upto(at(9))] == [at(5)]


def test_two_bodies_of_one_id_have_one_order() -> None:
    one, two = job(secs=5), job(secs=5, state="FAILED")
    taken = []
    for events in ([one, two], [two, one]):
        cluster = ClusterEvents()
        cluster.push(events)
        taken.append(cluster.upto(at(9)))
    assert taken[0] == taken[1]
    assert len(taken[0]) == 1


def test_waiting_job_events_survive_a_restart() -> None:
    cluster, fresh = ClusterEvents(), ClusterEvents()
    cluster.push([job(secs=5), TopologyEvent(time_unix_ns=at(6), racks={"n": "r"})])
    fresh.load(decode_state(encode_state(cluster.dump()), ClusterEventsState))
    assert fresh.upto(at(9)) == cluster.upto(at(9))


# The job stage.


def seen(events: list[Event], stage: JobStage | None = None) -> list[Finding]:
    """What the job stage finds, told by a node stage."""
    stage = stage or job_stage()
    stage.push_cluster(events)
    found: list[Finding] = []
    for envelope in through(events):
        stage.push(envelope)
        found += findings(stage.advance())
    return found


def quiet(secs: range, **metrics: Any) -> list[Event]:
    """Seconds in which the job prints nothing."""
    return [e for s in secs for e in (gpus(s + 0.1, **metrics), host(s + 0.2))]


IDLE = {"gpu_utilization_ratio": 0.0, "sm_active_ratio": 0.0, "tensor_active_ratio": 0.0}
STILL = (
    IDLE
    | {"nvlink_tx_bytes_per_sec": 0.0, "pcie_tx_bytes_per_sec": 0.0}
    | {"dram_active_ratio": 0.0}
)


def test_a_job_that_stops_stepping_hangs() -> None:
    found = seen([job(), *healthy(range(30)), *quiet(range(30, 100), **STILL)])
    assert [f.cause for f in found] == ["job_hang"]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED by 1000", "FAILED"])
def test_a_job_that_ended_does_not_hang(state: str) -> None:
    ended = job(state=state, secs=30, end=30)
    found = seen([job(), *healthy(range(30)), ended, *quiet(range(30, 130), **STILL)])
    assert "job_hang" not in [f.cause for f in found]


def test_the_run_before_a_requeue_does_not_hang() -> None:
    again = job(secs=35, start=35, restart=1, nodes=["node02"])
    events = [job(), *healthy(range(30)), *quiet(range(30, 35), **STILL), again]
    for second in range(35, 160):
        events += quiet(range(second, second + 1), **STILL)
        events += healthy(range(second, second + 1), "node02")
    assert seen(events) == []


def test_a_job_that_only_its_log_names_is_watched_and_let_go() -> None:
    stage = job_stage()
    nan = [step(s / 10, s, loss=float("nan"), job_id="99") for s in range(300)]
    found = seen([*nan, *quiet(range(30, 40))], stage)
    assert [(f.cause, f.subject.job_id) for f in found] == [("loss_nan", "99")]
    stage.push_cluster([])
    placed = job("99", secs=41, start=5)
    stage.push_cluster([placed])
    for second in range(41, 60):
        stage.push(Envelope(source="node/0", watermark_unix_ns=at(second)))
    assert [f.cleared for f in findings(stage.advance())] == [True]


def test_levels_end_with_the_job_though_its_last_lines_were_waited_for() -> None:
    nan = [step(20 + s / 10, 40 + s, loss=float("nan")) for s in range(100)]
    ended = job(state="FAILED", secs=30, end=30)
    found = seen([job(), *healthy(range(20)), *nan, ended, *quiet(range(30, 40))])
    assert [f.cause for f in found] == ["loss_nan", "loss_nan", "job_failed"]
    assert [f.ended_unix_ns for f in found if f.cleared] == [at(30)]


def test_lines_after_the_end_count_for_three_seconds() -> None:
    ended = job(state="FAILED", secs=20, end=20)
    lost = line(21, "api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 26) of binary: /py")
    found = seen(
        [job(), *healthy(range(20)), ended, *quiet(range(20, 22)), lost, *quiet(range(22, 30))]
    )
    assert "rank_lost" in [f.cause for f in found]


def test_jobs_are_forgotten_ten_minutes_after_their_end() -> None:
    stage = job_stage()
    ended = job(state="COMPLETED", secs=10, end=10)
    seen([job(), *healthy(range(10)), ended, *quiet(range(10, 700))], stage)
    assert stage._jobs == {}
    assert stage._closed == set()


def test_processes_on_a_node_that_died_are_nobodys_and_keep_no_job() -> None:
    stage = job_stage()
    ranks = [Process(name="python3", pid=9 + r, job_id="77", rank=r) for r in (0, 1)]
    died = [job(), *healthy(range(10)), host(9.5, processes=ranks)]
    failed = job(state="NODE_FAIL", secs=70, end=70)
    elsewhere = [gpus(s + 0.1, "node02") for s in range(10, 800)]
    found = seen([*died, *elsewhere[:60], failed, *elsewhere[60:]], stage)
    assert "gpu_contention" not in [f.cause for f in found]
    assert stage._jobs == {}


def test_a_job_stage_restarts_anywhere() -> None:
    events = [
        job(),
        *healthy(range(30)),
        *quiet(range(30, 100), **STILL),
        *healthy(range(100, 130)),
    ]
    whole = seen(events)
    assert len(whole) == 2
    stage, restarted = job_stage(), []
    stage.push_cluster(events)
    for envelope in through(events):
        stage.push(envelope)
        restarted += findings(stage.advance())
        fresh = job_stage()
        fresh.restore(stage.snapshot())
        assert fresh.snapshot() == stage.snapshot()
        stage = fresh
    assert restarted == whole


def test_slurm_tells_of_an_oom_kill_in_the_job_s_own_output() -> None:
    said = "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks"
    (only,) = findings(through([gpus(0.5), line(1.0, said, source="train"), gpus(1.5)]))
    assert (only.cause, only.subject.node) == ("host_oom", "node01")
