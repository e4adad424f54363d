"""The scripts that start services: idempotent, and clear when they cannot."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

pytestmark = pytest.mark.integration
SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPTS / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def free_pair() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a broker, which is stopped at the end whatever happened."""
    yield tmp_path
    script("kafka-stop.sh", tmp_path)


def topics(address: str) -> list[str]:
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        return list(admin.list_topics())
    finally:
        admin.close()


def test_a_broker_starts_once_survives_a_kill_and_stops_twice(folder: Path) -> None:
    ports = free_pair()
    started = script("kafka-start.sh", folder, *ports)
    address = f"127.0.0.1:{ports[0]}"
    assert (started.returncode, started.stdout.strip()) == (0, address), started.stderr
    pid = int((folder / "pid").read_text(encoding="ascii"))

    again = script("kafka-start.sh", folder, *free_pair())
    assert (again.returncode, again.stdout.strip()) == (0, address)
    assert "already running" in again.stderr

    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic("kept", num_partitions=1, replication_factor=1)])
    admin.close()
    os.kill(pid, signal.SIGKILL)
    restarted = script("kafka-start.sh", folder, *free_pair())
    assert restarted.returncode == 0, restarted.stderr
    assert "kept" in topics(restarted.stdout.strip())

    assert script("kafka-stop.sh", folder).returncode == 0
    assert not (folder / "pid").exists()
    assert script("kafka-stop.sh", folder).returncode == 0


def test_a_taken_port_is_said_before_anything_starts(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = script("kafka-start.sh", folder, port)
    assert refused.returncode == 2
    assert f"port {port} is taken" in refused.stderr
    assert not (folder / "pid").exists()


def test_a_pid_that_belongs_to_another_program_is_left_alone(folder: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as bystander:
        (folder / "pid").write_text(str(bystander.pid), encoding="ascii")
        assert script("kafka-stop.sh", folder).returncode == 0
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.parametrize("name", ["kafka-start.sh", "kafka-stop.sh"])
def test_usage_is_said(name: str) -> None:
    done = script(name)
    assert done.returncode != 0
    assert f"usage: {name} DIR" in done.stderr


def test_unknown_system_packages_are_refused() -> None:
    done = script("install-system.sh", "core", "coffee")
    assert done.returncode == 2
    assert "unknown group 'coffee'; groups are: core slurm" in done.stderr


def test_what_is_there_is_not_installed_again() -> None:
    done = script("install-system.sh", "core")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
