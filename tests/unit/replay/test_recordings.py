"""The packaged recordings: every fault found, nothing else paged, and the same output each time."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from stethoscope.replay import replay
from stethoscope.replay.files import read_events
from stethoscope.replay.labels import read_labels
from stethoscope.replay.run import DeadLetters, incident_line, run
from stethoscope.replay.score import Score, score
from stethoscope.schemas.events import Event
from stethoscope.schemas.findings import NS
from stethoscope.schemas.incidents import Incident, is_page
from stethoscope.streams.config import Config
from stethoscope.streams.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
FAULTY = ROOT / "replay/recordings/h200x2_a.jsonl.gz"
HEALTHY = ROOT / "tests/data/recordings/h200x2_e.jsonl.gz"
# Seconds of event time from onset to detection, by label: at once, by comparison, by waiting.
AT_ONCE, COMPARED, WAITED = 5.0, 15.0, 60.0
DEADLINES = {
    "f01-data_stall_periodic": COMPARED,
    "f02-straggler": COMPARED,
    "f03-gpu_contention": COMPARED,
    "f04-cpu_hog": COMPARED,
    "f06-lr_spike": COMPARED,
    "f08-loss_nan": AT_ONCE,
    "f09-hang": WAITED,
    "f10-exit": AT_ONCE,
    "f11-nccl_socket_fallback": AT_ONCE,
}


def replayed(events: Iterable[Event]) -> list[Incident]:
    return run(events, Pipeline(Config()), DeadLetters()).incidents


def lines(incidents: list[Incident]) -> list[bytes]:
    return [incident_line(one) for one in incidents]


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(read_events([FAULTY], lambda error, where: pytest.fail(f"{where}: {error}")))


@pytest.fixture(scope="module")
def incidents(events: list[Event]) -> list[Incident]:
    return replayed(events)


@pytest.fixture(scope="module")
def verdict(incidents: list[Incident]) -> Score:
    return score(incidents, read_labels(FAULTY.with_name("h200x2_a.labels.jsonl")))


def test_every_fault_is_found_and_nothing_else_pages(verdict: Score) -> None:
    assert verdict.missed == []
    assert verdict.false_pages == []
    assert verdict.extra_pages == []


def test_the_root_is_right_each_time(verdict: Score) -> None:
    assert [one.label_id for one in verdict.found if not one.root_right] == []


@pytest.mark.parametrize("label_id", DEADLINES)
def test_faults_are_detected_in_time(verdict: Score, label_id: str) -> None:
    delays = {one.label_id: one.delay_secs for one in verdict.found}
    assert delays[label_id] <= DEADLINES[label_id]


def test_healthy_jobs_that_do_not_look_smooth_page_nobody() -> None:
    assert [one.cause for one in replay([HEALTHY]) if is_page(one)] == []


def test_the_same_file_twice_gives_the_same_bytes(incidents: list[Incident]) -> None:
    assert lines(replay([FAULTY])) == lines(incidents)


def test_events_shuffled_within_a_second_give_the_same_bytes(
    events: list[Event], incidents: list[Incident]
) -> None:
    rng = random.Random(11)  # noqa: S311 - test data
    moved = {id(event): event.time_unix_ns + rng.randrange(NS) for event in events}
    shuffled = sorted(events, key=lambda event: moved[id(event)])
    assert shuffled != events
    assert lines(replayed(shuffled)) == lines(incidents)
