"""The real agent and a real broker that goes away for 600 ticks, with kills in between."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from stethoscope.agents.spool import Spool
from stethoscope.schemas.codec import decode_message
from stethoscope.schemas.events import Event, HeartbeatEvent, LogEvent, NodeEvent, event_id
from stethoscope.schemas.kafka_options import LOGS, TELEMETRY

from .conftest import free_ports, run_script
from .streaming import COMMAND, WAIT_SECS, read_topic, until

pytestmark = pytest.mark.integration

TICKS = 600
LINE_NUMBER = re.compile(rb"name=python, line ([0-9]{6})")
CONFIG = """
loop: {adaptive: false, heartbeat_secs: 0.5}
sending: {min_retry_secs: 0.2, max_retry_secs: 1.0, linger_secs: 0.05, flush_timeout_secs: 2.0}
host: {period_secs: 0.05}
gpu_nvml: {enabled: false}
ib_sysfs: {enabled: false}
control: {enabled: false}
"""


class Broker:
    """A broker of this test's own, which it may stop and start."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._ports = [str(port) for port in free_ports(2)]
        self.address = f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        run_script("kafka-start.sh", self._folder, *self._ports)

    def stop(self) -> None:
        run_script("kafka-stop.sh", self._folder)

    def signal(self, number: int) -> None:
        os.kill(int((Path(self._folder) / "pid").read_text()), number)


class Agent:
    """The agent as a process, with a kernel log that the test writes."""

    def __init__(self, folder: Path, broker: str, node: str) -> None:
        self.node = node
        self.state_dir = folder / "state"
        self.log = folder / "kern.log"
        self.log.touch()
        self.training = folder / "train.log"
        self._errors = folder / "agent.err"
        self._config = folder / "agent.yaml"
        self._config.write_text(
            f"{CONFIG}node: {node}\nkernel_log: {{period_secs: 0.05, file: {self.log}}}\n"
            f"train_log: {{period_secs: 0.05, rescan_secs: 0.1, globs: ['{self.training}*']}}\n",
            encoding="utf-8",
        )
        self.broker = broker
        self._process: subprocess.Popen[bytes] | None = None
        self.written = 0

    def start(self) -> None:
        arguments = ["-c", str(self._config), "-b", self.broker, "--state-dir", self.state_dir]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen([*COMMAND, "agent", *arguments], stderr=errors)

    def end(self, with_signal: int) -> int:
        assert self._process is not None
        os.kill(self._process.pid, with_signal)
        code = self._process.wait(WAIT_SECS)
        self._process = None
        return code

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def threads(self) -> int:
        assert self._process is not None
        return len(list(Path(f"/proc/{self._process.pid}/task").iterdir()))

    def write_lines(self, count: int) -> None:
        """Different Xid lines, each with its own time."""
        with self.log.open("a", encoding="utf-8") as log:
            for i in range(self.written, self.written + count):
                stamp = f"2026-11-29T10:{i // 60 % 60:02d}:{i % 60:02d}.{i:06d}+00:00"
                xid = f"NVRM: Xid (PCI:0000:9b:00): 13, pid={i}, name=python, line {i:06d}"
                log.write(f"{stamp} node kernel: {xid}\n")
        self.written += count

    def spooled(self, lines: range) -> Callable[[], bool]:
        """Whether these lines are on disk, beside others: what was in flight goes there too."""
        wanted = {f"{number:06d}".encode() for number in lines}

        def holds() -> bool:
            segments = (self.state_dir / "spool" / "high").glob("*.seg")
            bodies = [path.read_bytes() for path in segments if path.exists()]
            return wanted <= {n for body in bodies for n in LINE_NUMBER.findall(body)}

        return holds

    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    subprocess.run([*COMMAND, "topics", "create", "-b", broker.address], check=True)
    yield broker
    broker.stop()


