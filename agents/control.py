"""Listens for wishes of the cluster (``steth.control.v1``) on a thread of its own."""

import logging
import threading
from collections import deque
from typing import Protocol

from msgspec import Struct

from stethoscope.agents.calls import one_line
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.control import ControlMessage, decode_control
from stethoscope.schemas.errors import BadEvent, ServiceError, UsageError

log = logging.getLogger(__name__)

POLL_SECS = 5.0
RETRY_SECS = 30.0
MAX_WAITING = 1000


class Source(Protocol):
    """Where control messages come from; ``KafkaSource`` outside of tests."""

    def poll(self, timeout_secs: float) -> list[bytes]:
        """Bodies of new messages; waits that long for one. Raises ``ServiceError``."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class ControlStats(Struct):
    """What the listener did since the start."""

    messages_total: int = 0
    bad_total: int = 0
    failures_total: int = 0


class ControlListener:
    """Keeps the newest messages for this node until the loop takes them.

    It reads the whole topic at the start: it is compacted, so a wish made while the agent was away
    is heard, and one that ran out changes nothing. Without Kafka it tries again for ever.
    """

    def __init__(self, kafka: Kafka, node: str) -> None:
        self._kafka = kafka
        self._node = node
        self._waiting: deque[ControlMessage] = deque(maxlen=MAX_WAITING)
        self._stopping = threading.Event()
        self.stats = ControlStats()

    def take(self) -> list[ControlMessage]:
        """Messages for this node since the last call, oldest first."""
        taken: list[ControlMessage] = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    def hear(self, body: bytes) -> None:
        """One message's body; those for other nodes are passed over, bad ones counted."""
        try:
            message = decode_control(body)
        except BadEvent as error:
            self.stats.bad_total += 1
            log.warning("control message is unreadable: %s", one_line(error))
            return
        if message.node == self._node:
            self.stats.messages_total += 1
            self._waiting.append(message)

    def run(self) -> None:
        """Listen until ``stop``."""
        while not self._stopping.is_set():
            try:
                self._listen(KafkaSource(self._kafka))
            except (ServiceError, UsageError) as error:
                self._failed(error)
            except Exception as error:
                log.exception("listening for control messages failed")
                self._failed(error)

    def stop(self) -> None:
        """Make ``run`` return after its poll."""
        self._stopping.set()

    def _listen(self, source: Source) -> None:
        try:
            while not self._stopping.is_set():
                for body in source.poll(POLL_SECS):
                    self.hear(body)
        finally:
            source.close()

    def _failed(self, error: Exception) -> None:
        self.stats.failures_total += 1
        log.info("no control messages for now: %s", one_line(error))
        self._stopping.wait(RETRY_SECS)


class KafkaSource:
    """All partitions of the control topic from their beginning, without a consumer group."""

    def __init__(self, kafka: Kafka) -> None:
        """Connect.

        Raises:
            ServiceError: the brokers do not answer, or the topic does not exist.
            ConfigError: a secret or certificate cannot be read.
        """
        # 16 MiB of kafka-python only where it is used.
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError
        from kafka.structs import TopicPartition

        from stethoscope.schemas.kafka_options import CONTROL, client_options

        self._error = KafkaError
        try:
            self._consumer = KafkaConsumer(
                **client_options(kafka),
                client_id="stethoscope-agent",
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                fetch_max_wait_ms=round(POLL_SECS * 1000),
                fetch_max_bytes=1 << 20,
                max_partition_fetch_bytes=1 << 18,
                metrics_enabled=False,
            )
            partitions = self._consumer.partitions_for_topic(CONTROL)
            if partitions:
                self._consumer.assign([TopicPartition(CONTROL, p) for p in sorted(partitions)])
                self._consumer.seek_to_beginning()
        except KafkaError as error:
            msg = f"Kafka at {', '.join(kafka.brokers)} does not answer: {one_line(error)}"
            raise ServiceError(msg) from error
        if not partitions:
            self._consumer.close()
            msg = f"topic {CONTROL} does not exist; run `stethoscope topics create`"
            raise ServiceError(msg)

    def poll(self, timeout_secs: float) -> list[bytes]:
        """Bodies of new messages; a tombstone is no message.

        Raises:
            ServiceError: the consumer failed.
        """
        try:
            found = self._consumer.poll(timeout_ms=round(timeout_secs * 1000))
        except self._error as error:
            msg = f"reading control messages failed: {one_line(error)}"
            raise ServiceError(msg) from error
        return [r.value for records in found.values() for r in records if r.value is not None]

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
