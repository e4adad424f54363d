"""The latch that turns conditions into findings."""

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding, Subject

from .build import at


class HeldConfig(DetectorConfig, frozen=True, tag="held", kw_only=True):
    """Held for three seconds, cleared after five."""

    for_secs: float = 3.0
    keep_firing_secs: float = 5.0


def level(onset: float, node: str = "n1", **fields: object) -> Condition:
    return Condition(
        cause="straggler",
        subject=Subject(node=node),
        onset_unix_ns=at(onset),
        score=1.23456789,
        **fields,  # type: ignore[arg-type]  # fields of a condition
    )


def play(holds: list[bool], config: HeldConfig | None = None) -> list[Finding]:
    """One level, true in the seconds that ``holds`` says; its onset is the second itself."""
    latch, state = Latch(config or HeldConfig()), LatchState()
    return [
        finding
        for second, holding in enumerate(holds)
        for finding in latch.update(state, [level(second)] if holding else [], at(second))
    ]


def test_a_level_is_said_once_it_held_and_dated_by_its_first_second() -> None:
    (only,) = play([False] * 2 + [True] * 20)
    assert (only.started_unix_ns, only.observed_unix_ns) == (at(2), at(5))
    assert only.detector == "held"
    assert only.score == 1.23457


def test_a_break_starts_the_hold_anew() -> None:
    assert play(([True] * 3 + [False]) * 10) == []


def test_a_break_shorter_than_keep_firing_does_not_clear() -> None:
    found = play([True] * 5 + [False] * 4 + [True] * 5 + [False] * 10)
    assert [f.cleared for f in found] == [False, True]
    assert (found[1].ended_unix_ns, found[1].observed_unix_ns) == (at(13), at(18))


def test_a_clear_carries_the_id_and_none_of_the_proof() -> None:
    raised, cleared = play([True] * 5 + [False] * 10)
    assert cleared.finding_id == raised.finding_id
    assert (cleared.raw_events, cleared.suspects, cleared.evidence) == (0, [], "")


def test_levels_of_several_subjects_are_held_apart() -> None:
    latch, state = Latch(HeldConfig(for_secs=0.0)), LatchState()
    found = latch.update(state, [level(1, "n1"), level(1, "n2")], at(1))
    assert [f.subject.node for f in found] == ["n1", "n2"]
    assert latch.update(state, [level(2, "n1"), level(2, "n2")], at(2)) == []


def test_moments_pass_through_each_time() -> None:
    latch, state = Latch(HeldConfig()), LatchState()
    for second in range(3):
        (only,) = latch.update(state, [level(second, moment=True)], at(second))
        assert only.moment
    assert state.held == {}


def test_closing_ends_what_was_said_and_forgets_the_rest() -> None:
    latch, state = Latch(HeldConfig()), LatchState()
    for second in range(5):
        latch.update(state, [level(second, "n1")], at(second))
    latch.update(state, [level(5, "n1"), level(5, "n2")], at(5))
    closed = latch.close(state, at(6))
    assert [(f.subject.node, f.cleared) for f in closed] == [("n1", True)]
    assert state.held == {}


def test_configuration_is_in_the_finding() -> None:
    config = HeldConfig(name="mine", mode="observe", severity="critical", for_secs=0.0)
    (only,) = Latch(config).update(LatchState(), [level(1, severity="info")], at(1))
    assert (only.detector, only.mode, only.severity) == ("mine", "observe", "critical")
