"""Replay of Kafka topics against a real broker."""

from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from stethoscope.replay import replay
from stethoscope.replay.files import read_events
from stethoscope.replay.run import DeadLetters, incident_line, run
from stethoscope.replay.sources import Sources
from stethoscope.schemas.codec import encode_line, encode_message
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import InputError
from stethoscope.schemas.events import Event
from stethoscope.schemas.kafka_options import JOBS, LOGS, TELEMETRY, key_of, topic_of
from stethoscope.streams.config import Config
from stethoscope.streams.pipeline import Pipeline

pytestmark = pytest.mark.integration
RECORDING = Path(__file__).parents[2] / "replay/recordings/h200x2_a.jsonl.gz"


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(read_events([RECORDING], lambda error, where: pytest.fail(f"{where}: {error}")))


@pytest.fixture(scope="module")
def filled(kafka_broker: str, events: list[Event]) -> str:
    """The recording in topics of several partitions: msgpack and JSON, and one poison message."""
    with closing(KafkaAdminClient(bootstrap_servers=[kafka_broker])) as admin:
        names = {f"replay.{name}" for name in (TELEMETRY, LOGS, JOBS)} | {"replay.empty"}
        admin.create_topics([NewTopic(name, 2, 1) for name in sorted(names)])
    json = [("content-type", b"application/json")]
    with closing(KafkaProducer(bootstrap_servers=[kafka_broker])) as producer:
        producer.send(f"replay.{LOGS}", b"\xff{", timestamp_ms=events[0].time_unix_ns // 10**6)
        for number, event in enumerate(events):
            as_json = number % 2
            producer.send(
                f"replay.{topic_of(event)}",
                encode_line(event) if as_json else encode_message([event]),
                key=key_of(event),
                headers=json if as_json else [],
                timestamp_ms=event.time_unix_ns // 10**6,
            )
        producer.flush()
    return kafka_broker


def test_topics_replay_as_the_file_they_came_from(filled: str, events: list[Event]) -> None:
    names = ",".join(f"replay.{name}" for name in (TELEMETRY, LOGS, JOBS))
    letters = DeadLetters()
    seen = list(Sources([f"kafka://{filled}/{names}"], Kafka()).events(letters.add, lambda _: None))
    assert len(seen) == len(events)
    assert letters.by_reason == {"wrong_type": 1} or letters.by_reason == {"not_json": 1}
    arrivals = [event.received_unix_ns or 0 for event in seen]
    assert arrivals == sorted(arrivals)
    outcome = run(seen, Pipeline(Config()), letters)
    assert [incident_line(x) for x in outcome.incidents] == [
        incident_line(x) for x in replay([RECORDING])
    ]


def test_an_empty_topic_ends_at_once(filled: str) -> None:
    sources = Sources([f"kafka://{filled}/replay.empty"], Kafka())
    assert list(sources.events(DeadLetters().add, lambda _: None)) == []


def test_a_topic_that_does_not_exist_is_named(filled: str) -> None:
    sources = Sources([f"kafka://{filled}/replay.nothing"], Kafka())
    with pytest.raises(InputError, match=r"replay\.nothing does not exist"):
        list(sources.events(DeadLetters().add, lambda _: None))