@pytest.fixture
def agent(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """An agent whose node is named after the test, not yet started; the broker runs."""
    broker.start()
    agent = Agent(tmp_path, broker.address, request.node.name)
    yield agent
    sys.stdout.write(agent.errors())  # shown when the test failed
    if agent.running():
        agent.end(signal.SIGKILL)


def events_of(agent: Agent, topic: str) -> list[Event]:
    records = read_topic(agent.broker, topic)
    events = [event for record in records for event in decode_message(record.value)]
    return [event for event in events if getattr(event, "node", None) == agent.node]


def log_lines(agent: Agent) -> list[LogEvent]:
    return [e for e in events_of(agent, LOGS) if isinstance(e, LogEvent)]


def has_lines(agent: Agent, count: int) -> Callable[[], bool]:
    return lambda: len({event_id(event) for event in log_lines(agent)}) >= count


def test_an_outage_with_kills_loses_no_line_and_doubles_none(broker: Broker, agent: Agent) -> None:
    agent.start()
    agent.write_lines(10)
    until(has_lines(agent, 10), "the first lines are in Kafka")
    broker.stop()
    for outage in range(3):
        for _ in range(TICKS // 3 // 10):
            agent.write_lines(10)
        if outage < 2:
            until(agent.spooled(range(10, agent.written)), "spooled")
            assert agent.end(signal.SIGKILL) == -signal.SIGKILL
            agent.write_lines(5)
            agent.start()
    broker.start()
    until(has_lines(agent, agent.written), "all lines are in Kafka")
    lines = log_lines(agent)
    bodies = {
        event_id(line): msgspec.structs.replace(line, received_unix_ns=None) for line in lines
    }
    assert len(bodies) == agent.written == 10 + TICKS + 10
    assert all(bodies[event_id(line)] == line for line in lines)
    numbers = {int(line.line.rsplit(" ", 1)[1]) for line in lines}
    assert numbers == set(range(agent.written))
    until(lambda: _last_beat(agent).spooled == 0, "the spool is empty")
    assert _last_beat(agent).dropped_total == 0
    assert agent.end(signal.SIGTERM) == 0


def test_lines_without_a_stamp_that_kills_send_twice_are_the_same(
    broker: Broker, agent: Agent
) -> None:
    written = doubled = 0
    (agent.state_dir / "cursors.json.part").mkdir(parents=True)  # no position can be saved
    for _ in range(4):
        agent.start()
        for _ in range(5):
            with agent.training.open("a", encoding="utf-8") as log:
                log.writelines(f"step {i} loss 2.5\n" for i in range(written, written + 10))
            written += 10
            until(has_lines(agent, written - 10), "the lines before are in Kafka")
        assert agent.end(signal.SIGKILL) == -signal.SIGKILL
    agent.start()
    until(has_lines(agent, written), "all lines are in Kafka")
    bodies: dict[str, Event] = {}
    for line in log_lines(agent):
        body = msgspec.structs.replace(line, received_unix_ns=None)
        doubled += event_id(line) in bodies
        assert bodies.setdefault(event_id(line), body) == body
    assert len(bodies) == written
    assert doubled > 0


def test_samples_of_an_outage_arrive_in_order_with_their_own_times(
    broker: Broker, agent: Agent
) -> None:
    agent.start()
    until(lambda: bool(_samples(agent)), "a sample is in Kafka")
    broker.stop()
    agent.write_lines(1)
    until(agent.spooled(range(1)), "the agent noticed")
    low = agent.state_dir / "spool" / "low"
    until(lambda: sum(p.stat().st_size for p in low.glob("*.seg")) > 100_000, "samples spooled")
    broker.start()
    until(has_lines(agent, 1), "the line is in Kafka")
    until(lambda: _last_beat(agent).spooled == 0, "the spool is empty")
    assert agent.end(signal.SIGTERM) == 0
    samples = _samples(agent)
    first_seen = list(dict.fromkeys(event_id(sample) for sample in samples))
    assert first_seen == sorted(first_seen)
    times = sorted({sample.time_unix_ns for sample in samples})
    assert len(times) == len(first_seen)


def test_a_broker_that_freezes_leaves_no_thread_behind(broker: Broker, agent: Agent) -> None:
    agent.start()
    agent.write_lines(1)
    until(has_lines(agent, 1), "the first line is in Kafka")
    threads = agent.threads()
    broker.signal(signal.SIGSTOP)
    try:
        agent.write_lines(20)
        until(agent.spooled(range(1, 21)), "the agent noticed")
        until(lambda: agent.threads() <= threads, "the old producer ended")
    finally:
        broker.signal(signal.SIGCONT)
    until(has_lines(agent, 21), "all lines are in Kafka")
    assert "Traceback" not in agent.errors()
    assert agent.end(signal.SIGTERM) == 0


def test_a_clean_stop_without_kafka_leaves_everything_on_disk(
    broker: Broker, agent: Agent, tmp_path: Path
) -> None:
    broker.stop()
    agent.start()
    agent.write_lines(20)
    until(agent.spooled(range(20)), "spooled")
    assert agent.end(signal.SIGTERM) == 0
    spool = Spool(agent.state_dir / "spool", 1 << 28, 1 << 20)
    events = [e for r in spool.peek(10_000, 1 << 28) for e in decode_message(r.payload)]
    spool.close()
    assert sum(isinstance(event, LogEvent) for event in events) == 20
    assert spool.dropped_total == 0


def test_a_bad_new_configuration_keeps_the_old_one(broker: Broker, agent: Agent) -> None:
    agent.start()
    agent.write_lines(1)
    until(has_lines(agent, 1), "the agent runs")
    good = agent._config.read_text(encoding="utf-8")
    agent._config.write_text(good + "losp: {}\n", encoding="utf-8")
    assert agent._process is not None
    agent._process.send_signal(signal.SIGHUP)
    until(lambda: "did you mean" in agent.errors(), "the typo is said")
    agent.write_lines(1)
    until(has_lines(agent, 2), "the old configuration is in force")
    agent._config.write_text(good.replace("0.5", "0.6"), encoding="utf-8")
    until(lambda: "configuration taken up" in agent.errors(), "the new file is noticed")
    agent.write_lines(1)
    until(has_lines(agent, 3), "the agent goes on after its reload")
    assert len(log_lines(agent)) == 3
    assert agent.end(signal.SIGTERM) == 0


def _samples(agent: Agent) -> list[NodeEvent]:
    return [e for e in events_of(agent, TELEMETRY) if isinstance(e, NodeEvent)]


def _last_beat(agent: Agent) -> HeartbeatEvent:
    beats = [e for e in events_of(agent, TELEMETRY) if isinstance(e, HeartbeatEvent)]
    return max(beats, key=lambda beat: beat.time_unix_ns)
