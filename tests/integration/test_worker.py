"""The worker over a real broker: poison, restarts of nothing, and the whole way to a page."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaProducer

from stethoscope.schemas.codec import decode_message, encode_line, encode_message
from stethoscope.schemas.events import ClockEvent, HeartbeatEvent
from stethoscope.schemas.kafka_options import DEAD_LETTER, FINDINGS, LOGS, TELEMETRY
from stethoscope.schemas.views import Envelope

from .conftest import RunningAlertmanager
from .streaming import (
    RECORDING,
    WorkerProcess,
    expected_incidents,
    firings,
    fresh_topics,
    pages_of,
    read_topic,
    run_command,
    seen_incidents,
    until,
)

pytestmark = pytest.mark.integration
NS = 1_000_000_000
START = 1_795_968_000
PARTITIONS = 2


@pytest.fixture
def broker(kafka_broker: str) -> str:
    fresh_topics(kafka_broker, PARTITIONS)
    return kafka_broker


@pytest.fixture
def worker(broker: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    running = WorkerProcess(tmp_path, broker, PARTITIONS, "--recorded", "--snapshot-secs", "1")
    yield running
    running.close()


def _beat(secs: int) -> HeartbeatEvent:
    return HeartbeatEvent(time_unix_ns=(START + secs) * NS, node="n1", seq=secs, period_secs=1.0)


def _watermark(broker: str) -> int:
    """How far node stages have come, seconds after START."""
    envelopes = [
        msgspec.msgpack.decode(r.value, type=Envelope) for r in read_topic(broker, FINDINGS)
    ]
    marks = [e.watermark_unix_ns for e in envelopes if e.source.startswith("node/")]
    return max(marks, default=0) // NS - START


def test_poison_is_set_aside_with_its_reason_and_the_rest_goes_on(
    broker: str, worker: WorkerProcess
) -> None:
    as_json = [("content-type", b"application/json")]
    producer = KafkaProducer(bootstrap_servers=[broker], max_request_size=4_000_000)
    send = producer.send
    send(TELEMETRY, encode_message([_beat(0)]), key=b"n1")
    send(TELEMETRY, b"\xff{", key=b"n1")
    send(TELEMETRY, None, key=b"n1")
    send(LOGS, b'{"kind":"telegram","time_unix_ns":1}', key=b"n1", headers=as_json)
    send(LOGS, b'{"kind":"log","time_unix_ns":"noon"}', key=b"n1", headers=as_json)
    send(LOGS, b'{"kind":"log"', key=b"n1", headers=as_json)
    send(TELEMETRY, bytes(2_000_000), key=b"n1")
    send(TELEMETRY, encode_line(_beat(1)), key=b"n1", headers=as_json)
    for secs in range(2, 30):
        send(TELEMETRY, encode_message([_beat(secs)]), key=b"n1")
    producer.close()
    worker.start()
    until(lambda: _watermark(broker) >= 27, "the events after the poison were processed")
    dead = read_topic(broker, DEAD_LETTER)
    reasons = sorted(dict(record.headers)["reason"].decode() for record in dead)
    assert reasons == [
        "truncated",
        "unknown_kind",
        "wrong_type",
        "wrong_type",
        "wrong_type",
        "wrong_type",
    ]
    first = next(record for record in dead if record.value == b"\xff{")
    headers = dict(first.headers)
    assert (headers["topic"], headers["offset"]) == (TELEMETRY.encode(), b"1")
    assert max(len(record.value or b"") for record in dead) == 64 * 1024
    assert worker.end() == 0


def test_time_passes_in_silence(broker: str, tmp_path: Path) -> None:
    producer = KafkaProducer(bootstrap_servers=[broker])
    for secs in range(10):
        producer.send(TELEMETRY, encode_message([_beat(secs)]), key=b"n1")
    producer.close()
    worker = WorkerProcess(tmp_path, broker, PARTITIONS)
    try:
        worker.start()
        until(lambda: _watermark(broker) >= 15, "the watermark passed the last event")
        assert worker.end() == 0
    finally:
        worker.close()
    kept = [decode_message(record.value) for record in read_topic(broker, TELEMETRY)]
    clocks = [event for events in kept for event in events if isinstance(event, ClockEvent)]
    assert len(clocks) >= PARTITIONS


def test_live_incidents_equal_those_of_replay(broker: str, tmp_path: Path) -> None:
    expected = expected_incidents()
    pages = pages_of(expected)
    alertmanager = RunningAlertmanager(tmp_path)
    arguments = ["--recorded", "--alertmanager", alertmanager.url]
    worker = WorkerProcess(tmp_path, broker, PARTITIONS, *arguments)
    play = ["agent", "--source", f"replay:{RECORDING}", "--speed", "50", "--brokers", broker]
    try:
        alertmanager.start()
        worker.start()
        played = run_command(*play)
        assert played.returncode == 0, played.stderr
        until(
            lambda: seen_incidents(broker, expected) == expected,
            "live incidents equal those of replay",
        )
        alertmanager.wait_for(lambda _: pages <= firings(alertmanager).keys())
        assert worker.end() == 0
    finally:
        worker.close()
        alertmanager.close()
    assert firings(alertmanager) == dict.fromkeys(pages, 1)
    again = run_command("replay", f"kafka://{broker}", "--format", "json")
    assert {x["incident_id"]: x for x in map(msgspec.json.decode, again.stdout.splitlines())} == (
        expected
    ), again.stderr
