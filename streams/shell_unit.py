"""A unit is one stage, the partitions it reads, and how far it has read them.

Units do the same for every message: skip what the state already reflects, decode, push, advance,
send. They know offsets and envelopes; what these mean is the stages' business.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from msgspec.structs import force_setattr

from stethoscope.schemas.codec import decode_message
from stethoscope.schemas.errors import BadEvent, StethoscopeError
from stethoscope.schemas.events import Event
from stethoscope.schemas.views import Envelope
from stethoscope.streams.clock import Partition
from stethoscope.streams.shell_metrics import ENVELOPES, OFFSET_GAPS, WATERMARK
from stethoscope.streams.shell_output import Output, Received
from stethoscope.streams.snapshots import Snapshot
from stethoscope.streams.stages import EnvelopeStage, EventStage, IncidentStage

_log = logging.getLogger(__name__)
JobsBatch: TypeAlias = list[tuple[int, list[Event]]]
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


class Unit(ABC):
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

    def saved(self) -> None:  # noqa: B027 - a hook: most units have nothing to note
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

    @abstractmethod
    async def _push(self, message: Received) -> None:
        """Give the message's events or envelope to the stage."""

    @abstractmethod
    async def _advance(self) -> None:
        """Send on what the stage releases now."""

    def _trusted_ns(self, event: Event) -> int:
        received = event.received_unix_ns
        if received is not None and event.time_unix_ns > received + self._max_skew_ns:
            return received
        return event.time_unix_ns

    def _emitted(self, envelope: Envelope) -> None:
        self.watermark_unix_ns = envelope.watermark_unix_ns
        ENVELOPES.labels(self.kind).inc()
        WATERMARK.labels(self.name).set(envelope.watermark_unix_ns / 1e9)


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
