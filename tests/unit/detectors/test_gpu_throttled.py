"""GPUs that the hardware slows down."""

import math

import pytest

from stethoscope.detectors.gpu_throttled import GpuThrottled, GpuThrottledConfig
from stethoscope.schemas.findings import Finding

from .build import Gpus, at

METRIC = "throttle_reasons_bitmask"


def play(reasons: list[float]) -> list[Finding]:
    gpus, detector = Gpus(1), GpuThrottled(GpuThrottledConfig())
    return [
        f for s, bits in enumerate(reasons) for f in detector.update(gpus.batch(s, METRIC, bits))
    ]


@pytest.mark.parametrize(
    ("bits", "name"),
    [
        (0x08, "hardware slowdown"),
        (0x20, "software thermal"),
        (0x40, "hardware thermal"),
        (0x80, "power brake"),
    ],
)
def test_bad_reasons_fire_after_the_hold_with_their_onset(bits: int, name: str) -> None:
    (only,) = play([0.0] * 10 + [float(bits | 0x4)] * 60)
    assert only.cause == "gpu_throttled"
    assert only.started_unix_ns == at(10)
    assert only.observed_unix_ns == at(40)
    assert only.score is not None
    assert only.score >= 1.0
    assert name in only.evidence


@pytest.mark.parametrize("bits", [0x0, 0x1, 0x2, 0x4, 0x10, 0x100, 0x104])
def test_idle_caps_and_sync_boost_are_healthy(bits: int) -> None:
    assert play([float(bits)] * 200) == []


def test_a_single_good_scrape_starts_the_hold_anew() -> None:
    assert play(([float(0x40)] * 25 + [0.0]) * 8) == []


def test_missing_scrapes_neither_hold_nor_clear() -> None:
    found = play([float(0x40), math.nan] * 40)
    assert [f.cleared for f in found] == [False]


def test_clears_after_a_minute_of_good_scrapes_and_says_since_when() -> None:
    found = play([float(0x40)] * 40 + [0.0] * 70)
    assert [f.cleared for f in found] == [False, True]
    assert found[1].ended_unix_ns == at(39)
    assert found[1].observed_unix_ns == at(99)
