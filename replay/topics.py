"""Events from Kafka topics, from their beginning to what is their end now, in order of arrival.

Each partition has a consumer of its own, so that their messages can be merged by the time the
broker took them in, with bounded memory. No consumer group; nothing is committed.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import TypeAlias

from kafka import KafkaConsumer
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from msgspec import Struct
from msgspec.structs import replace

from stethoscope.schemas.codec import JSON, MSGPACK, decode_message
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import BadEvent, InputError, ServiceError
from stethoscope.schemas.events import Event
from stethoscope.schemas.kafka_options import JOBS, LOGS, TELEMETRY, client_options

SCHEME = "kafka://"
_DEFAULT_TOPICS = (TELEMETRY, LOGS, JOBS)
_BOOTSTRAP_MS = 10_000
_POLL_MS = 500
_EMPTY_POLLS = 60  # half a minute without a message that should be there
_NS_A_MS = 1_000_000

OnBad: TypeAlias = Callable[[BadEvent, str], None]


class Address(Struct, frozen=True):
    """Brokers and topics."""

    brokers: list[str]
    topics: list[str]


def parse_address(url: str) -> Address:
    """``kafka://HOST:PORT[,HOST:PORT]/[TOPIC[,TOPIC]]``; without topics, those of events.

    >>> parse_address("kafka://k1:9092/steth.logs.v1").topics
    ['steth.logs.v1']

    Raises:
        InputError: no broker, or one without a port.
    """
    brokers, _, topics = url.removeprefix(SCHEME).partition("/")
    named = [broker for broker in brokers.split(",") if broker]
    if not named or not all(broker.rpartition(":")[2].isdigit() for broker in named):
        msg = f"{url}: no broker; write {SCHEME}HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC]"
        raise InputError(msg)
    return Address(named, [name for name in topics.split(",") if name] or list(_DEFAULT_TOPICS))


def read_topics(url: str, kafka: Kafka, on_bad: OnBad) -> Iterator[Event]:
    """All events of the topics; ``received_unix_ns`` is when the broker took them in.

    Args:
        url: as ``parse_address`` reads it.
        kafka: TLS and SASL settings; its brokers are not used.
        on_bad: told of what cannot be read, with ``topic/partition@offset``.

    Raises:
        InputError: an address that is none, or a topic that does not exist.
        ServiceError: the brokers cannot be reached, or stop answering.
    """
    address = parse_address(url)
    kafka = replace(kafka, brokers=address.brokers)
    try:
        with ExitStack() as stack:
            streams = [
                _partition(stack.enter_context(closing(_consumer(kafka))), where, span, on_bad)
                for where, span in _spans(kafka, address.topics).items()
            ]
            yield from heapq.merge(*streams, key=_received)
    except KafkaError as error:
        brokers = ",".join(address.brokers)
        msg = f"kafka {brokers}: {error}; is it reachable from here?"
        raise ServiceError(msg) from error


def _consumer(kafka: Kafka) -> KafkaConsumer:
    return KafkaConsumer(
        **client_options(kafka),
        group_id=None,
        enable_auto_commit=False,
        bootstrap_timeout_ms=_BOOTSTRAP_MS,  # pyright: ignore[reportCallIssue]  # stub of version 2
    )


def _spans(kafka: Kafka, topics: list[str]) -> dict[TopicPartition, range]:
    """First offset and end of each partition that holds anything."""
    with closing(_consumer(kafka)) as consumer:
        known = consumer.topics()
        if missing := [topic for topic in topics if topic not in known]:
            msg = f"kafka topic {missing[0]} does not exist; see stethoscope topics check"
            raise InputError(msg)
        wheres = [
            TopicPartition(topic, number)
            for topic in topics
            for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        begins, ends = consumer.beginning_offsets(wheres), consumer.end_offsets(wheres)
    spans = {where: range(begins[where], ends[where]) for where in wheres}
    return {where: span for where, span in spans.items() if span}


def _partition(
    consumer: KafkaConsumer, where: TopicPartition, span: range, on_bad: OnBad
) -> Iterator[Event]:
    consumer.assign([where])
    consumer.seek(where, span.start)
    empty = 0
    while (consumer.position(where) or span.start) < span.stop:
        records = consumer.poll(timeout_ms=_POLL_MS).get(where, [])
        empty = 0 if records else empty + 1
        if empty > _EMPTY_POLLS:
            msg = f"kafka {where.topic}/{where.partition}: stopped answering; try again"
            raise ServiceError(msg)
        for record in records:
            if record.offset < span.stop:
                yield from _events(record, on_bad)


def _events(record: ConsumerRecord, on_bad: OnBad) -> Iterator[Event]:
    headers = dict(record.headers or ())
    content_type = JSON if headers.get("content-type") == JSON.encode() else MSGPACK
    try:
        events = decode_message(record.value, content_type)
    except BadEvent as error:
        on_bad(error, f"{record.topic}/{record.partition}@{record.offset}")
        return
    for event in events:
        if event.received_unix_ns is None:
            yield replace(event, received_unix_ns=record.timestamp * _NS_A_MS)
        else:
            yield event


def _received(event: Event) -> int:
    return event.received_unix_ns or event.time_unix_ns
