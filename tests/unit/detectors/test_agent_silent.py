"""Nodes that stopped reporting."""

from stethoscope.detectors.agent_silent import AgentSilent, AgentSilentConfig
from stethoscope.schemas.findings import Finding

from .build import at


def play(
    last: dict[str, range], secs: int, config: AgentSilentConfig | None = None
) -> list[Finding]:
    """Nodes that report once in each second of their range."""
    detector = AgentSilent(config or AgentSilentConfig())
    seen: dict[str, int] = {}
    found: list[Finding] = []
    for second in range(secs):
        for node, lives in last.items():
            if second in lives:
                seen[f"default/{node}"] = at(second)
        found += detector.update(seen, at(second))
    return found


def test_a_silent_node_is_told_after_a_minute_since_its_last_word() -> None:
    (only,) = play({"node01": range(10), "node02": range(200)}, 200)
    assert only.subject.node == "node01"
    assert only.started_unix_ns == at(9)
    assert only.observed_unix_ns == at(69)
    assert only.score is not None
    assert only.score >= 1.0


def test_slow_heartbeats_are_no_silence() -> None:
    seen: dict[str, int] = {}
    detector = AgentSilent(AgentSilentConfig())
    found = []
    for second in range(600):
        if second % 55 == 0:
            seen["default/node01"] = at(second)
        found += detector.update(seen, at(second))
    assert found == []


def test_clears_when_the_node_speaks_again() -> None:
    detector = AgentSilent(AgentSilentConfig())
    found = detector.update({"default/n": at(0), "default/other": at(60)}, at(60))
    for second in range(61, 70):
        found += detector.update({"default/n": at(61), "default/other": at(second)}, at(second))
    assert [f.cleared for f in found] == [False, True]


def test_a_node_that_was_taken_away_is_forgotten() -> None:
    config = AgentSilentConfig(forget_secs=100.0)
    found = play({"node01": range(1), "node02": range(200)}, 200, config)
    assert [f.cleared for f in found] == [False, True]


def test_a_time_in_which_nobody_was_heard_says_nothing_of_one_node() -> None:
    lives = range(10), range(200, 400)
    detector = AgentSilent(AgentSilentConfig())
    seen: dict[str, int] = {}
    found = []
    for second in range(400):
        if second in lives[0] or second in lives[1]:
            seen["default/node01"] = at(second)
        if second in lives[0]:
            seen["default/node02"] = at(second)
        found += detector.update(seen, at(second))
    assert found == []
