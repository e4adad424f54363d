"""Fewer GPUs than before."""

from stethoscope.detectors.gpu_lost import GpuLost, GpuLostConfig
from stethoscope.schemas.findings import Finding

from .build import at, node_context


def play(
    present: list[set[int]], period: int = 1, config: GpuLostConfig | None = None
) -> list[Finding]:
    """A node of eight GPUs; ``present[i]`` are those of scrape ``i``, every ``period`` seconds."""
    node, detector = node_context(8), GpuLost(config or GpuLostConfig())
    keys = list(node.devices)
    found: list[Finding] = []
    for i, there in enumerate(present):
        for g in there:
            node.devices[keys[g]] = at(i * period)
        for secs in range(i * period, (i + 1) * period):
            found += detector.update(node, at(i * period), at(secs))
    return found


ALL = set(range(8))


def test_seven_of_eight_is_a_loss_of_the_eighth() -> None:
    found = play([ALL] * 5 + [ALL - {3}] * 5)
    assert len(found) == 1
    only = found[0]
    assert only.subject.gpu_index == 3
    assert only.started_unix_ns == at(4)
    assert only.observed_unix_ns <= at(8)
    assert (only.value, only.threshold, only.score) == (7.0, 8.0, 1.0)


def test_one_short_scrape_is_no_loss() -> None:
    assert play([ALL] * 5 + [ALL - {3}] + [ALL] * 5) == []


def test_a_node_that_sends_nothing_has_lost_no_gpu() -> None:
    node, detector = node_context(8), GpuLost(GpuLostConfig())
    assert [f for s in range(100) for f in detector.update(node, at(0), at(s))] == []


def test_clears_when_the_gpu_is_back() -> None:
    found = play([ALL] * 2 + [ALL - {0}] * 10 + [ALL] * 15)
    assert [f.cleared for f in found] == [False, True]
    assert found[0].finding_id == found[1].finding_id


def test_two_losses_are_two_findings() -> None:
    found = play([ALL] * 2 + [ALL - {1, 2}] * 5)
    assert sorted(f.subject.gpu_index or 0 for f in found) == [1, 2]


def test_what_was_taken_out_is_forgotten() -> None:
    found = play([ALL] + [ALL - {0}] * 60, config=GpuLostConfig(forget_secs=30.0))
    assert [f.cleared for f in found] == [False, True]
