"""The thread in which readers run that do not hang: order, deadlines, late answers."""

import select
import threading

import pytest

from stethoscope.agents.calls import Call, Result
from stethoscope.agents.clock import Now
from stethoscope.agents.reader import Counters
from stethoscope.agents.runner import ThreadRunner
from stethoscope.schemas.events import Event, NodeEvent

NOW = Now(1, 1, 1)
PATIENCE_MS = 30_000


class Gated:
    """Answers a read when its gate is open; counts on from a position."""

    name = "kernel_log"
    period_secs = 1.0
    hazardous = False

    def __init__(self) -> None:
        self.counters = Counters()
        self.gate = threading.Event()
        self.gate.set()
        self.position = 0
        self.closed = False

    def probe(self) -> None:
        """Always there."""

    def read(self, now: Now) -> list[Event]:
        self.gate.wait(PATIENCE_MS / 1000)
        self.position += 1
        return [NodeEvent(time_unix_ns=self.position, node="n")]

    def checkpoint(self) -> str:
        return str(self.position)

    def restore(self, state: str) -> None:
        self.position = int(state)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def reader() -> Gated:
    return Gated()


@pytest.fixture
def runner(reader: Gated) -> ThreadRunner:
    return ThreadRunner({"kernel_log": reader})


def read(runner: ThreadRunner, restore: str | None = None) -> None:
    runner.submit(Call("kernel_log", "read", NOW, restore), deadline_secs=10.0)


def wait_for(runner: ThreadRunner, monotonic_ns: int = 1) -> Result:
    """The next outcome, waited for as the loop does."""
    poller = select.poll()
    poller.register(runner.handles()[0], select.POLLIN)
    results = runner.poll(monotonic_ns)
    while not results:
        assert poller.poll(PATIENCE_MS)
        results = runner.poll(monotonic_ns)
    (result,) = results
    return result


def test_answers_wake_the_caller_and_a_position_is_given_once(
    runner: ThreadRunner, reader: Gated
) -> None:
    read(runner, restore="7")
    assert wait_for(runner).checkpoint == "8"
    read(runner, restore="7")
    assert wait_for(runner).checkpoint == "9"
    runner.close()
    assert reader.closed


def test_a_call_that_is_late_fails_and_its_events_still_come(
    runner: ThreadRunner, reader: Gated
) -> None:
    reader.gate.clear()
    read(runner)
    assert runner.poll(0) == []
    (late,) = runner.poll(11 * 10**9)
    assert (late.state, late.detail) == ("failing", "no answer within its deadline")
    assert runner.poll(12 * 10**9) == []
    read(runner)
    (refused,) = runner.poll(13 * 10**9)
    assert refused.detail == "its last call has not returned"
    reader.gate.set()
    assert wait_for(runner, 14 * 10**9).events[0].time_unix_ns == 1
    read(runner)
    assert wait_for(runner, 15 * 10**9).events[0].time_unix_ns == 2
    runner.close()


def test_closing_does_not_wait_for_a_reader_that_hangs(
    runner: ThreadRunner, reader: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stethoscope.agents.runner.CLOSE_SECS", 0.01)
    reader.gate.clear()
    read(runner)
    runner.poll(0)
    runner.close()
    assert not reader.closed
    reader.gate.set()
