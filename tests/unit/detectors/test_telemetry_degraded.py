"""GPU telemetry that went missing while the node goes on reporting."""

import numpy as np

from stethoscope.detectors.telemetry_degraded import TelemetryDegraded, TelemetryDegradedConfig
from stethoscope.schemas.findings import Finding

from .build import at, node_context

METRICS = 10


class Node:
    """A node of two GPUs with ten metrics, scraped once a second."""

    def __init__(self) -> None:
        self.detector = TelemetryDegraded(TelemetryDegradedConfig())
        self.context = node_context()
        self.second = 0
        self.scraped = 0

    def run(self, secs: int, present: int | None, *, heard: bool = True) -> list[Finding]:
        """``present`` metrics of each scrape; ``None``: no scrape, though other events come."""
        found: list[Finding] = []
        for _ in range(secs):
            self.second += 1
            if heard:
                self.context.heard_ns = at(self.second)
            if present is not None:
                self.scraped = self.second
                values = np.full((2, METRICS), np.nan)
                values[:, :present] = 1.0
                self.detector.scrape("node01", at(self.second), values)
            found += self.detector.update(self.context, at(self.scraped), at(self.second))
        return found


def test_half_of_the_metrics_missing_for_a_minute_is_blindness() -> None:
    node = Node()
    assert node.run(30, METRICS) == []
    (only,) = node.run(70, 4)
    assert (only.cause, only.subject.node, only.subject.gpu_index) == (
        "telemetry_degraded",
        "node01",
        None,
    )
    assert only.started_unix_ns == at(30)
    assert only.observed_unix_ns == at(91)
    assert only.score == 1.0
    assert "6 of 10 metrics" in only.evidence


def test_it_clears_when_they_are_back() -> None:
    node = Node()
    node.run(30, METRICS)
    node.run(70, 4)
    assert [f.cleared for f in node.run(40, METRICS)] == [True]


def test_a_few_fields_or_a_short_loss_are_none() -> None:
    node = Node()
    node.run(30, METRICS)
    assert node.run(300, 6) == []
    for _ in range(5):
        assert node.run(50, 0) == []
        assert node.run(50, METRICS) == []


def test_costly_fields_that_are_read_rarely_are_not_missing() -> None:
    node = Node()
    found = []
    for _ in range(5):
        found += node.run(1, METRICS)
        found += node.run(299, 4)
    assert found == []


def test_what_a_gpu_never_gave_is_not_missing() -> None:
    assert Node().run(300, 3) == []


def test_no_scrape_while_others_events_come_is_blindness_too() -> None:
    node = Node()
    node.run(30, METRICS)
    (only,) = node.run(160, None)
    assert only.started_unix_ns == at(30)
    assert "no scrape for" in only.evidence


def test_a_node_that_says_nothing_at_all_is_another_fault() -> None:
    node = Node()
    node.run(30, METRICS)
    assert node.run(300, None, heard=False) == []
