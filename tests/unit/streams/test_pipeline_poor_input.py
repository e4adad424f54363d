"""Recordings with less, or other, than what a good agent gives: no false page, ever.

What the log shows by itself must still be found.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec import structs

from stethoscope.schemas.events import Event, GpuEvent, JobEvent, LogEvent, NodeEvent
from stethoscope.schemas.incidents import is_page

from .recorded import FAULTY, HEALTHY, events_of, judged, piped

Change = Callable[[Sequence[Event]], Iterator[Event]]
# Profiling counters (GPM, DCGM's 1001 and up), which many clusters do not collect.
PROFILING = re.compile(r"_active_ratio|sm_occupancy|pcie_[rt]x_bytes|nvlink_[rt]x_bytes")
STEP = re.compile(r"lm loss: (?P<loss>\S+).*?grad norm: (?P<norm>\S+)")
LOG_VISIBLE = {"f08-loss_nan", "f09-hang", "f10-exit", "f11-nccl_socket_fallback", "b-1969"}


def without_profiling(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, GpuEvent):
            left = {n: v for n, v in event.metrics.items() if not PROFILING.search(n)}
            event = structs.replace(event, metrics=left)
        yield event


def without_placement(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        yield structs.replace(event, gpus={}, ranks={}) if isinstance(event, JobEvent) else event


def without_hosts(events: Sequence[Event]) -> Iterator[Event]:
    return (event for event in events if not isinstance(event, NodeEvent))


def lines_of_both_ranks(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        yield event
        if isinstance(event, LogEvent) and STEP.search(event.line):
            yield structs.replace(event, rank=1, stream="rank1")


def without_step_times(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, LogEvent):
            line = re.sub(r"elapsed time per iteration \(ms\): [\d.]+ \| ?", "", event.line)
            event = structs.replace(event, line=line)
        yield event


def as_hugging_face(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, LogEvent) and (step := STEP.search(event.line)):
            loss, norm = step["loss"].lower(), step["norm"].lower()
            line = f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-4, 'epoch': 0.1}}"
            event = structs.replace(event, line=line)
        yield event


def scraped_every_five_seconds(events: Sequence[Event]) -> Iterator[Event]:
    scrapes = 0
    for event in events:
        if isinstance(event, GpuEvent):
            scrapes += 1
            if scrapes % 5:
                continue
            event = structs.replace(event, period_secs=5.0)
        yield event


CHANGES: list[Change] = [
    without_profiling,
    without_placement,
    without_hosts,
    lines_of_both_ranks,
    without_step_times,
    as_hugging_face,
    scraped_every_five_seconds,
]
each = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


def changed(change: Change, path: Path) -> list[Event]:
    events = list(change(events_of(path)))
    assert events != list(events_of(path))
    return events


@each
def test_healthy_jobs_page_nobody(change: Change) -> None:
    told = piped(changed(change, HEALTHY))
    assert [(i.cause, i.title) for i in told.final() if is_page(i)] == []


@each
def test_no_false_page_and_what_the_log_shows_is_found(change: Change) -> None:
    verdict = judged(piped(changed(change, FAULTY)), FAULTY)
    assert verdict.false_pages == []
    assert {one.label_id for one in verdict.found} >= LOG_VISIBLE
