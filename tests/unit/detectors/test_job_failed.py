"""Jobs that ended badly, and user code that raised."""

import pytest

from stethoscope.detectors.job_failed import JobFailed, JobFailedConfig

from .build import Job, at


def job() -> Job:
    made = Job(JobFailed(JobFailedConfig()))
    assert made.run(20) == []
    return made


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"])
def test_a_bad_end_is_told(state: str) -> None:
    (only,) = job().end(state)
    assert (only.cause, only.subject.job_id, only.score) == ("job_failed", "77", 1.0)
    assert only.started_unix_ns == at(20)
    assert only.moment
    assert state in only.evidence


@pytest.mark.parametrize(
    "state", ["COMPLETED", "CANCELLED", "CANCELLED by 1000", "TIMEOUT", "PREEMPTED", "DEADLINE"]
)
def test_an_orderly_end_is_none(state: str) -> None:
    ended = job()
    ended.tick(["ValueError: x"])
    assert ended.end(state) == []


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: shapes (3,4) and (5,) do not match",
        "[rank1]: KeyError: 'tokens'",
        "my_trainer.errors.ConfigError: no such data set",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ],
)
def test_the_programs_own_exception_makes_it_an_app_error(line: str) -> None:
    ended = job()
    ended.tick(["Traceback (most recent call last):", line])
    (only,) = ended.end()
    assert (only.cause, only.score) == ("app_error", None)
    assert only.started_unix_ns == at(20.5)
    assert line in only.evidence


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15",
        "KeyboardInterrupt",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB.",
    ],
)
def test_what_the_launcher_raises_about_others_is_not_the_users(line: str) -> None:
    ended = job()
    ended.tick([line])
    assert [f.cause for f in ended.end()] == ["job_failed"]


def test_an_exception_that_the_job_survived_long_ago_is_not_why() -> None:
    ended = job()
    ended.tick(["ValueError: retried"])
    ended.run(700, 5.0)
    assert [f.cause for f in ended.end()] == ["job_failed"]
