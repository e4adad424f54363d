"""Ports that were up and are not."""

import pytest

from stethoscope.detectors.ib_port_down import IbPortDown, IbPortDownConfig, is_active
from stethoscope.schemas.events import IbEvent, Port
from stethoscope.schemas.findings import Finding

from .build import at, node_context

UP, DOWN = "4: ACTIVE", "1: DOWN"


def play(*states: str) -> list[Finding]:
    """The states of mlx5_0, a second each; mlx5_1 is never cabled."""
    detector, node = IbPortDown(IbPortDownConfig()), node_context()
    found: list[Finding] = []
    for second, state in enumerate(states):
        ports = [
            Port(device="mlx5_0", port=1, state=state, phys_state="5: LinkUp"),
            Port(device="mlx5_1", port=1, state=DOWN),
        ]
        event = IbEvent(time_unix_ns=at(second), node="node01", ports=ports)
        found += detector.update(event, node)
    return found


def test_a_port_that_went_down_is_told_with_its_onset() -> None:
    (only,) = play(*[UP] * 10, *[DOWN] * 10)
    assert only.cause == "ib_port_down"
    assert (only.subject.node, only.subject.ib_device, only.subject.ib_port) == (
        "node01",
        "mlx5_0",
        1,
    )
    assert only.started_unix_ns == at(10)
    assert only.observed_unix_ns == at(15)
    assert only.score == 1.0
    assert "1: DOWN" in only.evidence


def test_it_clears_after_half_a_minute_of_traffic() -> None:
    found = play(UP, *[DOWN] * 10, *[UP] * 35)
    assert [f.cleared for f in found] == [False, True]
    assert found[1].ended_unix_ns == at(10)


@pytest.mark.parametrize(
    "states",
    [[DOWN] * 60, [UP] * 60, [DOWN] * 5 + [UP] * 60, ([UP] * 8 + [DOWN] * 4) * 5, [UP] + [""] * 60],
    ids=["not cabled", "up", "bring-up", "retraining", "not told"],
)
def test_quiet(states: list[str]) -> None:
    assert play(*states) == []


@pytest.mark.parametrize(
    ("state", "active"),
    [
        (UP, True),
        ("ACTIVE", True),
        ("active", True),
        ("2: INIT", False),
        (DOWN, False),
        ("", False),
        ("INACTIVE", False),
    ],
)
def test_what_sysfs_calls_active(state: str, active: bool) -> None:
    assert is_active(Port(device="mlx5_0", port=1, state=state)) is active
