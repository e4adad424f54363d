"""Reading beside the consumer group: a whole partition, the ends of partitions, the jobs topic."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from stethoscope.schemas.codec import JSON, MSGPACK
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.kafka_options import JOBS, client_options
from stethoscope.streams.clock import Partition, monotonic_secs
from stethoscope.streams.shell_output import Output, Received
from stethoscope.streams.shell_unit import JobsBatch, Unit, read_events

_POLL_MS = 200
_JOBS = TopicPartition(JOBS, 0)


@asynccontextmanager
async def group_less(kafka: Kafka) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer that belongs to no group and commits nothing."""
    consumer = AIOKafkaConsumer(
        **client_options(kafka), enable_auto_commit=False, fetch_max_wait_ms=_POLL_MS // 2
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def read_whole(
    kafka: Kafka, topic: str, partitions: Iterable[int]
) -> dict[int, dict[bytes, bytes | None]]:
    """The last value of each key in partitions of a compacted topic; a tombstone is ``None``."""
    wheres = [TopicPartition(topic, partition) for partition in sorted(set(partitions))]
    found: dict[int, dict[bytes, bytes | None]] = {where.partition: {} for where in wheres}
    async with group_less(kafka) as consumer:
        consumer.assign(wheres)
        await consumer.seek_to_beginning(*wheres)
        ends = await consumer.end_offsets(wheres)
        waiting = set(wheres)
        while waiting := {w for w in waiting if await consumer.position(w) < ends[w]}:
            for where, records in (await consumer.getmany(*waiting, timeout_ms=_POLL_MS)).items():
                found[where.partition].update((r.key or b"", r.value) for r in records)
    return found


async def ends_of(
    consumer: AIOKafkaConsumer, partitions: Iterable[Partition]
) -> dict[Partition, int]:
    """The offset after the last message of each partition."""
    found = await consumer.end_offsets([TopicPartition(*partition) for partition in partitions])
    return {(where.topic, where.partition): end for where, end in found.items()}


async def committed_of(kafka: Kafka, partitions: list[Partition]) -> dict[Partition, int]:
    """Where the group would begin to read: its commit, else the beginning."""
    if not partitions:
        return {}
    wheres = [TopicPartition(*partition) for partition in partitions]
    consumer = AIOKafkaConsumer(
        **client_options(kafka), group_id=kafka.group, enable_auto_commit=False
    )
    consumer.assign(wheres)
    await consumer.start()
    try:
        begins = await consumer.beginning_offsets(wheres)
        commits = [await consumer.committed(where) for where in wheres]
    finally:
        await consumer.stop()
    return {
        (where.topic, where.partition): begins[where] if commit is None else commit
        for where, commit in zip(wheres, commits, strict=True)
    }


def received_of(record: ConsumerRecord) -> Received:
    """A record in our own terms."""
    return received(
        record.topic,
        record.partition,
        record.offset,
        record.value,
        record.timestamp,
        dict(record.headers),
    )


def received(
    topic: str,
    partition: int,
    offset: int,
    value: bytes | None,
    timestamp_ms: int,
    headers: Mapping[str, bytes],
) -> Received:
    """A message in our own terms; msgpack unless its header says JSON."""
    content = JSON if headers.get("content-type") == JSON.encode() else MSGPACK
    return Received(topic, partition, offset, value, timestamp_ms * 1_000_000, content)


class JobsReader:
    """Reads the jobs topic whole and gives it to every unit, each from where it left off."""

    def __init__(
        self, consumer: AIOKafkaConsumer, output: Output, idle_secs: float, units: list[Unit]
    ) -> None:
        """``units`` is the living list of the shell; ``rewind`` after adding to it."""
        self._consumer = consumer
        self._output = output
        self._idle_secs = idle_secs
        self._units = units
        self._rewind = True
        self._last_message = monotonic_secs()
        self._at_end = False

    @property
    def silent(self) -> bool:
        """Read to the end, and nothing new for a while: placement is complete for now."""
        quiet_secs = monotonic_secs() - self._last_message
        return self.read_out and quiet_secs >= self._idle_secs

    @property
    def read_out(self) -> bool:
        """Read to the end: every unit knows all placement that there is."""
        return self._at_end and not self._rewind

    def rewind(self) -> None:
        """Read again from the least offset that a unit needs."""
        self._rewind = True
        self._at_end = False

    async def run(self) -> None:
        """Read for ever."""
        self._consumer.assign([_JOBS])
        while True:
            if not self._units:
                await asyncio.sleep(_POLL_MS / 1000)
                continue
            if self._rewind:
                await self._seek()
            await self._read()

    async def _seek(self) -> None:
        self._rewind = self._at_end = False
        offsets = [unit.jobs_offset for unit in self._units]
        begin = (await self._consumer.beginning_offsets([_JOBS]))[_JOBS]
        self._consumer.seek(_JOBS, max(begin, min(offset or 0 for offset in offsets)))
        self._last_message = monotonic_secs()

    async def _read(self) -> None:
        records = (await self._consumer.getmany(_JOBS, timeout_ms=_POLL_MS)).get(_JOBS, ())
        batch: JobsBatch = []
        for record in records:
            message = received_of(record)
            batch.append((record.offset, await read_events(message, self._teller(record.offset))))
        if self._rewind:  # units were added meanwhile, and these messages are not their next ones
            return
        if batch:
            self._last_message = monotonic_secs()
            await _each(self._units, lambda unit: unit.take_jobs(batch))
        end = (await self._consumer.end_offsets([_JOBS]))[_JOBS]
        self._at_end = await self._consumer.position(_JOBS) >= end
        silent = self.silent
        await _each(self._units, lambda unit: unit.set_frontier(silent))

    def _teller(self, offset: int) -> Output | None:
        """Who reports a message that cannot be read: one worker only, and only once."""
        for unit in self._units:
            if unit.kind == "cluster" and offset >= (unit.jobs_offset or 0):
                return self._output
        return None


async def _each(units: list[Unit], act: Callable[[Unit], Awaitable[None]]) -> None:
    for unit in list(units):
        await act(unit)
