"""A unit is one stage, the partitions it reads, and how far it has read them.

Units do the same for every message: skip what the state already reflects, decode, push, advance,
send. They know offsets and envelopes; what these mean is the stages' business.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias
from zlib import crc32

import msgspec
from msgspec.structs import force_setattr, replace

from stethoscope.schemas.codec import decode_message
from stethoscope.schemas.errors import BadEvent, StethoscopeError
from stethoscope.schemas.events import Event
from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.kafka_options import FINDINGS, JOB_VIEW, LOGS, TELEMETRY
from stethoscope.schemas.views import Envelope, View
from stethoscope.streams.clock import Partition
from stethoscope.streams.shell_merge import Merge
from stethoscope.streams.shell_metrics import ENVELOPES, OFFSET_GAPS, WATERMARK
from stethoscope.streams.shell_output import Output, Received
from stethoscope.streams.snapshots import Snapshot
from stethoscope.streams.stages import EnvelopeStage, EventStage, IncidentStage

_log = logging.getLogger(__name__)
JobsBatch: TypeAlias = list[tuple[int, list[Event]]]
_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


def view_partition(job: str, partitions: int) -> int:
    """The job-view partition of a job; the same in every worker and release."""
    return crc32(job.encode()) % partitions


class Unit:
    """What all units share: offsets, the jobs topic, snapshots. Not used by itself.

    ``lock`` is held from push to send: two messages at once would send envelopes out of order.
    """

    kind = ""

    def __init__(
        self,
        name: str,
        inputs: Iterable[Partition],
        stage: EventStage | EnvelopeStage | IncidentStage,
        output: Output,
        max_skew_secs: float,
    ) -> None:
        self.name = name
        self.next_offsets: dict[Partition, int | None] = dict.fromkeys(inputs)
        self.jobs_offset: int | None = None
        self.jobs_unix_ns = 0
        self.watermark_unix_ns = 0
        self.lock = asyncio.Lock()
        self._frontier_ns: int | None = 0
        self._stage = stage
        self._output = output
        self._max_skew_ns = round(max_skew_secs * 1e9)

    async def take(self, message: Received) -> None:
        """One message of an input."""
        async with self.lock:
            await self._take(message)

    def begin(self) -> None:
        """Reading (again) begins at ``next_offsets``; placement is known as far as it was read."""
        self._frontier_ns = self.jobs_unix_ns
        self._stage.set_frontier(self._frontier_ns)

    async def take_jobs(self, batch: JobsBatch) -> None:
        """Messages of the jobs topic, as (offset, events); those known are passed over."""
        async with self.lock:
            for offset, events in batch:
                if self.jobs_offset is not None and offset < self.jobs_offset:
                    continue
                self.jobs_offset = offset + 1
                self.jobs_unix_ns = max(self.jobs_unix_ns, *map(self._trusted_ns, events), 0)
                self._stage.push_cluster(events)
                self._frontier_ns = self.jobs_unix_ns
                self._stage.set_frontier(self._frontier_ns)
                await self._advance()

    async def set_frontier(self, jobs_silent: bool) -> None:
        """Let the stage run ahead of a jobs topic that is read to its end and silent."""
        async with self.lock:
            self._frontier_ns = None if jobs_silent else self.jobs_unix_ns
            self._stage.set_frontier(self._frontier_ns)
            await self._advance()

    def snapshot(self) -> Snapshot:
        """The stage and what it reflects. Call with the lock held."""
        known = {_key(p): offset for p, offset in self.next_offsets.items() if offset is not None}
        return Snapshot(
            stage=self.name,
            offsets=known,
            jobs_offset=self.jobs_offset,
            jobs_unix_ns=self.jobs_unix_ns,
            watermark_unix_ns=self.watermark_unix_ns,
            state=self._stage.snapshot(),
        )

    def saved(self) -> None:
        """The last snapshot is in Kafka."""

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the snapshot says."""
        for partition in self.next_offsets:
            self.next_offsets[partition] = snapshot.offsets.get(_key(partition))
        self.watermark_unix_ns = snapshot.watermark_unix_ns
        try:
            self._stage.restore(snapshot.state)
        except (msgspec.DecodeError, StethoscopeError) as error:
            # Of another release. To read everything again would page history; to stop, nothing.
            _log.error("%s: its state cannot be read, it begins anew: %s", self.name, error)
            return
        self.jobs_offset = snapshot.jobs_offset
        self.jobs_unix_ns = snapshot.jobs_unix_ns

    async def _take(self, message: Received) -> None:
        if not self._is_new(message):
            return
        try:
            await self._push(message)
        except Exception as error:  # noqa: BLE001 - one message must not end the worker
            _log.exception("%s failed at offset %d", self.name, message.offset)
            body = message.value or b""
            await self._output.dead_letter("stage_failed", repr(error), message, body)
        await self._advance()

    def _is_new(self, message: Received) -> bool:
        partition = message.topic, message.partition
        expected = self.next_offsets[partition]
        if expected is not None and message.offset < expected:
            return False
        if expected is not None and message.offset > expected:
            OFFSET_GAPS.labels(message.topic).inc(message.offset - expected)
        self.next_offsets[partition] = message.offset + 1
        return True

    async def _push(self, message: Received) -> None:
        raise NotImplementedError

    async def _advance(self) -> None:
        raise NotImplementedError

    def _trusted_ns(self, event: Event) -> int:
        received = event.received_unix_ns
        if received is not None and event.time_unix_ns > received + self._max_skew_ns:
            return received
        return event.time_unix_ns

    def _emitted(self, envelope: Envelope) -> None:
        self.watermark_unix_ns = envelope.watermark_unix_ns
        ENVELOPES.labels(self.kind).inc()
        WATERMARK.labels(self.name).set(envelope.watermark_unix_ns / 1e9)


