"""Ranks that died."""

import pytest

from stethoscope.detectors.rank_lost import RankLost, RankLostConfig
from stethoscope.schemas.findings import Finding

from .build import Job, at


def torchrun(code: int, local_rank: int = 1) -> str:
    return (
        "E0325 20:57:27.620000 2606 site-packages/torch/distributed/elastic/multiprocessing/api.py"
        f":869] failed (exitcode: {code}) local_rank: {local_rank} (pid: 2630) of binary: /bin/py"
    )


def read(*lines: str, nodes: int = 1, line_node: str | None = None) -> list[Finding]:
    names = [f"node{i:02d}" for i in range(1, nodes + 1)]
    job = Job(RankLost(RankLostConfig()), nodes=names)
    return job.tick(list(lines), line_node=line_node, rank=None)


@pytest.mark.parametrize(
    ("code", "signal"),
    [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-7, "SIGBUS"), (-4, "signal 4")],
)
def test_a_worker_killed_by_a_signal_is_a_lost_rank(code: int, signal: str) -> None:
    (only,) = read(torchrun(code))
    assert (only.cause, only.subject.rank, only.subject.gpu_index) == ("rank_lost", 1, 1)
    assert (only.value, only.score, only.moment) == (float(code), 1.0, True)
    assert only.started_unix_ns == at(0.5)
    assert only.evidence.startswith(signal)


@pytest.mark.parametrize("code", [1, 2, 137, -6, -15])
def test_followers_and_exits_with_a_code_of_their_own_are_none(code: int) -> None:
    assert read(torchrun(code)) == []


def test_the_first_that_was_not_told_to_end_is_the_one() -> None:
    (only,) = read(torchrun(-15, 0), torchrun(-9, 1))
    assert only.subject.rank == 1


def test_a_local_rank_counts_on_the_node_that_printed_it() -> None:
    (only,) = read(torchrun(-9, 1), nodes=4, line_node="node03")
    assert (only.subject.rank, only.subject.node, only.subject.gpu_index) == (5, "node03", 1)


@pytest.mark.parametrize(
    ("word", "code"),
    [("Bus error", -7), ("Segmentation fault", -11), ("Killed", -9)],
)
def test_what_srun_says_of_a_task(word: str, code: int) -> None:
    (only,) = read(f"srun: error: node02: task 1: {word}")
    assert (only.subject.rank, only.value) == (1, float(code))


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: node02: task 1: Exited with exit code 1",
        "srun: error: node02: task 1: Aborted",
        "  exitcode  : -9 (pid: 14750)",
        "Root Cause (first observed failure):",
        "worker 3 failed the health check",
    ],
)
def test_other_ends_are_none(line: str) -> None:
    assert read(line) == []


def test_one_finding_a_loss_and_another_for_the_next() -> None:
    job = Job(RankLost(RankLostConfig(repeat_secs=60.0)))
    assert len(job.tick([torchrun(-9)], rank=None)) == 1
    assert job.tick([torchrun(-9, 0)], rank=None) == []
    job.run(100, 0.25)  # the launcher started the workers again
    assert len(job.tick([torchrun(-9, 0)], rank=None)) == 1


@pytest.mark.parametrize(
    "before",
    [
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB.",
        "[rank0]:[E1 x.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(",
    ],
)
def test_where_the_line_before_says_more_this_says_nothing(before: str) -> None:
    job = Job(RankLost(RankLostConfig()))
    job.tick([before], rank=None)
    assert job.tick([torchrun(-9)], rank=None) == []
