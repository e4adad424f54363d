"""What a job is like while nothing is wrong."""

import numpy as np
import pytest

from stethoscope.detectors.job_context import TENSOR

from .build import HEALTHY, Job, megatron


def test_the_pace_is_the_median_between_lines() -> None:
    job = Job()
    job.run(20, 0.25)
    assert job.context.pace_secs == pytest.approx(0.25)


def test_health_is_learned_only_while_the_job_steps_undisturbed() -> None:
    job = Job()
    for _ in range(30):
        job.tick([])
    assert job.context.healthy_secs == 0
    job.run(30)
    learned = job.context.healthy_secs
    assert learned > 10
    np.testing.assert_allclose(job.context.healthy[:, TENSOR], 0.4)
    job.context.disturbed_ns = job.now_ns
    job.run(5, gpus=HEALTHY | {"tensor_active_ratio": 0.1})
    assert job.context.healthy_secs == learned


@pytest.mark.parametrize("step_secs", [0.1, 6.0])
def test_a_pause_between_steps_is_not_health(step_secs: float) -> None:
    job = Job()
    for _ in range(4):
        job.run(60, step_secs)
        for _ in range(40):
            job.tick([], HEALTHY | {"tensor_active_ratio": 0.0})
    np.testing.assert_allclose(job.context.healthy[:, TENSOR], 0.4)


@pytest.mark.parametrize(
    ("lines", "every"), [(32, 32), (2, 6), (3, 2)], ids=["buffered", "two", "three"]
)
def test_lines_that_come_in_bursts_are_health_too(lines: int, every: int) -> None:
    job = Job()
    iteration = 0
    for second in range(300):
        burst: list[tuple[float, str]] = []
        if second % every == 0:
            for i in range(lines):
                iteration += lines == 32 or i == 0  # else several lines of one step
                burst.append((0.3 + 0.02 * i, megatron(iteration, 1000.0)))
        job.tick(burst)
    assert job.context.pace_secs == pytest.approx(every, rel=0.1)
    assert job.context.healthy_secs > 100
