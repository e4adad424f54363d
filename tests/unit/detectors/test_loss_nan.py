"""A loss that is no number any more."""

import math

import pytest

from stethoscope.detectors.loss_nan import LossNan, LossNanConfig

from .build import Job, at, megatron
from .shared_lines import SharedLine, shared_lines


def stepping() -> Job:
    job = Job(LossNan(LossNanConfig()))
    assert job.run(10) == []
    return job


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_bad_loss_is_told_at_once_and_stays_one_finding(loss: float) -> None:
    job = stepping()
    found = job.run(30, line=lambda i, t: megatron(i, 1000 * t, loss=loss))
    (only,) = found
    assert (only.cause, only.subject.job_id) == ("loss_nan", "77")
    assert only.started_unix_ns == at(10.1)
    assert only.observed_unix_ns == at(11)
    assert only.score == 1.0
    assert "at iteration 101" in only.evidence


@pytest.mark.parametrize(
    "line",
    [
        " iteration 9/ 99 | lm loss: NAN | grad norm: nan |",
        " iteration 9/ 99 | loss scale: 1.0 | elapsed time per iteration (ms): 5.0 |"
        " number of skipped iterations: 0 | number of nan iterations: 1 |",
        "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}",
        "step: 9  loss:  nan  grad_norm: nan  tps: 10,050",
    ],
)
def test_the_ways_to_print_it(line: str) -> None:
    assert [f.cause for f in stepping().tick([line])] == ["loss_nan"]


def test_it_clears_after_finite_lines() -> None:
    job = stepping()
    job.run(3, line=lambda i, t: megatron(i, 1000 * t, loss=math.nan))
    assert [f.cleared for f in job.run(40)] == [True]


def test_one_bad_line_is_told_and_ends() -> None:
    job = stepping()
    found = job.tick([megatron(200, loss=math.nan)]) + job.run(40)
    assert [f.cleared for f in found] == [False, True]


def test_steps_that_the_fp16_scaler_skipped_are_normal() -> None:
    job = Job(LossNan(LossNanConfig()))
    skipped = lambda i, t: megatron(  # noqa: E731
        i, 1000 * t, norm=math.nan if i % 2 else math.inf, skipped=1
    )
    found = job.run(2, line=skipped) + job.run(10)
    assert found == []


def test_a_bad_norm_that_stays_is_a_fault() -> None:
    (only,) = stepping().run(20, line=lambda i, t: megatron(i, 1000 * t, norm=math.nan))
    assert "gradient norm nan" in only.evidence


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: Rank 1: found NaN in local grad norm in backward pass before",
        "RuntimeError: Rank 1, node node01, device 1, iteration -1: Unexpected result nan (",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting",
    ],
)
def test_a_trainer_that_gives_up_says_so(line: str) -> None:
    (only,) = stepping().tick([line], rank=1)
    assert (only.cause, only.moment, only.subject.rank) == ("loss_nan", True, 1)


def test_a_deepspeed_overflow_is_the_scaler_at_work() -> None:
    line = "[INFO] [loss_scaler.py:183] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss"
    assert stepping().tick([line]) == []


@pytest.mark.parametrize("shared", shared_lines("nan"))
def test_lines_that_were_reported_in_public(shared: SharedLine) -> None:
    assert [f.cause for f in stepping().tick([shared.line])] == ["loss_nan"]
