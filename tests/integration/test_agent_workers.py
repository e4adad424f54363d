"""Worker processes: answers, deadlines, kills, replacements. Real processes, fake readers."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stethoscope.agents import workers
from stethoscope.agents.calls import Call, Result, Setup
from stethoscope.agents.clock import Now
from stethoscope.agents.process import Process
from stethoscope.agents.reader import Context
from stethoscope.agents.workers import WorkerPool
from stethoscope.schemas.agent_config import AgentConfig

pytestmark = pytest.mark.integration

FAKES = """
import os, time
from stethoscope.agents.reader import Counters
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import NodeEvent

class Good:
    name, period_secs, hazardous = "good", 1.0, True
    def __init__(self, context, section):
        self.counters, self._context, self._reads = Counters(), context, 0
    def probe(self): pass
    def close(self): pass
    def read(self, now):
        print("a library that prints")
        self._reads += 1
        self.counters.invalid_samples_total += 1
        metrics = {"pid": os.getpid(), "reads": self._reads}
        return [NodeEvent(time_unix_ns=now.unix_ns, node=self._context.node, metrics=metrics)]

class Hanging(Good):
    def read(self, now): time.sleep(3600)

class Raising(Good):
    def read(self, now): raise ValueError("boom\\nsecond line")

class Dying(Good):
    def read(self, now): os._exit(3)

class Resumes(Good):
    position = 0
    def read(self, now):
        self.position += 1
        return []
    def checkpoint(self): return str(self.position)
    def restore(self, state): self.position = int(state)

class NoText(Good):
    def read(self, now): return [NodeEvent(time_unix_ns=5, node="\\udcff")]

class Absent(Good):
    def probe(self): raise ReaderUnsupported("no such device")
