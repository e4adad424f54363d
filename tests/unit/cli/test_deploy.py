"""What ``deploy/`` ships can be used as it is."""

import re
from pathlib import Path

from stethoscope.streams.config import Config, load_config

DEPLOY = Path(__file__).parents[3] / "deploy"
EXAMPLE = DEPLOY / "stethoscope.example.yaml"


def test_the_example_writes_out_the_defaults_it_says_are_defaults() -> None:
    example, default = load_config(EXAMPLE), Config()
    assert example.kafka == default.kafka
    assert example.timing == default.timing
    assert example.correlation == default.correlation
    assert example.alertmanager.urls == ["http://127.0.0.1:9093"]
    added = [one for one in example.detectors if one not in default.detectors]
    assert [(one.name, one.mode) for one in added] == [("hot_memory_a100", "observe")]
    assert len(example.detectors) == len(default.detectors) + 1


def test_the_worker_unit_starts_a_command_that_exists() -> None:
    unit = (DEPLOY / "systemd/stethoscope-worker.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert line.split()[1:3] == ["worker", "--config"]
    assert line.split()[3] in EXAMPLE.read_text()
    assert "ReadWritePaths" not in unit  # its state directory is all it writes
