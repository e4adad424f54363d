"""A rank that ran out of GPU memory."""

import pytest

from stethoscope.detectors.cuda_oom import CudaOom, CudaOomConfig
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.line_rank import rank_of

from .build import Job, at, megatron
from .shared_lines import SharedLine, shared_lines

OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity;"
    " 8.77 GiB already allocated; 19.75 MiB free; 13.71 GiB reserved in total by PyTorch)"
)
TYPO = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total"
    " capacty of 6.00 GiB of which 0 bytes is free."
)
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total"
    " capacity of 31.47 GiB of which 12.73 GiB is free."
)


def read(*lines: str | tuple[float, str], job: Job | None = None) -> list[Finding]:
    """The lines, and five seconds in which nothing more is printed."""
    job = job or Job(CudaOom(CudaOomConfig()))
    return [*job.tick(lines, rank=None), *(f for _ in range(5) for f in job.tick())]


@pytest.mark.parametrize("line", [OLD, TYPO, NEW], ids=["1.x", "2.1", "2.5"])
def test_three_generations_of_the_message(line: str) -> None:
    (only,) = read((0.25, f"[rank1]: {line}"))
    assert (only.cause, only.subject.gpu_index, only.subject.rank) == ("cuda_oom", 1, 1)
    assert only.started_unix_ns == at(0.25)
    assert only.moment
    assert only.score == 1.0
    assert "Tried to allocate" in only.evidence


@pytest.mark.parametrize(
    ("prefix", "nodes", "rank"),
    [
        ("[default1]: ", ["node01"], 1),
        ("[default1]: ", ["node01", "node02"], None),
        ("[default1]:[rank3]: ", ["node01", "node02"], 3),
        ("3: ", ["node01", "node02"], 3),
    ],
)
def test_a_rank_within_a_node_names_a_rank_of_a_job_of_one_node(
    prefix: str, nodes: list[str], rank: int | None
) -> None:
    line = prefix + NEW.replace("GPU 0", "the device")
    said = rank_of(line)
    job = Job(CudaOom(CudaOomConfig()), nodes=nodes)
    found = [*job.tick([line], rank=said), *(f for _ in range(5) for f in job.tick())]
    assert [f.subject.rank for f in found] == [rank]


def test_all_ranks_of_a_job_are_one_finding() -> None:
    job = Job(CudaOom(CudaOomConfig()))
    (only,) = read(*(f"[rank{r}]: {NEW}" for r in (0, 1)), job=job)
    assert only.raw_events == 2
    assert read(f"[rank1]: {NEW}", job=job) == []


def test_a_program_that_catches_it_and_steps_on_is_recorded_only() -> None:
    job = Job(CudaOom(CudaOomConfig()))
    job.run(10)
    job.tick([(0.1, NEW), (0.5, megatron(101)), (0.7, megatron(102))])
    job.run(5)
    (only,) = job.findings
    assert (only.severity, only.score) == ("info", None)
    assert "the steps go on" in only.evidence


def test_one_that_was_caught_says_nothing_of_the_next() -> None:
    job = Job(CudaOom(CudaOomConfig()))
    job.run(10)
    job.tick([(0.1, NEW), (0.5, megatron(101))])
    job.run(5)
    (only,) = read(NEW, job=job)
    assert only.severity is None


def test_the_end_of_the_job_does_not_wait() -> None:
    job = Job(CudaOom(CudaOomConfig()))
    assert job.tick([NEW]) == []
    assert [f.cause for f in job.end()] == ["cuda_oom"]


def test_without_a_rank_the_named_gpu_is_the_one() -> None:
    (only,) = read(NEW.replace("GPU 0", "GPU 1"))
    assert only.subject.gpu_index == 1


def test_a_gpu_of_nobody_leaves_the_job() -> None:
    (only,) = read(NEW.replace("GPU 0", "GPU 9"))
    assert (only.subject.job_id, only.subject.gpu_index) == ("77", None)


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0.",
        "params 737M, 1.2 GiB of memory allocated",
        "[INFO] memory stats: out 3 of 4",
    ],
)
def test_other_lines_about_memory_are_none(line: str) -> None:
    assert read(line) == []


@pytest.mark.parametrize("shared", shared_lines("oom"))
def test_lines_that_were_reported_in_public(shared: SharedLine) -> None:
    assert [f.cause for f in read(shared.line)] == ["cuda_oom"]
