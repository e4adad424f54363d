"""Processes on a job's GPUs that are not the job's."""

from stethoscope.detectors.gpu_contention import GpuContention, GpuContentionConfig
from stethoscope.schemas.findings import NS

from .build import HEALTHY, Job, at

SHARED = HEALTHY | {"processes_count": 2.0}


def warm() -> Job:
    job = Job(GpuContention(GpuContentionConfig()))
    assert job.run(20) == []
    return job


def test_a_stranger_is_recorded_with_its_gpu_and_onset() -> None:
    job = warm()
    (only,) = job.run(10, gpus=[HEALTHY, SHARED])
    assert (only.cause, only.subject.gpu_index, only.severity) == ("gpu_contention", 1, "info")
    assert at(21) <= only.started_unix_ns <= at(22)
    assert only.observed_unix_ns - only.started_unix_ns == 5 * NS
    assert (only.value, only.threshold) == (2.0, 1.0)
    assert only.score is None


def test_a_glance_of_two_seconds_is_none() -> None:
    job = warm()
    assert job.run(2, gpus=[HEALTHY, SHARED]) == []
    assert job.run(20) == []


def test_rare_scrapes_see_it_too_and_it_stays() -> None:
    job = warm()
    for second in range(60):
        job.tick([], [HEALTHY, SHARED] if second % 15 == 0 else None)
    assert [f.cleared for f in job.findings] == [False]


def test_it_clears_when_the_stranger_leaves() -> None:
    job = warm()
    job.run(10, gpus=[HEALTHY, SHARED])
    assert [f.cleared for f in job.run(10)] == [True]


def test_what_was_there_in_health_belongs_there() -> None:
    job = Job(GpuContention(GpuContentionConfig()))
    assert job.run(60, gpus=SHARED) == []


def test_a_job_that_has_not_stepped_is_not_judged() -> None:
    job = Job(GpuContention(GpuContentionConfig()))
    for _ in range(60):
        assert job.tick([], SHARED) == []


def test_unknown_counts_say_nothing() -> None:
    job = warm()
    assert job.run(20, gpus=HEALTHY | {"processes_count": None}) == []


def test_the_end_of_the_job_ends_it() -> None:
    job = warm()
    job.run(10, gpus=[HEALTHY, SHARED])
    assert [f.cleared for f in job.end()] == [True]