"""
NOW = Now(unix_ns=5, monotonic_ns=5, boottime_ns=5)
PATIENCE_SECS = 60


@pytest.fixture
def pool_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerPool]]:
    """Makes a pool whose readers, under real readers' names, are the fakes."""
    (tmp_path / "fake_readers.py").write_text(FAKES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pools: list[WorkerPool] = []

    def make(readers: dict[str, str], groups: dict[str, str] | None = None) -> WorkerPool:
        fakes = {name: f"fake_readers:{fake}" for name, fake in readers.items()}
        setup = Setup(Context(node="node01"), AgentConfig(), fakes)
        pools.append(WorkerPool(setup, groups or {name: name for name in readers}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def wait_for(pool: WorkerPool, wanted: int) -> dict[str, Result]:
    """Poll until that many results are there."""
    found: dict[str, Result] = {}
    give_up = time.monotonic() + PATIENCE_SECS
    while len(found) < wanted:
        assert time.monotonic() < give_up, found
        found |= {result.reader: result for result in pool.poll(time.monotonic_ns())}
        time.sleep(0.01)
    return found


def read(pool: WorkerPool, name: str, deadline_secs: float = PATIENCE_SECS) -> None:
    pool.submit(Call(name, "read", NOW), deadline_secs)


def test_a_worker_answers_with_events_and_keeps_its_reader(
    pool_of: Callable[[dict[str, str]], WorkerPool],
) -> None:
    pool = pool_of({"host": "Good"})
    read(pool, "host")
    wait_for(pool, 1)
    read(pool, "host")
    result = wait_for(pool, 1)["host"]
    assert result.state == "ok"
    assert result.events[0].metrics["reads"] == 2  # type: ignore[union-attr]  # the fake's kind
    assert result.events[0].node == "node01"  # type: ignore[union-attr]  # the fake's kind
    assert result.counters is not None
    assert result.counters.invalid_samples_total == 2


def test_a_position_is_given_to_a_new_process_only(
    pool_of: Callable[[dict[str, str]], WorkerPool],
) -> None:
    pool = pool_of({"train_log": "Resumes"})
    long_position = "7".rjust(300_000)
    for expected in ("8", "9"):
        pool.submit(Call("train_log", "read", NOW, long_position), PATIENCE_SECS)
        assert wait_for(pool, 1)["train_log"].checkpoint == expected


def test_what_cannot_be_written_as_text_ends_no_process(
    pool_of: Callable[[dict[str, str]], WorkerPool],
) -> None:
    pool = pool_of({"train_log": "NoText", "host": "Good"})
    for _ in range(2):
        read(pool, "train_log")
        read(pool, "host")
        found = wait_for(pool, 2)
        assert found["train_log"].state == "failing"
        assert "surrogates not allowed" in found["train_log"].detail
        assert found["host"].state == "ok"
    assert pool.killed_total == 0


def test_what_a_reader_raises_is_a_state(pool_of: Callable[[dict[str, str]], WorkerPool]) -> None:
    pool = pool_of({"host": "Raising", "gpu_nvml": "Absent"})
    read(pool, "host")
    pool.submit(Call("gpu_nvml", "probe", NOW), PATIENCE_SECS)
    found = wait_for(pool, 2)
    assert (found["host"].state, found["host"].detail) == ("failing", "ValueError: boom")
    assert (found["gpu_nvml"].state, found["gpu_nvml"].detail) == ("unsupported", "no such device")
    assert pool.killed_total == 0


def test_a_hung_reader_is_killed_and_blocks_nobody(
    pool_of: Callable[[dict[str, str]], WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "START_SECS", 0.0)
    pool = pool_of({"gpu_nvml": "Good", "host": "Hanging"})
    read(pool, "host", deadline_secs=1.0)
    read(pool, "gpu_nvml")
    assert wait_for(pool, 1)["gpu_nvml"].state == "ok"
    result = wait_for(pool, 1)["host"]
    assert result.state == "failing"
    assert "deadline" in result.detail
    assert (pool.killed_total, pool.abandoned) == (1, 0)
    read(pool, "gpu_nvml")
    assert wait_for(pool, 1)["gpu_nvml"].state == "ok"


def test_a_worker_that_dies_is_replaced(pool_of: Callable[[dict[str, str]], WorkerPool]) -> None:
    pool = pool_of({"host": "Dying", "gpu_nvml": "Good"})
    read(pool, "host")
    assert "ended" in wait_for(pool, 1)["host"].detail
    read(pool, "gpu_nvml")
    first = wait_for(pool, 1)["gpu_nvml"]
    os.kill(pool.pids()[0], signal.SIGKILL)
    read(pool, "gpu_nvml")
    wait_for(pool, 1)
    read(pool, "gpu_nvml")
    again = wait_for(pool, 1)["gpu_nvml"]
    give_up = time.monotonic() + PATIENCE_SECS
    while again.state != "ok":
        assert time.monotonic() < give_up
        read(pool, "gpu_nvml")
        again = wait_for(pool, 1)["gpu_nvml"]
    assert again.events[0] != first.events[0]


def test_what_cannot_be_killed_is_abandoned_and_its_reader_waits_alone(
    pool_of: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "START_SECS", 0.0)
    monkeypatch.setattr(workers, "REAP_SECS", 0.0)
    unkillable: list[Process] = []
    really_kill = Process.kill

    def refuse(process: Process) -> None:
        unkillable.append(process)

    monkeypatch.setattr(Process, "kill", refuse)
    pool = pool_of({"ib_sysfs": "Good", "host": "Hanging"}, groups={"ib_sysfs": "a", "host": "a"})
    details: list[str] = []
    while "cannot be killed" not in (details or [""])[-1]:
        read(pool, "host", deadline_secs=0.05)
        details.append(wait_for(pool, 1)["host"].detail)
    assert (pool.abandoned, pool.abandoned_total, len(unkillable)) == (1, 1, 1)
    monkeypatch.setattr(workers, "START_SECS", PATIENCE_SECS)
    read(pool, "ib_sysfs")
    assert wait_for(pool, 1)["ib_sysfs"].state == "ok"
    monkeypatch.setattr(Process, "kill", really_kill)
    unkillable[0].kill()
    give_up = time.monotonic() + PATIENCE_SECS
    while pool.abandoned:
        assert time.monotonic() < give_up
        pool.poll(time.monotonic_ns())


def test_a_worker_without_work_ends(
    pool_of: Callable[[dict[str, str]], WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of({"host": "Good"})
    read(pool, "host")
    wait_for(pool, 1)
    monkeypatch.setattr(workers, "IDLE_SECS", 0.0)
    pool.poll(time.monotonic_ns())
    assert (pool.pids(), pool.killed_total) == ([], 0)


def test_a_worker_ends_with_its_input(pool_of: Callable[[dict[str, str]], WorkerPool]) -> None:
    pool = pool_of({"host": "Good"})
    read(pool, "host")
    wait_for(pool, 1)
    slot = pool._all[0]
    assert slot.process is not None
    stdin = slot.process._popen.stdin
    assert stdin is not None
    stdin.close()
    assert slot.process._popen.wait(PATIENCE_SECS) == 0
