"""Faults of a job on four nodes, as the field reports them: one page each, or none."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import structs

from stethoscope.schemas.events import Event, HeartbeatEvent
from stethoscope.schemas.incidents import Incident

from .made import at, gpus, host, job, line, step
from .recorded import piped

NODES = ["node01", "node02", "node03", "node04"]
SPINS: dict[str, Any] = {
    "sm_active_ratio": 0.1,
    "tensor_active_ratio": 0.0,
    "nvlink_tx_bytes_per_sec": 0.0,
    "pcie_tx_bytes_per_sec": 3e6,
    "dram_active_ratio": 0.0,
}
IDLES = SPINS | {"gpu_utilization_ratio": 0.0, "gr_engine_active_ratio": 0.0}


def trained(secs: range, nodes: Iterable[str] = NODES) -> list[Event]:
    """The job steps twice a second; rank 0 on node01 prints."""
    events: list[Event] = []
    for second in secs:
        for node in nodes:
            events += [gpus(second + 0.1, node), host(second + 0.2, node)]
        events += [step(second + 0.3, 2 * second), step(second + 0.8, 2 * second + 1)]
    return events


def waited(secs: range, idle: str | None = None, nodes: Iterable[str] = NODES) -> list[Event]:
    """Nobody steps: all spin, but one node idles."""
    events: list[Event] = []
    for second in secs:
        for node in nodes:
            events.append(gpus(second + 0.1, node, **(IDLES if node == idle else SPINS)))
            events.append(host(second + 0.2, node))
    return events


def alive(secs: range, nodes: Iterable[str] = NODES) -> list[Event]:
    """The nodes stand by."""
    return [
        HeartbeatEvent(time_unix_ns=at(s + 0.4), node=node, boot_id="b", seq=s)
        for s in secs
        for node in nodes
    ]


def timed_out(secs: float, behind: int) -> list[Event]:
    """Each of the eight ranks reports the collective; one of them never came to it."""
    events: list[Event] = []
    for rank in range(8):
        node = NODES[rank // 2]
        enqueued = 807 if rank == behind else 811
        for i, text in enumerate(
            (
                f"[rank{rank}]:[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught"
                f" collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE,"
                f" Timeout(ms)=15000) ran for 15001 milliseconds before timing out.",
                f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 Rank {rank}] Exception"
                f" detected by watchdog at work: 808, last enqueued NCCL work: {enqueued}, last"
                f" completed NCCL work: 807.",
            )
        ):
            events.append(line(secs + rank / 100 + i / 20, text, node, rank=rank))
    return events


def torchrun(secs: float, code: int, local_rank: int, node: str) -> Event:
    text = f"api.py:869] failed (exitcode: {code}) local_rank: {local_rank} (pid: 26) of binary: py"
    return line(secs, text, node, rank=None)


def ended(secs: float, state: str) -> Event:
    return job(state=state, secs=secs, nodes=NODES, end=secs)


def told(*parts: Iterable[Event] | Event) -> list[Incident]:
    """What became of the events of all parts, in order of time."""
    events: list[Event] = [job(nodes=NODES)]
    for part in parts:
        events += part if isinstance(part, list) else [part]  # type: ignore[list-item]
    return piped(sorted(events, key=lambda e: e.time_unix_ns)).final()


def pages(incidents: list[Incident]) -> list[Incident]:
    return [i for i in incidents if i.paged_unix_ns is not None]


def only_page(incidents: list[Incident]) -> Incident:
    found = [i for i in pages(incidents) if i.merged_into is None]
    assert len(found) == 1, [(i.cause, i.title) for i in found]
    return found[0]


def test_a_gpu_off_the_bus_is_one_page_for_all_that_follows() -> None:
    xid = "NVRM: Xid (PCI:0000:00:07): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"
    page = only_page(
        told(
            trained(range(30)),
            line(30.05, xid, "node03", "kernel"),
            waited(range(30, 47)),
            timed_out(45.0, behind=5),
            torchrun(46.0, -6, 0, "node01"),
            torchrun(46.1, -6, 1, "node03"),
            ended(47.0, "FAILED"),
            alive(range(47, 70)),
        )
    )
    assert (page.cause, page.root.node, page.root.gpu_index) == ("gpu_lost", "node03", 1)
    assert page.paged_unix_ns == at(31)
    assert page.jobs == ["77"]
    assert set(page.findings.by_cause) == {"gpu_lost", "nccl_timeout", "job_failed"}
    assert page.raw_events == 1 + 16 + 1


def test_a_rank_that_does_not_come_is_the_suspect_of_the_timeout() -> None:
    page = only_page(
        told(
            trained(range(30)),
            waited(range(30, 47), idle="node02"),
            timed_out(45.0, behind=3),
            torchrun(46.0, -6, 0, "node01"),
            ended(47.0, "FAILED"),
            alive(range(47, 70)),
        )
    )
    assert (page.cause, page.root.rank, page.root.node) == ("nccl_timeout", 3, "node02")
    assert at(29) <= page.started_unix_ns <= at(31)


def test_a_silent_hang_is_found_within_a_minute() -> None:
    page = only_page(told(trained(range(30)), waited(range(30, 100), idle="node04")))
    assert (page.cause, page.jobs) == ("job_hang", ["77"])
    assert page.detected_unix_ns <= at(91)
    assert {s.subject.node for s in page.suspects} >= {"node04"}


def test_a_killed_rank_is_one_page() -> None:
    page = only_page(
        told(
            trained(range(30)),
            waited(range(30, 32), idle="node02"),
            torchrun(31.0, -15, 0, "node02"),
            torchrun(31.2, -9, 1, "node02"),
            ended(32.0, "FAILED"),
            alive(range(32, 60)),
        )
    )
    assert (page.cause, page.root.rank, page.root.node) == ("rank_lost", 3, "node02")


def test_host_memory_that_ran_out_is_why_a_rank_was_killed() -> None:
    oom = "Memory cgroup out of memory: Killed process 26 (python3) total-vm:1kB, anon-rss:2kB"
    page = only_page(
        told(
            trained(range(30)),
            line(30.5, oom, "node02", "kernel"),
            torchrun(31.2, -9, 1, "node02"),
            ended(32.0, "OUT_OF_MEMORY"),
            alive(range(30, 60)),
        )
    )
    assert (page.cause, page.root.node) == ("host_oom", "node02")


def test_gpu_memory_that_ran_out_is_why_the_job_failed() -> None:
    oom = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 1 has"
    page = only_page(
        told(
            trained(range(30)),
            line(30.5, oom, "node02", rank=3),
            torchrun(31.2, 1, 1, "node02"),
            line(31.3, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
            ended(32.0, "FAILED"),
            alive(range(30, 60)),
        )
    )
    assert (page.cause, page.root.rank) == ("cuda_oom", 3)


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL"])
def test_an_end_that_nothing_explains_is_one_page(state: str) -> None:
    page = only_page(told(trained(range(30)), ended(30.0, state), alive(range(30, 60))))
    assert page.cause == "job_failed"


def test_a_node_that_falls_silent_is_why_its_job_hangs() -> None:
    others = [node for node in NODES if node != "node02"]
    page = only_page(
        told(
            trained(range(30)),
            waited(range(30, 130), nodes=others),
        )
    )
    assert (page.cause, page.root.node) == ("agent_silent", "node02")
    assert page.findings.by_cause.keys() >= {"agent_silent", "job_hang"}


# What pages nobody.


def test_an_exception_of_the_program_pages_nobody() -> None:
    incidents = told(
        trained(range(30)),
        line(30.2, "Traceback (most recent call last):"),
        line(30.3, "ValueError: shapes do not match"),
        torchrun(31.0, 1, 0, "node01"),
        line(31.1, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
        ended(32.0, "FAILED"),
        alive(range(30, 60)),
    )
    assert pages(incidents) == []
    assert [i.cause for i in incidents] == ["app_error"]


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "TIMEOUT", "PREEMPTED"])
def test_an_orderly_end_pages_nobody(state: str) -> None:
    incidents = told(
        trained(range(30)),
        line(30.1, "slurmstepd: error: *** STEP 77.0 ON node01 CANCELLED AT 1 DUE TO TIME LIMIT"),
        ended(30.2, state),
        torchrun(30.5, -15, 0, "node01"),
        torchrun(31.0, -9, 1, "node02"),
        alive(range(30, 60)),
    )
    assert pages(incidents) == []


def test_user_code_xids_and_followers_page_nobody() -> None:
    burst: list[Event] = [
        line(
            20 + i / 1000,
            f"NVRM: Xid (PCI:0000:00:07): {code}, pid=26, name=python3, Ch {i}",
            "node02",
            "kernel",
        )
        for i, code in enumerate([31] + [13] * 5 + [45] * 100)
    ]
    incidents = told(trained(range(60)), burst)
    assert pages(incidents) == []
    assert sum(i.raw_events for i in incidents) == 106


def test_a_requeued_job_pages_nobody() -> None:
    again = structs.replace(job(secs=40, nodes=NODES, start=40, restart=1), time_unix_ns=at(40))
    incidents = told(
        trained(range(30)),
        job(state="PENDING", secs=31, nodes=[], restart=1),
        alive(range(30, 60)),
        again,
        trained(range(60, 200)),
    )
    assert pages(incidents) == []


def test_a_node_cut_off_for_ten_minutes_loses_no_line() -> None:
    xid = "NVRM: Xid (PCI:0000:00:07): 79, GPU has fallen off the bus"
    live = sorted([job(), *trained(range(800), ["node01"])], key=lambda e: e.time_unix_ns)
    spool: list[Event] = [
        e for s in range(20, 620) for e in (gpus(s + 0.1, "node02"), host(s + 0.2, "node02"))
    ]
    spool.insert(600, line(300.0, xid, "node02", "kernel"))
    before = [gpus(s + 0.1, "node02") for s in range(20)]
    cut = next(i for i, e in enumerate(live) if e.time_unix_ns > at(620))
    early = sorted([*live[:cut], *before], key=lambda e: e.time_unix_ns)
    after = [gpus(s + 0.1, "node02") for s in range(621, 800)]
    late = sorted([*live[cut:], *after], key=lambda e: e.time_unix_ns)
    incidents = piped([*early, *spool, *late]).final()
    lost = [i for i in incidents if i.cause == "gpu_lost"]
    assert [(i.root.node, i.started_unix_ns) for i in lost] == [("node02", at(300))]
    assert {i.cause for i in pages(incidents)} == {"gpu_lost", "agent_silent"}
