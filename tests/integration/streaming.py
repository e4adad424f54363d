"""What the tests of the whole stream share: fresh topics, a worker process, reading topics."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.consumer.fetcher import ConsumerRecord

from stethoscope.schemas.config import Kafka
from stethoscope.schemas.kafka_options import INCIDENTS
from stethoscope.streams import topics

from .conftest import RunningAlertmanager

COMMAND = [sys.executable, "-m", "stethoscope.cli"]
ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "replay" / "recordings" / "h200x2_a.jsonl.gz"
# Generous: a test may share two slow cores; nothing waits this long when all is well.
WAIT_SECS = 120.0


def settings(broker: str, partitions: int) -> Kafka:
    """The broker with that many partitions."""
    return Kafka(brokers=[broker], partitions=partitions)


def fresh_topics(broker: str, partitions: int) -> Kafka:
    """All our topics, empty, and no group that remembers anything."""
    kafka = settings(broker, partitions)
    admin = KafkaAdminClient(bootstrap_servers=[broker])
    try:
        ours = [name for name in admin.list_topics() if name.startswith("steth.")]
        if ours:
            admin.delete_topics(ours)
        until(lambda: not [n for n in admin.list_topics() if n.startswith("steth.")], "deleted")
        groups = [group["group_id"] for group in admin.list_groups()]
        if kafka.group in groups:
            admin.delete_groups([kafka.group])
    finally:
        admin.close()
    topics.create(kafka)
    return kafka


def until(holds: Callable[[], bool], what: str, timeout_secs: float = WAIT_SECS) -> None:
    """Wait until it holds; fail the test when it does not in time."""
    deadline = time.monotonic() + timeout_secs
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_secs:g} s: {what}")
        time.sleep(0.2)


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The ``stethoscope`` command, to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_SECS
    )


def read_topic(broker: str, topic: str) -> list[ConsumerRecord]:
    """All messages of a topic as it is now, in order within each partition."""
    consumer = KafkaConsumer(bootstrap_servers=[broker], enable_auto_commit=False)
    try:
        wheres = [TopicPartition(topic, n) for n in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(wheres)
        consumer.seek_to_beginning(*wheres)
        ends = consumer.end_offsets(wheres)
        records: list[ConsumerRecord] = []
        while any(consumer.position(where) < ends[where] for where in wheres):
            for batch in consumer.poll(timeout_ms=500).values():
                records += batch
        return records
    finally:
        consumer.close()


def live_incidents(broker: str) -> dict[str, dict[str, object]]:
    """The last state of each incident, as published."""
    return {
        record.key.decode(): msgspec.json.decode(record.value)
        for record in read_topic(broker, INCIDENTS)
    }


def expected_incidents() -> dict[str, dict[str, object]]:
    """What ``stethoscope replay`` makes of the packaged recording, by incident id."""
    replayed = run_command("replay", str(RECORDING), "--format", "json")
    assert replayed.returncode == 0, replayed.stderr
    incidents = map(msgspec.json.decode, replayed.stdout.splitlines())
    expected = {incident["incident_id"]: incident for incident in incidents}
    assert expected
    return expected


def seen_incidents(
    broker: str, expected: dict[str, dict[str, object]]
) -> dict[str, dict[str, object]]:
    """Live incidents with the fields that replay prints."""
    fields = {field for incident in expected.values() for field in incident}
    return {
        key: {field: value for field, value in incident.items() if field in fields}
        for key, incident in live_incidents(broker).items()
    }


def pages_of(incidents: dict[str, dict[str, object]]) -> set[str]:
    """The incidents a person is told of."""
    return {key for key, incident in incidents.items() if incident["severity"] != "info"}


def firings(alertmanager: RunningAlertmanager) -> Counter[str]:
    """How often the webhook was told that an incident fires; the watchdog alert is left out."""
    alerts = [alert for alert in alertmanager.alerts() if alert["status"] == "firing"]
    return Counter(a["labels"]["incident_id"] for a in alerts if "incident_id" in a["labels"])


class WorkerProcess:
    """``stethoscope worker`` as a process of its own; its log is shown when a test fails."""

    def __init__(self, folder: Path, broker: str, partitions: int, *arguments: str) -> None:
        self._folder = folder
        config = folder / "worker.yaml"
        config.write_text(f"kafka: {{brokers: ['{broker}'], partitions: {partitions}}}\n")
        self._arguments = ["--config", str(config), "--data-dir", str(folder / "data"), *arguments]
        self.log = folder / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; does not wait."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "worker", *self._arguments], stdout=log, stderr=log
            )

    def end(self, number: int = signal.SIGTERM, timeout_secs: float = 60.0) -> int:
        """End it with a signal and give its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(timeout_secs)
        self._process = None
        return code

    def close(self) -> None:
        """Whatever happened, it does not outlive the test."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        print(self.log.read_text(encoding="utf-8")[-8000:])  # noqa: T201 - shown on failure
