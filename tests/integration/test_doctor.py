"""``stethoscope doctor`` against a real broker and a real Alertmanager."""

import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest


class Running(Protocol):
    """The fixture's Alertmanager."""

    url: str


pytestmark = pytest.mark.integration


def test_doctor_finds_what_is_there(
    tmp_path: Path, kafka_broker: str, alertmanager: Running
) -> None:
    config = tmp_path / "stethoscope.yaml"
    config.write_text(
        f"kafka: {{brokers: ['{kafka_broker}']}}\nalertmanager: {{urls: ['{alertmanager.url}']}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stethoscope.cli", "doctor", "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok       broker {kafka_broker}" in done.stdout
    assert f"ok       alertmanager {alertmanager.url}: 0." in done.stdout
