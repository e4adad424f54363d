"""Gradient norms that grow and stay grown."""

import math
from collections.abc import Callable

from stethoscope.detectors.grad_explosion import GradExplosion, GradExplosionConfig

from .build import Job, at, megatron


def run(
    job: Job, secs: int, norm: Callable[[int], float], skipped: Callable[[int], int] = lambda i: 0
) -> list[str]:
    found = job.run(secs, line=lambda i, t: megatron(i, 1000 * t, norm=norm(i), skipped=skipped(i)))
    return ["clear" if f.cleared else f.cause for f in found]


def settled() -> Job:
    job = Job(GradExplosion(GradExplosionConfig()))
    assert run(job, 20, lambda i: 1.0 + 0.1 * (i % 7)) == []
    return job


def test_norms_that_stay_a_hundred_times_too_large_are_an_explosion() -> None:
    job = settled()
    assert run(job, 10, lambda i: 150.0 + i % 5) == ["grad_explosion"]
    only = job.findings[0]
    assert (only.subject.job_id, only.unit) == ("77", "gradient norm")
    assert only.started_unix_ns == at(20.1)
    assert only.score is not None
    assert only.score >= 1.0


def test_single_steps_of_a_thousand_are_clipped_and_gone() -> None:
    assert run(settled(), 60, lambda i: 1000.0 if i % 11 == 0 else 1.3) == []


def test_the_growth_of_a_beginning_run_is_none() -> None:
    job = Job(GradExplosion(GradExplosionConfig()))
    assert run(job, 60, lambda i: 0.3 + min(2.7, 0.01 * i)) == []


def test_skipped_steps_do_not_count() -> None:
    job = settled()
    assert run(job, 10, lambda i: 1e6, skipped=lambda i: 1) == []


def test_norms_that_are_no_numbers_do_not_count() -> None:
    assert run(settled(), 20, lambda i: math.inf) == []