class NodeUnit(Unit):
    """The node stage of one pair of telemetry and logs partitions."""

    kind = "node"

    def __init__(
        self,
        partition: int,
        partitions: int,
        stage: EventStage,
        output: Output,
        max_skew_secs: float,
    ) -> None:
        inputs = [(TELEMETRY, partition), (LOGS, partition)]
        super().__init__(f"node/{partition}", inputs, stage, output, max_skew_secs)
        self._event_stage = stage
        self._partitions = partitions
        self._newest_unix_ns = 0
        self._last_message: Received | None = None
        self.merge = Merge(inputs)

    @property
    def held_back(self) -> bool:
        """Whether the stage holds events only because the jobs topic was not read that far."""
        return self._frontier_ns is not None and self._newest_unix_ns > self._frontier_ns

    def begin(self) -> None:
        """As in ``Unit``."""
        super().begin()
        self.merge.begin(self.next_offsets)

    async def take(self, message: Received) -> None:
        """One message of an input; it waits here for earlier ones of the other."""
        async with self.lock:
            self.merge.add(message)
            await self._drain({}, 0)

    async def drain(self, ends: Mapping[Partition, int], until_unix_ns: int) -> None:
        """Take what waits, knowing where the inputs ended when that time had passed."""
        async with self.lock:
            await self._drain(ends, until_unix_ns)

    async def _drain(self, ends: Mapping[Partition, int], until_unix_ns: int) -> None:
        while (message := self.merge.next(ends, until_unix_ns)) is not None:
            await self._take(message)

    async def say_idle(self) -> None:
        """Tell all receivers not to wait for this partition."""
        async with self.lock:
            idle = Envelope(source=self.name, watermark_unix_ns=self.watermark_unix_ns, idle=True)
            await self._send(idle)

    def snapshot(self) -> Snapshot:
        """As in ``Unit``."""
        return replace(super().snapshot(), newest_unix_ns=self._newest_unix_ns)

    def restore(self, snapshot: Snapshot) -> None:
        """As in ``Unit``."""
        super().restore(snapshot)
        self._newest_unix_ns = snapshot.newest_unix_ns

    async def _push(self, message: Received) -> None:
        events = await read_events(message, self._output)
        if events:
            self._newest_unix_ns = max(self._newest_unix_ns, *map(self._trusted_ns, events))
            self._event_stage.push(events)
        self._last_message = message

    async def _advance(self) -> None:
        for envelope in self._event_stage.advance():
            await self._send(envelope)
            self._emitted(envelope)
        if self._last_message is None:
            return
        for reject in self._event_stage.drain_rejects():
            # The stage finds out seconds later: the message named is where it did, about.
            await self._output.dead_letter(
                reject.reason, reject.detail, self._last_message, reject.body
            )

    async def _send(self, envelope: Envelope) -> None:
        """Views to the partitions of their jobs, findings to the one, the watermark to all."""
        views: list[list[View]] = [[] for _ in range(self._partitions)]
        for view in envelope.views:
            views[view_partition(view.job, self._partitions)].append(view)
        for partition, own in enumerate(views):
            body = _encode(replace(envelope, views=own, findings=[]))
            await self._output.send(JOB_VIEW, partition, self.name.encode(), body)
        body = _encode(replace(envelope, views=[]))
        await self._output.send(FINDINGS, 0, self.name.encode(), body)


