"""The agent's process, inside one: start, reload, stop, and what it refuses to start with."""

import threading
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from stethoscope.agents import __main__ as process
from stethoscope.agents import service as module
from stethoscope.agents.overrides import Given
from stethoscope.agents.service import Service, open_spool
from stethoscope.agents.state import StateDir
from stethoscope.schemas.agent_config import (
    AgentConfig,
    Control,
    GpuNvml,
    Host,
    IbSysfs,
    KernelLog,
    Loop,
    Sending,
)
from stethoscope.schemas.agent_config import Spool as SpoolConfig
from stethoscope.schemas.errors import ConfigError, ServiceError, UsageError

QUIET = AgentConfig(
    node="n",
    control=Control(enabled=False),
    gpu_nvml=GpuNvml(enabled=False),
    ib_sysfs=IbSysfs(enabled=False),
    host=Host(enabled=False),
    loop=Loop(heartbeat_secs=0.01),
    sending=Sending(linger_secs=0.0),
)
PATIENCE_SECS = 30.0


class Source:
    """A configuration that the test changes."""

    def __init__(self, config: AgentConfig) -> None:
        self.config: AgentConfig | ConfigError = config

    def load(self) -> AgentConfig:
        if isinstance(self.config, ConfigError):
            raise self.config
        return self.config


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    def away() -> None:
        msg = "away"
        raise ServiceError(msg)

    monkeypatch.setattr(module, "connector", lambda _kafka: away)
    log = tmp_path / "kern.log"
    log.touch()
    return Source(replace(QUIET, kernel_log=KernelLog(file=str(log))))


def test_it_runs_beats_and_stops_with_everything_on_disk(tmp_path: Path, source: Source) -> None:
    service = Service(source.load, None, tmp_path / "state", "1.0")
    thread = threading.Thread(target=service.run)
    thread.start()
    beaten = threading.Event()
    for _ in range(round(PATIENCE_SECS / 0.05)):
        if service.vitals().spooled >= 2 or beaten.wait(0.05):
            break
    service.stop()
    thread.join(PATIENCE_SECS)
    assert not thread.is_alive()
    again = open_spool(tmp_path / "state" / "spool", SpoolConfig())
    assert again.pending >= 2
    StateDir(tmp_path / "state").close()


def test_a_reload_takes_the_new_and_keeps_the_old_over_a_bad_one(
    tmp_path: Path, source: Source
) -> None:
    service = Service(source.load, None, tmp_path / "state", "1.0")
    assert isinstance(source.config, AgentConfig)
    source.config = replace(
        source.config, kernel_log=replace(source.config.kernel_log, period_secs=7.0)
    )
    service.reload()
    assert service._loop.tasks["kernel_log"].own_period_secs == 7.0
    source.config = ConfigError("agent.yaml:3: unknown key")
    service.reload()
    assert service._loop.tasks["kernel_log"].own_period_secs == 7.0
    assert (service.reloads_total, service.reload_failures_total) == (1, 1)
    service._loop.close()
    service._state.close()


def test_a_spool_of_another_user_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("in the way")
    with pytest.raises(UsageError, match="give it to this user"):
        open_spool(tmp_path / "spool", SpoolConfig())


def test_a_configuration_that_cannot_be_used_ends_with_2_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("losp: {}\n")
    given = msgspec.json.encode(Given(config=str(path))).decode()
    monkeypatch.setattr("sys.argv", ["agent", given])
    monkeypatch.setattr(process, "log_to_stderr", lambda: None)
    with pytest.raises(SystemExit) as ended:
        process.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
