"""A worker takes up a changed file that can be used, and no other."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from stethoscope.cli.worker_reload import Reloader

GOOD = "severity: {straggler: critical}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "stethoscope.yaml"
    path.write_text("cluster: one\n")
    return path


def test_an_unchanged_file_changes_nothing(file: Path) -> None:
    stop = asyncio.Event()
    Reloader(file, stop).look()
    assert not stop.is_set()


def test_a_changed_file_stops_the_worker_to_start_anew(file: Path) -> None:
    reloader = Reloader(file, stop := asyncio.Event())
    file.write_text(GOOD)
    reloader.look()
    assert stop.is_set()
    assert reloader.wanted


def test_a_bad_file_is_said_once_and_the_old_one_stays(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reloader = Reloader(file, stop := asyncio.Event())
    file.write_text("severety: {}\n")
    with caplog.at_level(logging.ERROR):
        reloader.look()
        reloader.look()
    assert not stop.is_set()
    assert not reloader.wanted
    (record,) = caplog.records
    assert "did you mean severity?" in vars(record)["error"]


def test_a_file_that_is_gone_for_a_moment_is_waited_for(file: Path) -> None:
    reloader = Reloader(file, stop := asyncio.Event())
    file.unlink()
    reloader.look()
    assert not stop.is_set()
    file.write_text(GOOD)
    reloader.look()
    assert reloader.wanted


def test_sighup_reloads_at_once(file: Path) -> None:
    async def scenario() -> bool:
        reloader = Reloader(file, stop := asyncio.Event())
        watching = asyncio.create_task(reloader.watch())
        await asyncio.sleep(0)  # until it listens
        os.kill(os.getpid(), signal.SIGHUP)
        await stop.wait()
        watching.cancel()
        return reloader.wanted

    assert asyncio.run(scenario())
