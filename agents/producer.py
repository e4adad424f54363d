"""Events into Kafka: keyed, batched, compressed, bounded, and no error swallowed."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from kafka import KafkaProducer
from kafka.errors import (
    InvalidRecordError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from stethoscope.schemas.codec import encode_message
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import EventRefused, ServiceError
from stethoscope.schemas.events import ClockEvent, Event
from stethoscope.schemas.kafka_options import (
    JOBS,
    MAX_MESSAGE_BYTES,
    TELEMETRY,
    client_options,
    key_of,
    topic_of,
)

if TYPE_CHECKING:
    from kafka.producer.future import FutureRecordMetadata

_BATCH_BYTES = 256 * 1024
_EVENTS_A_MESSAGE = 500
_PENDING_BYTES = 32 * 1024 * 1024
_CONNECT_MS = 10_000
_DELIVERY_MS = 30_000
_REFUSALS = (InvalidRecordError, MessageSizeTooLargeError, RecordListTooLargeError)
_Pending: TypeAlias = "tuple[FutureRecordMetadata, int]"


class EventProducer:
    """Sends events to the topics of ``kafka_options.topic_of``, those of one node in order.

    What ``send`` took is delivered only when a later ``flush`` returns: a caller that must not
    lose anything keeps its events until then and sends them again after a ``ServiceError``; the
    receivers drop what comes twice. Memory: at most 32 MiB wait for the brokers, then ``send``
    blocks until there is room. Not for several threads at once.
    """

    def __init__(self, kafka: Kafka) -> None:
        """Connect.

        Raises:
            ServiceError: the brokers do not answer within 10 s.
            ConfigError: a secret or certificate cannot be read.
        """
        self._where = ", ".join(kafka.brokers)
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        try:
            self._producer = KafkaProducer(
                **client_options(kafka),
                client_id="stethoscope-agent",
                enable_idempotence=True,
                acks="all",
                compression_type="lz4",
                batch_size=_BATCH_BYTES,
                linger_ms=20,
                max_request_size=MAX_MESSAGE_BYTES,
                max_block_ms=_CONNECT_MS,
                # Known since kafka-python 3; pyright has the stub of version 2.
                bootstrap_timeout_ms=_CONNECT_MS,  # pyright: ignore[reportCallIssue]
                request_timeout_ms=_CONNECT_MS,
                delivery_timeout_ms=_DELIVERY_MS,
                allow_auto_create_topics=False,
            )
        except KafkaError as error:
            msg = "does not answer"
            raise self._failed(msg, error) from error

    def send(self, events: list[Event]) -> None:
        """Queue the events; those of one node and topic travel in arrays.

        Raises:
            ServiceError: an earlier message was refused, or the brokers are away.
        """
        for topic, key, batch in _batches(events):
            self._send(topic, encode_message(batch), key, None)
        self._forget_delivered()

    def send_clock(self, time_unix_ns: int, cluster: str = "default") -> None:
        """Say that time has come this far: in every telemetry partition, and in the jobs topic.

        For recordings: it counts as heard then, so that a replay of the topics merges it there.

        Raises:
            ServiceError: as ``send``.
        """
        clock = ClockEvent(
            time_unix_ns=time_unix_ns, received_unix_ns=time_unix_ns, cluster=cluster
        )
        body = encode_message([clock])
        self._send(JOBS, body, cluster.encode(), None)
        for partition in self._partitions(TELEMETRY):
            self._send(TELEMETRY, body, None, partition)

    def flush(self, timeout_secs: float) -> None:
        """Wait until everything sent is in Kafka.

        Raises:
            ServiceError: not within the time, or a message was refused.
        """
        try:
            self._producer.flush(timeout=timeout_secs)
        except KafkaError as error:
            msg = "did not take everything in time"
            raise self._failed(msg, error) from error
        self._forget_delivered()

    def close(self, timeout_secs: float = 5.0) -> None:
        """Stop. What is not delivered by then is lost: ``flush`` first."""
        try:
            self._producer.close(timeout=timeout_secs)
        except KafkaError:
            # kafka-python 3.0.12 waits for what it holds, gives up, and leaves its thread running,
            # which spins on a broker that does not answer. There is no public way to end it.
            thread = self._producer._sender  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
            thread.force_close()
            thread.join(timeout_secs)
            if not thread.is_alive():
                self._producer.close(timeout=timeout_secs)

    def _send(self, topic: str, body: bytes, key: bytes | None, partition: int | None) -> None:
        self._make_room(len(body))
        try:
            future = self._producer.send(topic, value=body, key=key, partition=partition)
        except KafkaError as error:
            msg = f"refused a message for {topic}"
            raise self._failed(msg, error) from error
        self._pending.append((future, len(body)))
        self._pending_bytes += len(body)

    def _make_room(self, size_bytes: int) -> None:
        while self._pending and self._pending_bytes + size_bytes > _PENDING_BYTES:
            self._take(timeout_secs=_DELIVERY_MS / 1000)

    def _forget_delivered(self) -> None:
        while self._pending and self._pending[0][0].is_done:
            self._take(timeout_secs=0)

    def _take(self, timeout_secs: float) -> None:
        """Wait for the oldest message; raise if it failed."""
        future, size_bytes = self._pending.popleft()
        self._pending_bytes -= size_bytes
        try:
            future.get(timeout=timeout_secs)
        except KafkaError as error:
            msg = "did not take a message"
            raise self._failed(msg, error) from error

    def _partitions(self, topic: str) -> list[int]:
        try:
            return sorted(self._producer.partitions_for(topic))
        except KafkaError as error:
            msg = f"does not know {topic}"
            raise self._failed(msg, error) from error

    def _failed(self, what: str, error: KafkaError) -> ServiceError:
        first_line = (str(error) or type(error).__name__).splitlines()[0]  # it names its class
        kind = EventRefused if isinstance(error, _REFUSALS) else ServiceError
        return kind(f"Kafka at {self._where} {what}: {first_line}")


def _batches(events: list[Event]) -> Iterator[tuple[str, bytes, list[Event]]]:
    """Events by topic and key, each group in the order given, in arrays of bounded length."""
    groups: dict[tuple[str, bytes], list[Event]] = {}
    for event in events:
        groups.setdefault((topic_of(event), key_of(event)), []).append(event)
    for (topic, key), group in groups.items():
        for start in range(0, len(group), _EVENTS_A_MESSAGE):
            yield topic, key, group[start : start + _EVENTS_A_MESSAGE]
