"""Nodes whose clock is ahead."""

from stethoscope.detectors.clock_skew import ClockSkew, ClockSkewConfig
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.findings import Finding

from .build import at


def play(ahead: dict[int, float], secs: int) -> list[Finding]:
    detector, node = ClockSkew(ClockSkewConfig()), NodeContext("default", "node01")
    found: list[Finding] = []
    for second in range(secs):
        found += detector.update(node, ahead.get(second, 0.0), at(second))
    return found


def test_a_clock_that_stays_ahead_is_told_once_and_ends() -> None:
    begins, ends = play(dict.fromkeys(range(10, 40), 172_800.0), 200)
    assert (begins.cause, begins.subject.node) == ("clock_skew", "node01")
    assert begins.started_unix_ns == at(10)
    assert begins.observed_unix_ns == at(15)
    assert begins.value == 172_800.0
    assert begins.score is not None
    assert begins.score >= 1.0
    assert ends.cleared
    assert ends.ended_unix_ns == at(39)


def test_a_single_event_of_the_future_is_a_glitch() -> None:
    assert play({10: 172_800.0, 30: 172_800.0}, 100) == []
