"""Any metric beyond a limit for a while."""

import math

import pytest

from stethoscope.detectors.threshold import Threshold, ThresholdConfig
from stethoscope.schemas.findings import Finding

from .build import Gpus, at

METRIC = "gpu_temp_celsius"


def hot(**changes: object) -> ThresholdConfig:
    fields: dict[str, object] = {
        "metric": METRIC,
        "cause": "gpu_overheating",
        "limit": 88.0,
        "clear_limit": 84.0,
        "for_secs": 30.0,
        "keep_firing_secs": 60.0,
    }
    return ThresholdConfig(**(fields | changes))  # type: ignore[arg-type]  # any subset of fields


def play(detector: Threshold, samples: list[tuple[float, float]]) -> list[Finding]:
    """One GPU's (second, value) samples."""
    gpus = Gpus(1)
    found: list[Finding] = []
    for secs, value in samples:
        found += detector.update(gpus.batch(secs, METRIC, value))
    return found


def test_fires_after_the_hold_with_the_onset_of_the_first_bad_sample() -> None:
    found = play(Threshold(hot()), [(s, 80.0 if s < 10 else 92.0) for s in range(60)])
    assert len(found) == 1
    only = found[0]
    assert (only.cause, only.subject.gpu_index) == ("gpu_overheating", 0)
    assert only.started_unix_ns == at(10)
    assert only.observed_unix_ns == at(40)
    assert only.score == pytest.approx(92 / 88, rel=1e-5)
    assert "92 above 88" in only.evidence


def test_a_shorter_excursion_says_nothing() -> None:
    samples = [(float(s), 92.0 if 10 <= s < 39 else 80.0) for s in range(120)]
    assert play(Threshold(hot()), samples) == []


def test_an_hour_around_the_limit_is_one_finding_and_one_clear() -> None:
    config = hot(limit=90.0, clear_limit=88.0)
    flapping = [(10.0 * i, 89.9 if i % 2 else 90.1) for i in range(360)]
    cool = [(3600.0 + i, 80.0) for i in range(61)]
    found = play(Threshold(config), flapping + cool)
    assert [f.cleared for f in found] == [False, True]
    assert found[1].finding_id == found[0].finding_id
    assert found[1].ended_unix_ns == at(3600)
    assert found[1].observed_unix_ns == at(3660)


def test_values_between_the_limits_neither_begin_nor_end() -> None:
    detector = Threshold(hot(for_secs=0.0))
    assert play(detector, [(s, 86.0) for s in range(100)]) == []
    assert len(play(detector, [(100, 95.0)])) == 1
    assert play(detector, [(101 + s, 86.0) for s in range(200)]) == []


def test_missing_samples_change_nothing() -> None:
    samples = [(float(s), math.nan if s % 2 else 92.0) for s in range(61)]
    samples += [(61.0 + s, math.nan if s % 2 else 70.0) for s in range(70)]
    found = play(Threshold(hot()), samples)
    assert [f.cleared for f in found] == [False, True]
    assert found[1].ended_unix_ns == at(61)


def test_a_fault_from_the_first_sample_on_is_found() -> None:
    assert len(play(Threshold(hot()), [(s, 95.0) for s in range(31)])) == 1


def test_below_is_a_direction_too() -> None:
    config = hot(limit=20.0, clear_limit=25.0, direction="below", for_secs=5.0)
    found = play(Threshold(config), [(s, 30.0 if s < 5 else 10.0) for s in range(15)])
    assert [f.started_unix_ns for f in found] == [at(5)]
    assert found[0].score == 1.0


def test_each_gpu_is_judged_by_itself() -> None:
    gpus, detector = Gpus(3), Threshold(hot(for_secs=2.0))
    found = [f for s in range(6) for f in detector.update(gpus.batch(s, METRIC, 70.0, 95.0, 70.0))]
    assert [f.subject.gpu_index for f in found] == [1]


def test_a_gpu_that_appears_later_gets_a_state_of_its_own() -> None:
    gpus, detector = Gpus(40), Threshold(hot(for_secs=0.0))
    assert len(detector.update(gpus.batch(0, METRIC, 95.0))) == 1
    later = detector.update(gpus.batch(1, METRIC, *[95.0] * 40))
    assert sorted(f.subject.gpu_index or 0 for f in later) == list(range(1, 40))
