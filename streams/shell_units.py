"""The three kinds of units: what each does with a message, and where its output goes."""

from collections.abc import Mapping
from typing import Protocol
from zlib import crc32

import msgspec
from msgspec.structs import replace

from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.kafka_options import FINDINGS, JOB_VIEW, LOGS, TELEMETRY
from stethoscope.schemas.views import Envelope, View
from stethoscope.streams.clock import Partition
from stethoscope.streams.shell_merge import Merge
from stethoscope.streams.shell_output import Output, Received
from stethoscope.streams.shell_unit import Unit, read_envelope, read_events
from stethoscope.streams.snapshots import Snapshot
from stethoscope.streams.stages import EnvelopeStage, EventStage, IncidentStage

_encode = msgspec.msgpack.Encoder().encode


def view_partition(job: str, partitions: int) -> int:
    """The job-view partition of a job; the same in every worker and release."""
    return crc32(job.encode()) % partitions


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
