"""The whole pipeline on the packaged recordings: right, and the same each time."""

import random
from collections.abc import Sequence

import pytest
from msgspec import structs

from stethoscope.detectors.step_time import StepTime
from stethoscope.detectors.xid import Xid
from stethoscope.schemas.events import Event, GpuEvent, HeartbeatEvent, JobEvent, TopologyEvent
from stethoscope.schemas.findings import NS
from stethoscope.schemas.incidents import is_page
from stethoscope.streams.config import Config
from stethoscope.streams.pipeline import Pipeline

from .recorded import (
    FAULTY,
    HEALTHY,
    Stages,
    both,
    both_piped,
    events_of,
    in_batches,
    judged,
    piped,
    piped_once,
    sliced,
    sliced_piped,
)

NODES = ["node01", "node21"]


def shuffled(events: Sequence[Event], seed: int) -> list[Event]:
    """Each event up to a second later than its neighbours."""
    rng = random.Random(seed)  # noqa: S311 - test data
    moved = {id(event): event.time_unix_ns + rng.randrange(NS) for event in events}
    return sorted(events, key=lambda event: moved[id(event)])


# Right.


def test_every_fault_is_found_at_its_root_and_nothing_else_pages() -> None:
    verdict = judged(piped_once(FAULTY), FAULTY)
    assert (verdict.missed, verdict.false_pages) == ([], [])
    assert [one.label_id for one in verdict.found if not one.root_right] == []


def test_healthy_jobs_page_nobody() -> None:
    assert [i.cause for i in piped_once(HEALTHY).final() if is_page(i)] == []


def test_every_finding_is_well_formed() -> None:
    for finding in (*piped_once(FAULTY).findings, *piped_once(HEALTHY).findings):
        assert finding.started_unix_ns <= finding.observed_unix_ns
        assert finding.score is None or finding.score >= 1.0


def test_what_a_person_was_told_stays() -> None:
    pages: dict[str, dict[str, str]] = {}
    for incident in piped_once(FAULTY).incidents:
        if incident.paged_unix_ns is not None:
            assert incident.paged_unix_ns >= incident.detected_unix_ns
            labels = pages.setdefault(incident.incident_id, incident.page_labels)
            assert incident.page_labels == labels
    assert len(pages) >= 10


# The same each time.


@pytest.mark.parametrize("seed", range(4))
def test_any_order_within_a_second_gives_the_same_bytes(seed: int) -> None:
    expected = sliced_piped().lines()
    assert len(expected) > 10
    assert piped(shuffled(sliced(), seed)).lines() == expected


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_the_size_of_batches_does_not_matter(size: int) -> None:
    pipeline = Pipeline(Config())
    told = []
    for batch in in_batches(sliced(), size):
        told += pipeline.feed(batch).findings
    told += pipeline.finish().findings
    assert told == sliced_piped().findings


@pytest.mark.parametrize("every", [97, 1000])
def test_restarts_of_all_stages_give_the_same_bytes(every: int) -> None:
    stages = Stages([NODES])
    for batch in in_batches(sliced(), every):
        stages.feed(batch)
        stages.restart()
    assert stages.end().lines() == sliced_piped().lines()


def test_node_stages_that_split_the_nodes_give_the_same_bytes() -> None:
    stages = Stages([["node01"], ["node21"]])
    for i, batch in enumerate(in_batches(both(), 500)):
        stages.feed(batch)
        if i % 9 == 0:
            stages.restart()
    told = stages.end()
    assert told.lines() == both_piped().lines()
    assert judged(told, FAULTY).missed == []


def piped_both() -> list[bytes]:
    global _BOTH
    if not _BOTH:
        _BOTH = piped(both()).lines()
    return _BOTH


_BOTH: list[bytes] = []


# What goes wrong on the way.


def test_duplicates_change_nothing_and_are_counted() -> None:
    events = [e for event in sliced() for e in (event, event)]
    pipeline = Pipeline(Config())
    told = pipeline.feed(events).incidents + pipeline.finish().incidents
    assert told == sliced_piped().incidents
    of_nodes = [e for e in sliced() if not isinstance(e, JobEvent | TopologyEvent)]
    assert pipeline.counts.duplicates == len(of_nodes)


def test_a_clock_two_days_ahead_changes_nothing_and_holds_nothing_up() -> None:
    events = list(sliced())
    ahead = HeartbeatEvent(
        time_unix_ns=events[600].time_unix_ns + 172_800 * NS, node="node01", boot_id="x", seq=1
    )
    events.insert(600, ahead)
    pipeline = Pipeline(Config())
    expected = Pipeline(Config()).feed(sliced())
    assert pipeline.feed(events).findings == expected.findings != []
    assert pipeline.counts.clamped == 1


def test_a_raising_detector_is_isolated_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError

    expected = [f for f in sliced_piped().findings if f.detector != "step_time"]
    monkeypatch.setattr(StepTime, "update", fail)
    monkeypatch.setattr(Xid, "update", fail)
    pipeline = Pipeline(Config())
    told = pipeline.feed(sliced()).findings + pipeline.finish().findings
    assert set(pipeline.failures()) == {"step_time"}
    assert pipeline.failures()["step_time"] > 100
    assert {f.cause for f in told} >= {f.cause for f in expected} - {"gpu_contention"}
    assert all(r.message == "detector failed" for r in caplog.records)


def test_what_cannot_be_used_is_told_with_its_reason() -> None:
    events = list(sliced())
    at = next(i for i, e in enumerate(events) if isinstance(e, GpuEvent))
    scrape = events[at]
    assert isinstance(scrape, GpuEvent)
    events[at] = structs.replace(scrape, metrics=scrape.metrics | {"shoe_size": [43.0, 44.0]})
    events.insert(at + 1, structs.replace(scrape, time_unix_ns=scrape.time_unix_ns + 1))
    pipeline = Pipeline(Config())
    pipeline.feed(events)
    pipeline.finish()
    assert [reason for reason, _ in pipeline.rejects] == ["id_conflict", "unknown_metric"]
    assert pipeline.failures() == {}


def test_the_end_of_the_input_ends_nothing() -> None:
    during = [e for e in sliced() if e.time_unix_ns < 1_795_968_250 * NS]
    told = piped(during).final()
    assert [(i.cause, i.state) for i in told if i.cause == "straggler"] == [("straggler", "open")]


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_a_mode_that_is_not_page_pages_nobody(mode: str) -> None:
    detectors = [structs.replace(d, mode=mode) for d in Config().detectors]
    told = piped(sliced(), structs.replace(Config(), detectors=detectors))
    assert told.incidents == []
    assert bool(told.findings) == (mode == "observe")


def test_an_empty_input_is_nothing() -> None:
    assert piped([]).lines() == []


def test_recordings_are_whole() -> None:
    assert len(events_of(FAULTY)) > 7000
    assert len(events_of(HEALTHY)) > 4000
