"""One read of each reader, without the loop."""

from pathlib import Path

import pytest

from stethoscope.agents import once, registry
from stethoscope.agents.clock import FakeClock
from stethoscope.agents.once import read_once
from stethoscope.agents.overrides import Given, effective
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import AgentConfig

CONTEXT = Context(node="n")


def test_a_reader_without_a_source_is_unsupported_and_says_why(tmp_path: Path) -> None:
    config = effective(Given(infiniband_root=str(tmp_path / "none")))
    (reading,) = read_once(["ib_sysfs"], CONTEXT, config, FakeClock())
    assert (reading.state, reading.events) == ("unsupported", [])
    assert "none" in reading.detail


def test_readers_of_rates_are_read_twice_one_second_apart() -> None:
    clock = FakeClock()
    before_ns = clock.now().monotonic_ns
    (reading,) = read_once(["host"], CONTEXT, AgentConfig(), clock)
    assert reading.state == "ok"
    assert len(reading.events) == 1
    assert clock.now().monotonic_ns - before_ns == 10**9
    assert "host" in once.RATES


def test_a_reader_that_cannot_be_made_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.READERS, "slurm", "stethoscope.agents.absent:Reader")
    readings = list(read_once(["slurm", "host"], CONTEXT, AgentConfig(), FakeClock()))
    assert [(r.reader, r.state) for r in readings] == [("slurm", "failing"), ("host", "ok")]
    assert "absent" in readings[0].detail
