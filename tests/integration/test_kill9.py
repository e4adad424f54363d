"""A worker that is killed costs a pause: no incident lost, none doubled, each page once."""

import signal
import subprocess
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


def test_killed_in_mid_run_and_started_again(kafka_broker: str, tmp_path: Path) -> None:
    expected = expected_incidents()
    fresh_topics(kafka_broker, PARTITIONS)
    alertmanager = RunningAlertmanager(tmp_path)
    arguments = ["--recorded", "--snapshot-secs", "1", "--alertmanager", alertmanager.url]
    worker = WorkerProcess(tmp_path, kafka_broker, PARTITIONS, *arguments)
    play = [*COMMAND, "agent", "--source", f"replay:{RECORDING}", "--speed", str(SPEED)]
    player = subprocess.Popen([*play, "--brokers", kafka_broker])
    try:
        alertmanager.start()
        worker.start()
        for count in (3, 7):  # twice: once amid the first faults, once with others open
            until(lambda n=count: len(live_incidents(kafka_broker)) >= n, f"{count} incidents")
            worker.end(signal.SIGKILL)
            worker.start()
        assert player.wait(timeout=180) == 0
        until(
            lambda: seen_incidents(kafka_broker, expected) == expected,
            "live incidents equal those of replay",
        )
        pages = pages_of(expected)
        alertmanager.wait_for(lambda _: pages <= firings(alertmanager).keys())
        assert worker.end() == 0
    finally:
        player.kill()
        player.wait()
        worker.close()
        alertmanager.close()
    assert firings(alertmanager) == dict.fromkeys(pages, 1)
