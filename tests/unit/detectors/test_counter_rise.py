"""A counter that may not rise, rising."""

import math

import pytest

from stethoscope.detectors.counter_rise import CounterRise, CounterRiseConfig
from stethoscope.schemas.findings import Finding

from .build import Gpus, at

METRIC = "ecc_dbe_volatile_total"


def play(*values: float, **config: float) -> list[Finding]:
    detector = CounterRise(
        CounterRiseConfig(metric=METRIC, cause="gpu_ecc_uncorrectable", **config)  # type: ignore[arg-type]  # only numbers here
    )
    gpus = Gpus(1)
    found: list[Finding] = []
    for secs, value in enumerate(values):
        found += detector.update(gpus.batch(secs, METRIC, value))
    return found


def test_a_rise_is_a_moment_at_its_sample() -> None:
    (only,) = play(0, 0, 2, 2)
    assert only.moment
    assert (only.started_unix_ns, only.value, only.score) == (at(2), 2.0, 2.0)
    assert only.subject.gpu_index == 0


@pytest.mark.parametrize(
    "values",
    [(5, 5, 5), (5,), (math.nan, 5, math.nan, 5), (37, 0, 0), (math.nan, math.nan)],
    ids=["no rise", "history", "gaps", "a reset alone", "missing"],
)
def test_quiet(values: tuple[float, ...]) -> None:
    assert play(*values) == []


def test_after_a_reset_the_new_value_is_the_rise_not_a_wrap() -> None:
    (only,) = play(37, 0, 1)
    assert (only.value, only.started_unix_ns) == (1.0, at(2))


def test_what_a_reset_already_shows_is_the_rise() -> None:
    (only,) = play(37, 3)
    assert only.value == 3.0


def test_a_small_dip_is_jitter_and_so_is_its_way_back() -> None:
    assert play(1000, 999, 1000) == []
    (only,) = play(1000, 999, 1001)
    assert only.value == 1.0


def test_a_rise_over_a_gap_is_found() -> None:
    (only,) = play(1, math.nan, math.nan, 2)
    assert only.started_unix_ns == at(3)


def test_min_rise_is_respected() -> None:
    assert play(0, 9, 18, min_rise=10.0) == []
    assert len(play(0, 10, min_rise=10.0)) == 1
