"""Where snapshots go and come back from: the state topic, beside the stage's own partition."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from stethoscope.schemas.config import Kafka
from stethoscope.schemas.kafka_options import STATE
from stethoscope.streams.clock import Partition, monotonic_secs
from stethoscope.streams.shell_metrics import SNAPSHOT_BYTES, SNAPSHOT_SECONDS
from stethoscope.streams.shell_output import KafkaOutput
from stethoscope.streams.shell_reading import committed_of, read_whole
from stethoscope.streams.shell_unit import Unit
from stethoscope.streams.snapshots import Snapshot, newest, to_messages

_log = logging.getLogger(__name__)
Commit = Callable[[Mapping[Partition, int]], Awaitable[object]]


class StateStore:
    """Saves and loads units.

    What a unit emitted is in Kafka before the snapshot that reflects it is; a commit follows the
    snapshot. So a crash at any point repeats work, and never skips any.
    """

    def __init__(self, kafka: Kafka, output: KafkaOutput, commit: Commit) -> None:
        self._kafka = kafka
        self._output = output
        self._commit = commit
        self._number: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self.committed: dict[Partition, int] = {}

    async def load(self, units: list[Unit]) -> None:
        """Bring units to their newest snapshots, and the group's commits to what these reflect.

        An input that no snapshot knows begins at the group's commit, else at its beginning.
        """
        messages = await read_whole(self._kafka, STATE, map(partition_of, units))
        for unit in units:
            self._restore(unit, messages[partition_of(unit)])
        offsets = [pair for unit in units for pair in unit.next_offsets.items()]
        begins = await committed_of(self._kafka, [p for p, offset in offsets if offset is None])
        for unit in units:
            known = {p: begins[p] if o is None else o for p, o in unit.next_offsets.items()}
            unit.next_offsets.update(known)
            _log.info("%s: from %s", unit.name, known)
        await self._commit_offsets(
            {p: offset for unit in units for p, offset in unit.next_offsets.items()}
        )

    def _restore(self, unit: Unit, messages: Mapping[bytes, bytes | None]) -> None:
        whole = [(key, value) for key, value in messages.items() if value is not None]
        found = newest(whole, unit.name)
        if found is None:
            return
        snapshot, self._number[unit.name] = found
        unit.restore(snapshot)
        self._saved[unit.name] = snapshot.progress()

    async def save(self, unit: Unit, commit: bool = True) -> None:
        """Store the unit as it is now, unless nothing happened since the last time."""
        async with unit.lock:
            snapshot = unit.snapshot() if self._moved(unit) else None
        if snapshot is None:
            return
        started = monotonic_secs()
        await self._output.flush()
        number = self._number.get(unit.name, -1) + 1
        messages = await asyncio.to_thread(to_messages, snapshot, number)
        for key, value in messages:
            await self._output.send(STATE, partition_of(unit), key, value)
        await self._output.flush()
        self._number[unit.name] = number
        self._saved[unit.name] = snapshot.progress()
        unit.saved()
        SNAPSHOT_BYTES.labels(unit.name).set(sum(len(value) for _, value in messages))
        SNAPSHOT_SECONDS.observe(monotonic_secs() - started)
        if commit:
            await self._commit_offsets(_offsets_of(snapshot, unit))

    def _moved(self, unit: Unit) -> bool:
        read = sum(offset or 0 for offset in unit.next_offsets.values()) + (unit.jobs_offset or 0)
        return self._saved.get(unit.name) != read

    async def _commit_offsets(self, offsets: Mapping[Partition, int | None]) -> None:
        known = {partition: offset for partition, offset in offsets.items() if offset is not None}
        await self._commit(known)
        self.committed.update(known)


def partition_of(unit: Unit) -> int:
    """The state partition of a unit: that of its inputs, so all units of a number share one."""
    return min(partition for _, partition in unit.next_offsets)


def _offsets_of(snapshot: Snapshot, unit: Unit) -> dict[Partition, int | None]:
    return {p: snapshot.offsets.get(f"{p[0]}/{p[1]}") for p in unit.next_offsets}
