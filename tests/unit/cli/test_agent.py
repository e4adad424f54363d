"""``stethoscope agent`` on the command line: one read, its states and exit codes, the hand-over."""

import json
import os
from pathlib import Path

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from stethoscope.agents.config_file import load_agent_config
from stethoscope.agents.overrides import Given
from stethoscope.cli.app import app
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.errors import UsageError

ROOT = Path(__file__).parents[3]
runner = CliRunner()


def port_tree(root: Path) -> Path:
    port = root / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "counters" / "symbol_error").write_text("7\n")
    return root


def test_once_prints_events_on_stdout_and_states_on_stderr(tmp_path: Path) -> None:
    root = str(port_tree(tmp_path))
    arguments = ["agent", "--once", "--reader", "ib_sysfs", "--infiniband-root", root]
    result = runner.invoke(app, [*arguments, "--node", "n1"])
    assert result.exit_code == 0, result.stderr
    events = [json.loads(line) for line in result.stdout.splitlines()]
    (ports,) = [event for event in events if event["kind"] == "ib"]
    assert ports["node"] == "n1"
    assert ports["counters"]["symbol_error"] == [7]
    assert "ib_sysfs: ok" in result.stderr


def test_unsupported_is_explained_and_no_failure(tmp_path: Path) -> None:
    arguments = ["agent", "--once", "--reader", "ib_sysfs"]
    result = runner.invoke(app, [*arguments, "--infiniband-root", str(tmp_path / "none")])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "ib_sysfs: unsupported: " in result.stderr


def test_a_failing_reader_is_exit_code_1() -> None:
    arguments = ["agent", "--once", "--reader", "prometheus", "--url", "http://127.0.0.1:1/metrics"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert "prometheus: failing: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--once", "--reader", "ib_sysf"], "did you mean ib_sysfs"),
        (["--source", "nowhere"], "--source nowhere"),
        (["--config", "/absent.yaml"], "/absent.yaml"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], words: str) -> None:
    result = runner.invoke(app, ["agent", *arguments])
    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)


def test_live_becomes_the_lean_process_with_all_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _path, arguments: became.append(arguments))
    arguments = ["--brokers", "b:1", "--node", "n1", "--state-dir", str(tmp_path)]
    assert runner.invoke(app, ["agent", *arguments]).exit_code == 0
    assert became[0][1:3] == ["-m", "stethoscope.agents"]
    given = msgspec.json.decode(became[0][3], type=Given)
    assert given == Given(brokers="b:1", node="n1", state_dir=str(tmp_path))


def test_the_example_configuration_says_the_defaults() -> None:
    path = ROOT / "deploy" / "agent.example.yaml"
    assert load_agent_config(path) == AgentConfig()
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(written) | {"node", "state_dir"} == set(AgentConfig.__struct_fields__)
