"""What must not hurt the agent: a reader that hangs, one that raises, a flood of lines."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stethoscope.agents import registry, workers
from stethoscope.agents.assembly import build_loop
from stethoscope.agents.clock import SystemClock
from stethoscope.agents.loop import Vitals
from stethoscope.agents.outbox import Outbox
from stethoscope.agents.reader import Context
from stethoscope.agents.segment import parse_segment
from stethoscope.agents.spool import Spool
from stethoscope.schemas.agent_config import (
    AgentConfig,
    GpuNvml,
    Host,
    IbSysfs,
    KernelLog,
    Loop,
)
from stethoscope.schemas.codec import decode_message
from stethoscope.schemas.events import Event, HeartbeatEvent, LogEvent

from .streaming import COMMAND, WAIT_SECS, until

pytestmark = pytest.mark.integration

FAKES = """
import time
from stethoscope.agents.reader import Counters
from stethoscope.schemas.events import NodeEvent

class Good:
    name, period_secs, hazardous = "good", 0.05, True
    def __init__(self, context, section):
        self.counters, self._context = Counters(), context
    def probe(self): pass
    def close(self): pass
    def read(self, now):
        return [NodeEvent(time_unix_ns=now.unix_ns, seq=now.boottime_ns, node="n", stream="good")]

class Hanging(Good):
    def read(self, now): time.sleep(3600)

class Raising(Good):
    def read(self, now): raise ZeroDivisionError("a fault of its own")
"""
FLOOD = 100_000
FLOOD_CONFIG = """
node: n
loop: {{adaptive: false, heartbeat_secs: 0.2}}
gpu_nvml: {{enabled: false}}
ib_sysfs: {{enabled: false}}
host: {{enabled: false}}
control: {{enabled: false}}
kernel_log: {{file: {log}, quiet_secs: 1}}
"""


def test_a_reader_that_hangs_or_raises_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake_readers.py").write_text(FAKES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(workers, "START_SECS", 2.0)
    fakes = {"gpu_nvml": "Good", "ib_sysfs": "Raising", "host": "Hanging"}
    for name, fake in fakes.items():
        monkeypatch.setitem(registry.READERS, name, f"fake_readers:{fake}")
    config = AgentConfig(
        loop=Loop(adaptive=False, deadline_secs=0.5, max_backoff_secs=0.1, heartbeat_secs=0.1),
        gpu_nvml=GpuNvml(period_secs=0.05),
        ib_sysfs=IbSysfs(period_secs=0.05),
        host=Host(period_secs=0.05),
        kernel_log=KernelLog(enabled=False),
    )
    outbox = Outbox(10**6)
    loop, pool = build_loop(Context(node="n"), config, SystemClock(), outbox, {})
    events: list[Event] = []

    def seen() -> bool:
        loop.wait(loop.step([], Vitals))
        events.extend(e for batch in outbox.take(10**6) for e in batch.events)
        states = {n: t.state for n, t in loop.tasks.items()}
        wanted = {"gpu_nvml": "ok", "ib_sysfs": "failing", "host": "failing"}
        good = loop.tasks["gpu_nvml"].reads_total
        return states == wanted and pool.killed_total >= 2 and good >= 20

    try:
        while_waiting(seen)
    finally:
        loop.close()
    assert "ZeroDivisionError" in loop.tasks["ib_sysfs"].detail
    beats = [event for event in events if isinstance(event, HeartbeatEvent)]
    assert beats[-1].readers == {"gpu_nvml": "ok", "ib_sysfs": "failing", "host": "failing"}


def while_waiting(seen: Callable[[], bool]) -> None:
    """Step without the pause that ``until`` makes between two looks."""
    until(lambda: any(seen() for _ in range(200)), "states")


def spooled(state_dir: Path) -> list[Event]:
    spool = Spool(state_dir / "spool", 1 << 28, 1 << 20)
    records = spool.peek(10**6, 1 << 28)
    spool.close()
    return [event for record in records for event in decode_message(record.payload)]


def test_a_flood_of_equal_lines_becomes_few_events_with_the_exact_count(tmp_path: Path) -> None:
    log, state_dir = tmp_path / "kern.log", tmp_path / "state"
    log.touch()
    config = tmp_path / "agent.yaml"
    config.write_text(FLOOD_CONFIG.format(log=log), encoding="utf-8")
    arguments = ["agent", "-c", str(config), "-b", "127.0.0.1:1", "--state-dir", str(state_dir)]
    agent = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.DEVNULL)
    high = state_dir / "spool" / "high"
    line = "2026-11-29T10:00:00.000000+00:00 n kernel: NVRM: Xid (PCI:0000:9b:00): 95, pid=1, x\n"
    with log.open("a", encoding="utf-8") as file:
        for _ in range(FLOOD // 1000):
            file.write(line * 1000)
    try:
        until(lambda: _count(high) >= FLOOD, "all lines are accounted for")
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(WAIT_SECS) == 0
    events = spooled(state_dir)
    logs = [event for event in events if isinstance(event, LogEvent)]
    assert sum(event.count for event in logs) == FLOOD
    assert len(logs) <= 20
    assert sum(isinstance(event, HeartbeatEvent) for event in events) >= 5


def _count(high: Path) -> int:
    """Lines that the spooled events stand for, read while the agent writes."""
    total = 0
    for path in high.glob("*.seg"):
        for parsed in parse_segment(path.read_bytes()):
            if parsed is not None:
                events = decode_message(parsed.record.payload)
                total += sum(e.count for e in events if isinstance(e, LogEvent))
    return total