class JobUnit(Unit):
    """The job stage of one job-view partition. ``seen_unix_ns``: the highest watermark it got."""

    kind = "job"

    def __init__(
        self, partition: int, stage: EnvelopeStage, output: Output, max_skew_secs: float
    ) -> None:
        super().__init__(f"job/{partition}", [(JOB_VIEW, partition)], stage, output, max_skew_secs)
        self._envelope_stage = stage
        self.seen_unix_ns = 0

    async def _push(self, message: Received) -> None:
        envelope = await read_envelope(message, self._output)
        if envelope is not None:
            self.seen_unix_ns = max(self.seen_unix_ns, envelope.watermark_unix_ns)
            self._envelope_stage.push(envelope)

    async def _advance(self) -> None:
        for envelope in self._envelope_stage.advance():
            body = _encode(replace(envelope, views=[]))
            await self._output.send(FINDINGS, 0, self.name.encode(), body)
            self._emitted(envelope)


class Publisher(Protocol):
    """Where the cluster unit's incident changes go, and what it keeps in the unit's snapshot."""

    async def publish(self, incident: Incident, watermark_unix_ns: int) -> None:
        """One change of one incident."""

    def snapshot(self) -> bytes:
        """Its own state."""

    def saved(self) -> None:
        """The last snapshot is in Kafka."""

    def restore(self, state: bytes) -> None:
        """Become what ``snapshot`` described."""


class ClusterUnit(Unit):
    """The cluster stage, of the findings partition. Its watermark is the highest it was sent."""

    kind = "cluster"

    def __init__(
        self, stage: IncidentStage, output: Output, max_skew_secs: float, publisher: Publisher
    ) -> None:
        super().__init__("cluster", [(FINDINGS, 0)], stage, output, max_skew_secs)
        self._incident_stage = stage
        self._publisher = publisher

    async def _push(self, message: Received) -> None:
        envelope = await read_envelope(message, self._output)
        if envelope is not None:
            self.watermark_unix_ns = max(self.watermark_unix_ns, envelope.watermark_unix_ns)
            self._incident_stage.push(envelope)

    async def _advance(self) -> None:
        for incident in self._incident_stage.advance():
            await self._publisher.publish(incident, self.watermark_unix_ns)

    def snapshot(self) -> Snapshot:
        """As in ``Unit``, with the publisher's state beside it."""
        return replace(super().snapshot(), extra=self._publisher.snapshot())

    def saved(self) -> None:
        """As in ``Unit``."""
        self._publisher.saved()

    def restore(self, snapshot: Snapshot) -> None:
        """As in ``Unit``."""
        super().restore(snapshot)
        self._publisher.restore(snapshot.extra)


async def read_events(message: Received, output: Output | None) -> list[Event]:
    """The message's events, stamped with when Kafka took them; none where it cannot be read.

    ``output`` takes what cannot be read; ``None``: somebody else does.
    """
    try:
        events = decode_message(message.value, message.content_type)
    except BadEvent as error:
        if output is not None:
            await output.dead_letter(error.reason, error.detail, message, message.value or b"")
        return []
    for event in events:
        if event.received_unix_ns is None:
            # Nobody else holds these events yet, and a copy of each would cost as much as decoding.
            force_setattr(event, "received_unix_ns", message.append_unix_ns)
    return events


async def read_envelope(message: Received, output: Output) -> Envelope | None:
    """The message's envelope; ``None`` where it cannot be read."""
    try:
        return _decode_envelope(message.value or b"")
    except msgspec.DecodeError as error:
        await output.dead_letter("wrong_type", str(error), message, message.value or b"")
        return None


def _key(partition: Partition) -> str:
    return f"{partition[0]}/{partition[1]}"
