"""A worker that is killed costs a pause: no incident lost, none doubled, each page once."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import RunningAlertmanager
from .streaming import (
    COMMAND,
    RECORDING,
    WorkerProcess,
    expected_incidents,
    firings,
    fresh_topics,
    live_incidents,
    pages_of,
    seen_incidents,
    until,
)

pytestmark = pytest.mark.integration
PARTITIONS = 2
SPEED = 20


@pytest.fixture
def alertmanager_alone(tmp_path: Path) -> Iterator[RunningAlertmanager]:
    """One that has heard of nothing yet: the recording's incidents have the same ids every time."""
    running = RunningAlertmanager(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def player(kafka_broker: str) -> Iterator[subprocess.Popen[bytes]]:
    """The recording, on its way into fresh topics."""
    fresh_topics(kafka_broker, PARTITIONS)
    play = [*COMMAND, "agent", "--source", f"replay:{RECORDING}", "--speed", str(SPEED)]
    running = subprocess.Popen([*play, "--brokers", kafka_broker])
    yield running
    running.kill()
    running.wait()


def _worker(folder: Path, broker: str, alertmanager: RunningAlertmanager) -> WorkerProcess:
    folder.mkdir(exist_ok=True)
    arguments = ["--recorded", "--snapshot-secs", "1", "--alertmanager", alertmanager.url]
    return WorkerProcess(folder, broker, PARTITIONS, *arguments)


def _assert_nothing_lost_or_doubled(
    broker: str, player: subprocess.Popen[bytes], alertmanager: RunningAlertmanager
) -> None:
    expected = expected_incidents()
    pages = pages_of(expected)
    assert player.wait(timeout=180) == 0
    until(
        lambda: seen_incidents(broker, expected) == expected,
        "live incidents equal those of replay",
    )
    alertmanager.wait_for(lambda _: pages <= firings(alertmanager).keys())
    assert firings(alertmanager) == dict.fromkeys(pages, 1)


def test_killed_in_mid_run_and_started_again(
    kafka_broker: str,
    tmp_path: Path,
    player: subprocess.Popen[bytes],
    alertmanager_alone: RunningAlertmanager,
) -> None:
    worker = _worker(tmp_path / "a", kafka_broker, alertmanager_alone)
    try:
        worker.start()
        for count in (3, 7):  # twice: once amid the first faults, once with others open
            until(lambda n=count: len(live_incidents(kafka_broker)) >= n, f"{count} incidents")
            worker.end(signal.SIGKILL)
            worker.start()
        _assert_nothing_lost_or_doubled(kafka_broker, player, alertmanager_alone)
        assert worker.end() == 0
    finally:
        worker.close()


def test_killed_while_another_worker_runs(
    kafka_broker: str,
    tmp_path: Path,
    player: subprocess.Popen[bytes],
    alertmanager_alone: RunningAlertmanager,
) -> None:
    first = _worker(tmp_path / "a", kafka_broker, alertmanager_alone)
    second = _worker(tmp_path / "b", kafka_broker, alertmanager_alone)
    try:
        first.start()
        until(lambda: len(live_incidents(kafka_broker)) >= 2, "2 incidents")
        second.start()
        until(lambda: "units: " in second.log.read_text(), "the second worker has partitions")
        until(lambda: len(live_incidents(kafka_broker)) >= 4, "4 incidents")
        first.end(signal.SIGKILL)
        _assert_nothing_lost_or_doubled(kafka_broker, player, alertmanager_alone)
        assert second.end() == 0
    finally:
        first.close()
        second.close()
