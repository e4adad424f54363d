"""Collectives that timed out, by NCCL's and PyTorch's own report."""

from collections.abc import Sequence

import pytest

from stethoscope.detectors.job_context import begin_second, take_log
from stethoscope.detectors.nccl_timeout import NcclTimeout, NcclTimeoutConfig
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.views import LogView
from stethoscope.streams.node_views import LogSecond

from .build import IDLE, SPINNING, Job, Metrics, at, train
from .shared_lines import SharedLine, shared_lines


def caught(rank: int, seq: int = 469508, ran_ms: int = 1802212) -> str:
    return (
        f"[rank{rank}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog"
        f" caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE,"
        f" NumelIn=466119168, NumelOut=466119168, Timeout(ms)=1800000) ran for {ran_ms}"
        f" milliseconds before timing out."
    )


def detected(rank: int, enqueued: int, seq: int = 808) -> str:
    return (
        f"[rank{rank}]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID"
        f" 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog"
        f" at work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work:"
        f" {seq - 1}."
    )


def job(nodes: int = 1, gpus: int = 2) -> Job:
    names = [f"node{i:02d}" for i in range(1, nodes + 1)]
    made = Job(NcclTimeout(NcclTimeoutConfig()), nodes=names, gpus=gpus)
    made.second = 2000
    return made


def everyone(
    job: Job,
    line: "dict[int, list[str]]",
    gpus: Metrics | Sequence[Metrics] = SPINNING,
    late_secs: int = 0,
) -> list[Finding]:
    """One second in which each rank's lines come, on its own node; some were printed before."""
    job.second += 1
    begin_second(job.context, job.now_ns)
    printed_ns = job.now_ns - NS // 2 - late_secs * NS
    for i, node in enumerate(job.nodes):
        logs = LogSecond()
        for rank in range(i * job.gpus, (i + 1) * job.gpus):
            for text in line.get(rank, []):
                logs.take(train(text, printed_ns, node, rank), job.context.key)
        for view in logs.views(node, job.now_ns):
            assert isinstance(view, LogView)
            take_log(job.context, view)
    found = [f for d in job.detectors for f in d.update(job.context, job.now_ns)]
    return found + [f for _ in range(3) for f in job.tick([], gpus)]


def test_256_ranks_are_one_finding_and_the_rank_that_lags_is_the_suspect() -> None:
    big = job(nodes=32, gpus=8)
    lines = {r: [caught(r), detected(r, 811)] for r in range(256)}
    lines[77] = [caught(77), detected(77, 807)]
    (only,) = everyone(big, lines)
    assert only.cause == "nccl_timeout"
    assert (only.subject.rank, only.subject.node, only.subject.gpu_index) == (77, "node10", 5)
    assert [s.subject.rank for s in only.suspects] == [77]
    assert "enqueued 807 collectives, others 811" in only.suspects[0].reason
    assert only.raw_events == 512
    assert only.score == 1.0
    assert only.moment


def test_the_onset_lies_back_by_the_time_the_collective_ran() -> None:
    (only,) = everyone(job(), {0: [caught(0, ran_ms=600060)], 1: [caught(1, ran_ms=600060)]})
    assert at(2000 - 1801) <= only.started_unix_ns <= at(2001 - 600)
    assert only.value is not None
    assert "469508" in only.evidence


def test_the_onset_is_never_before_the_job() -> None:
    young = job()
    young.second = 20
    (only,) = everyone(young, {0: [caught(0)]})
    assert only.started_unix_ns == at(0)


def test_the_one_that_did_not_report_is_the_suspect() -> None:
    lines = {r: [caught(r)] for r in range(8) if r != 5}
    (only,) = everyone(job(gpus=8), lines)
    assert (only.subject.rank, only.subject.gpu_index) == (5, 5)
    assert "did not report" in only.suspects[0].reason


def test_the_one_whose_gpu_idles_while_the_others_spin_is_the_suspect() -> None:
    waiting = job(gpus=4)
    for _ in range(3):
        waiting.tick([], [SPINNING, SPINNING, IDLE, SPINNING])
    (only,) = everyone(waiting, {0: [caught(0)]}, IDLE)
    assert (only.subject.gpu_index, only.subject.rank) == (2, 2)
    assert "idled while its peers waited" in only.suspects[0].reason


@pytest.mark.parametrize(
    ("gpus", "late_secs"),
    [
        ([SPINNING, SPINNING, dict.fromkeys(IDLE), SPINNING], 0),
        ([IDLE, IDLE, IDLE, IDLE], 0),
        ([SPINNING, SPINNING, IDLE, SPINNING], 600),
    ],
    ids=["unseen", "all idle", "long ago"],
)
def test_nobody_is_blamed_for_what_was_not_seen(gpus: list[Metrics], late_secs: int) -> None:
    waiting = job(gpus=4)
    for _ in range(30):
        waiting.tick([], gpus)
    (only,) = everyone(waiting, {0: [caught(0)]}, gpus, late_secs)
    assert (only.subject.gpu_index, only.suspects) == (None, [])


def test_where_many_are_silent_nobody_is_blamed() -> None:
    (only,) = everyone(job(gpus=8), {0: [caught(0)], 1: [caught(1)]})
    assert (only.subject.job_id, only.subject.rank) == ("77", None)
    assert only.suspects == []


def test_where_several_lag_they_are_suspects_and_the_job_is_the_subject() -> None:
    lines = {r: [detected(r, 807 if r in (2, 3) else 811)] for r in range(8)}
    (only,) = everyone(job(gpus=8), lines)
    assert only.subject.rank is None
    assert [s.subject.rank for s in only.suspects] == [2, 3]


def test_later_lines_of_the_same_fault_are_part_of_it() -> None:
    hung = job()
    assert len(everyone(hung, {0: [caught(0)]})) == 1
    assert everyone(hung, {1: [caught(1)]}) == []
    hung.second += 60
    assert everyone(hung, {0: [detected(0, 811)], 1: [detected(1, 811)]}) == []


def test_a_timeout_much_later_is_another() -> None:
    hung = job()
    everyone(hung, {0: [caught(0)]})
    hung.second += 700
    assert len(everyone(hung, {0: [caught(0, seq=470001)]})) == 1


def test_the_end_of_the_job_says_what_was_being_gathered() -> None:
    hung = job()
    hung.tick([(0.9, caught(0))], SPINNING)
    assert [f.cause for f in hung.end()] == ["nccl_timeout"]


@pytest.mark.parametrize(
    "line",
    [
        "node01:1:1 [0] NCCL INFO comm 0x55 rank 0 nranks 2 - Destroy COMPLETE",
        "torch.distributed.init_process_group(timeout=1800)",
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert everyone(job(), {0: [line]}) == []


@pytest.mark.parametrize("shared", shared_lines("nccl_timeout", "nccl_heartbeat"))
def test_lines_that_were_reported_in_public(shared: SharedLine) -> None:
    found = everyone(job(nodes=32, gpus=8), {0: [shared.line]})
    assert [f.cause for f in found] == ["nccl_timeout"]
