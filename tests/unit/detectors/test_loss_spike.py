"""A loss that jumps and stays there."""

import random
from collections.abc import Callable

from stethoscope.detectors.loss_spike import LossSpike, LossSpikeConfig

from .build import Job, at, megatron

Loss = Callable[[int], float]
RNG = random.Random(5)  # noqa: S311 - test data
NOISE = [RNG.gauss(0.0, 0.05) for _ in range(10_000)]


def run(job: Job, secs: int, loss: Loss) -> list[str]:
    found = job.run(secs, line=lambda i, t: megatron(i, 1000 * t, loss=loss(i)))
    return ["clear" if f.cleared else f.cause for f in found]


def noisy(level: float) -> Loss:
    return lambda i: level + NOISE[i % len(NOISE)]


def settled() -> Job:
    job = Job(LossSpike(LossSpikeConfig()))
    assert run(job, 20, noisy(2.0)) == []
    return job


def test_a_loss_that_jumps_and_stays_is_a_spike() -> None:
    job = settled()
    assert run(job, 20, noisy(9.0)) == ["loss_spike"]
    only = job.findings[0]
    assert only.subject.job_id == "77"
    assert at(20.1) <= only.started_unix_ns <= at(20.6)
    assert only.observed_unix_ns <= at(22)
    assert only.score is not None
    assert only.score >= 1.0
    assert only.value is not None
    assert only.threshold is not None
    assert only.value > only.threshold > 2.0


def test_it_clears_when_the_loss_is_back() -> None:
    job = settled()
    run(job, 10, noisy(9.0))
    assert run(job, 40, noisy(2.0)) == ["clear"]


def test_a_spike_does_not_become_normal() -> None:
    job = settled()
    run(job, 60, noisy(9.0))
    assert len(job.findings) == 1


def test_single_jumps_come_back() -> None:
    job = settled()
    assert run(job, 60, lambda i: 9.0 if i % 13 == 0 else 2.0 + NOISE[i]) == []


def test_a_falling_loss_is_what_is_wanted() -> None:
    job = Job(LossSpike(LossSpikeConfig()))
    assert run(job, 120, lambda i: 11.0 / (1.0 + 0.01 * i) + NOISE[i % 10_000]) == []


def test_the_noise_of_a_small_batch_is_none() -> None:
    job = Job(LossSpike(LossSpikeConfig()))
    assert run(job, 120, lambda i: 2.0 + 12.0 * NOISE[i % 10_000]) == []


def test_the_beginning_is_not_judged() -> None:
    job = Job(LossSpike(LossSpikeConfig()))
    assert run(job, 10, lambda i: 2.0 if i < 10 else 11.0) == []


def test_a_resume_is_not_judged_by_the_run_before() -> None:
    job = settled()
    job.iteration = 0
    assert run(job, 2, noisy(3.5)) == []


def test_a_constant_zero_has_no_scale_to_judge_by() -> None:
    job = Job(LossSpike(LossSpikeConfig()))
    assert run(job, 10, lambda i: 0.0) == []
    assert run(job, 10, lambda i: 1e-4) == []


def test_values_that_are_no_numbers_do_not_enter() -> None:
    job = settled()
    assert run(job, 10, lambda i: float("nan")) == []
    assert run(job, 10, noisy(9.0)) == ["loss_spike"]


def test_the_end_of_the_job_ends_it() -> None:
    job = settled()
    run(job, 10, noisy(9.0))
    assert [f.cleared for f in job.end()] == [True]
