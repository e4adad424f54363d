"""A wish of the cluster, over a real broker, makes a real agent look closely."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from kafka import KafkaProducer

from stethoscope.schemas.codec import decode_message
from stethoscope.schemas.control import ControlMessage, encode_control
from stethoscope.schemas.events import NodeEvent
from stethoscope.schemas.kafka_options import CONTROL, TELEMETRY

from .streaming import COMMAND, WAIT_SECS, fresh_topics, read_topic, until

pytestmark = pytest.mark.integration

CONFIG = """
node: controlled
gpu_nvml: {enabled: false}
ib_sysfs: {enabled: false}
kernel_log: {enabled: false}
host: {period_secs: 30}
"""


def periods(broker: str) -> set[float | None]:
    """At which periods the node's samples were taken."""
    events = [e for record in read_topic(broker, TELEMETRY) for e in decode_message(record.value)]
    samples = [e for e in events if isinstance(e, NodeEvent) and e.node == "controlled"]
    return {sample.period_secs for sample in samples}


def wish(broker: str, *messages: ControlMessage) -> None:
    producer = KafkaProducer(bootstrap_servers=[broker])
    for message in messages:
        key, value = encode_control(message)
        producer.send(CONTROL, key=key, value=value)
    producer.flush()
    producer.close()


def test_wishes_made_before_and_during_an_agents_life_are_followed(
    kafka_broker: str, tmp_path: Path
) -> None:
    fresh_topics(kafka_broker, 2)
    soon_ns = time.time_ns() + 600 * 10**9
    wish(kafka_broker, ControlMessage("controlled", 1.0, soon_ns))
    config = tmp_path / "agent.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    arguments = ["agent", "-c", str(config), "-b", kafka_broker, "--state-dir", str(tmp_path / "s")]
    agent = subprocess.Popen([*COMMAND, *arguments])
    try:
        until(lambda: 1.0 in periods(kafka_broker), "the wish made before was heard")
        wish(
            kafka_broker,
            ControlMessage("another", 0.3, soon_ns),
            ControlMessage("controlled", 0.5, soon_ns),
        )
        until(lambda: 0.5 in periods(kafka_broker), "the wish made now was heard")
        assert 0.3 not in periods(kafka_broker)
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(WAIT_SECS) == 0
