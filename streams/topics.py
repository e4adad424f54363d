"""The topics: names, partitions, retention, and bringing a cluster to that shape.

``plan`` is pure data; ``create`` and ``check`` talk to the brokers through kafka-python 3, for
which pyright has the stub of version 2.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError
from msgspec import Struct

from stethoscope.schemas import kafka_options as names
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import ServiceError

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_INCIDENTS_DAYS = 90  # compacted by incident, and forgotten long after recurrence has looked back
# A second of a large job, or the findings of a storm, may be one message of some megabytes.
_MESSAGE_BYTES = names.MAX_MESSAGE_BYTES
# A snapshot is rewritten every few seconds: small, short segments let the cleaner keep up, so
# that a restart reads some megabytes and not a day of old snapshots.
_STATE_SEGMENT_BYTES = 32 * 1024 * 1024
_STATE_SEGMENT_MS = 60_000


class Topic(Struct, frozen=True):
    """One topic as it should be."""

    name: str
    partitions: int
    replication: int
    settings: dict[str, str]


class Difference(Struct, frozen=True):
    """One thing about a topic that is not as planned. ``found`` is ``None`` where it is absent."""

    topic: str
    what: str
    wanted: str
    found: str | None

    def __str__(self) -> str:
        if self.found is None and self.what == "topic":
            return f"{self.topic}: missing; run `stethoscope topics create`"
        return f"{self.topic}: {self.what} is {self.found}, should be {self.wanted}"


def plan(kafka: Kafka) -> list[Topic]:
    """All topics for this configuration."""

    def topic(name: str, partitions: int, **settings: str | int) -> Topic:
        named = {key.replace("_", "."): str(value) for key, value in settings.items()}
        return Topic(name, partitions, kafka.replication, {"compression.type": "producer", **named})

    def kept(name: str, partitions: int, ms: int) -> Topic:
        return topic(
            name,
            partitions,
            cleanup_policy="delete",
            retention_ms=ms,
            max_message_bytes=_MESSAGE_BYTES,
            # The broker's clock is what a node's is judged by (`received_unix_ns`).
            message_timestamp_type="LogAppendTime",
        )

    return [
        kept(names.TELEMETRY, kafka.partitions, 3 * _DAY_MS),
        kept(names.LOGS, kafka.partitions, 3 * _DAY_MS),
        kept(names.JOBS, 1, 30 * _DAY_MS),
        kept(names.JOB_VIEW, kafka.partitions, 6 * _HOUR_MS),
        kept(names.FINDINGS, 1, 30 * _DAY_MS),
        topic(
            names.INCIDENTS,
            1,
            cleanup_policy="compact,delete",
            retention_ms=_INCIDENTS_DAYS * _DAY_MS,
        ),
        kept(names.DEAD_LETTER, 1, 7 * _DAY_MS),
        topic(names.CONTROL, 1, cleanup_policy="compact"),
        topic(
            names.STATE,
            kafka.partitions,
            cleanup_policy="compact",
            segment_bytes=_STATE_SEGMENT_BYTES,
            segment_ms=_STATE_SEGMENT_MS,
            min_cleanable_dirty_ratio="0.1",
        ),
    ]


def create(kafka: Kafka) -> list[str]:
    """Create the topics that are missing; leave those that exist. Returns the names created.

    Raises:
        ServiceError: the brokers cannot be reached or refuse.
    """
    with _admin(kafka) as admin:
        existing = set(admin.list_topics())
        missing = [topic for topic in plan(kafka) if topic.name not in existing]
        created = [topic.name for topic in missing if _create(admin, topic)]
        every = [topic.name for topic in plan(kafka)]
        admin.wait_for_topics(every)  # pyright: ignore[reportAttributeAccessIssue] - old stub
    return created


def check(kafka: Kafka) -> list[Difference]:
    """What differs from the plan; empty when all is well.

    Raises:
        ServiceError: the brokers cannot be reached or refuse.
    """
    with _admin(kafka) as admin:
        existing = set(admin.list_topics())
        wanted = plan(kafka)
        present = [topic for topic in wanted if topic.name in existing]
        absent = [
            Difference(topic.name, "topic", "present", None)
            for topic in wanted
            if topic.name not in existing
        ]
        return absent + list(_differences(admin, present))


def _create(admin: KafkaAdminClient, topic: Topic) -> bool:
    wanted = {
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication,
        "configs": topic.settings,
    }
    try:
        admin.create_topics({topic.name: wanted})  # pyright: ignore[reportArgumentType] - old stub
    except TopicAlreadyExistsError:  # another one was faster
        return False
    return True


def _differences(admin: KafkaAdminClient, topics: list[Topic]) -> Iterator[Difference]:
    if not topics:
        return
    described = {t["name"]: t for t in admin.describe_topics([topic.name for topic in topics])}
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic.name) for topic in topics]
    described_all = admin.describe_configs(
        resources,
        config_filter="all",  # pyright: ignore[reportCallIssue] - old stub
    )
    settings = described_all["topic"]
    for topic in topics:
        partitions = described[topic.name]["partitions"]
        if len(partitions) != topic.partitions:
            yield Difference(
                topic.name, "partition count", str(topic.partitions), str(len(partitions))
            )
        replicas = min(len(p["replica_nodes"]) for p in partitions)
        if replicas < topic.replication:
            yield Difference(topic.name, "replication", str(topic.replication), str(replicas))
        for name, value in topic.settings.items():
            found = settings[topic.name][name]["value"]
            if found != value:
                yield Difference(topic.name, name, value, found)


@contextmanager
def _admin(kafka: Kafka) -> Iterator[KafkaAdminClient]:
    where = ", ".join(kafka.brokers)
    try:
        admin = KafkaAdminClient(
            **names.client_options(kafka),
            client_id="stethoscope-topics",
            bootstrap_timeout_ms=10_000,  # pyright: ignore[reportCallIssue] - old stub
        )
    except KafkaError as error:
        remedy = "start it, or correct kafka.brokers"
        msg = f"Kafka at {where} does not answer: {_one_line(error)}; {remedy}"
        raise ServiceError(msg) from error
    try:
        yield admin
    except KafkaError as error:
        msg = f"Kafka at {where} refused: {_one_line(error)}"
        raise ServiceError(msg) from error
    finally:
        admin.close()


def _one_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]  # it names its class itself
