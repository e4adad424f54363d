"""The shell of a worker: which units it has, and what keeps them going. Knows no Faust.

It is told of partitions and messages, and drives what no message causes: idle partitions, the
clock of silence, snapshots, the watchdog.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from aiokafka import AIOKafkaConsumer
from msgspec import Struct

from stethoscope.schemas.config import Kafka, Timing
from stethoscope.schemas.kafka_options import FINDINGS, INCIDENTS, JOB_VIEW, LOGS, TELEMETRY
from stethoscope.streams.clock import Partition, monotonic_secs, unix_secs
from stethoscope.streams.shell_incidents import IncidentPublisher, Offering
from stethoscope.streams.shell_metrics import MESSAGES
from stethoscope.streams.shell_output import KafkaOutput, Received
from stethoscope.streams.shell_pulse import Pulse
from stethoscope.streams.shell_reading import JobsReader, ends_of, read_whole
from stethoscope.streams.shell_state import StateStore
from stethoscope.streams.shell_unit import Unit
from stethoscope.streams.shell_units import ClusterUnit, JobUnit, NodeUnit
from stethoscope.streams.stages import EnvelopeStage, EventStage, IncidentStage

_log = logging.getLogger(__name__)
_PULSE_SECS = 1.0
_MERGE_SECS = 0.05
_MAX_WAITING = 2000
# Snapshots may take a twentieth of the time: a state that is costly to store is stored less often.
_SNAPSHOT_SHARE = 0.05


class Stages(Protocol):
    """Makes the pure stages; names and expectations of sources as in ``streams/stages.py``."""

    def node_stage(self, source: str) -> EventStage:
        """The node stage of one pair of partitions."""

    def job_stage(self, source: str, expects: list[str]) -> EnvelopeStage:
        """The job stage of one job-view partition."""

    def cluster_stage(self, expects: list[str]) -> IncidentStage:
        """The cluster stage."""


class Fetching(Protocol):
    """Stopping and resuming the flow of one partition."""

    def pause(self, partition: Partition) -> None:
        """Fetch no more of it; what was fetched still comes."""

    def resume(self, partition: Partition) -> None:
        """Fetch it again."""


class ShellSettings(Struct, frozen=True, kw_only=True):
    """What the shell needs to know. The stall times are the watchdog's.

    ``history_secs``: as the sender's ``replay_age_secs``.
    """

    kafka: Kafka
    timing: Timing
    snapshot_secs: float = 5.0
    silence_clock: bool = True
    history_secs: float = 3600.0
    stall_secs: float = 120.0
    commit_stall_secs: float = 300.0


class Shell:
    """Units by partition, and their upkeep.

    ``side`` is a consumer without a group for the jobs topic and the ends of partitions.
    """

    def __init__(
        self,
        settings: ShellSettings,
        stages: Stages,
        output: KafkaOutput,
        store: StateStore,
        sender: Offering,
        side: AIOKafkaConsumer,
        fetching: Fetching,
    ) -> None:
        self._settings = settings
        self._stages = stages
        self._output = output
        self._store = store
        self._side = side
        self._units: list[Unit] = []
        self._by_partition: dict[Partition, Unit] = {}
        self._generation = -1
        self._fetching = fetching
        self._paused: set[Partition] = set()
        self._publisher = IncidentPublisher(output, sender, unix_secs, settings.history_secs)
        self._jobs = JobsReader(side, output, settings.timing.idle_secs, self._units)
        self._pulse = Pulse(settings, output, self._units, self._jobs, self._publisher)

    async def assigned(self, partitions: Iterable[Partition], generation: int) -> None:
        """These partitions are ours now, and no others. Returns when reading may begin.

        Units are kept only when no generation of the group was missed: another worker may have
        gone on with them.
        """
        owned = set(partitions)
        missed = generation != self._generation + 1
        self._generation = generation
        for unit in list(self._units):
            if missed or not owned.issuperset(unit.next_offsets):
                self._drop(unit)
        await self._add(self._missing(owned))
        self._paused.clear()  # all partitions flow again, from the commits
        for unit in self._units:
            unit.begin()
        self._jobs.rewind()
        self._pulse.restart()
        _log.info("units: %s", ", ".join(unit.name for unit in self._units) or "none")

    async def take(self, message: Received) -> None:
        """One message of an input; of a partition that is not ours it is somebody else's."""
        unit = self._by_partition.get((message.topic, message.partition))
        if unit is None:
            return
        MESSAGES.labels(message.topic).inc()
        self._pulse.heard(unit)
        await unit.take(message)
        self._mind_waiting(unit)

    async def save(self, commit: bool = True) -> None:
        """Snapshots of all units."""
        for unit in list(self._units):
            await self._store.save(unit, commit)

    async def run(self) -> None:
        """The upkeep, for ever.

        Raises:
            ServiceError: the watchdog saw a stall.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._jobs.run())
            tasks.create_task(self._run_merging())
            tasks.create_task(self._run_pulse())
            tasks.create_task(self._run_snapshots())

    async def _run_merging(self) -> None:
        """Tell units, again and again, which of their inputs have nothing more for now."""
        while True:
            await asyncio.sleep(_MERGE_SECS)
            units = [unit for unit in self._units if isinstance(unit, NodeUnit)]
            until = {unit: at for unit in units if (at := unit.merge.newest_unix_ns())}
            empty = [partition for unit in until for partition in unit.merge.empty()]
            if not empty:
                continue
            ends = await ends_of(self._side, empty)
            for unit, at in until.items():
                await unit.drain(ends, at)
                self._mind_waiting(unit)

    def _mind_waiting(self, unit: Unit) -> None:
        """Stop fetching a partition of which too many messages wait for the other; go on later."""
        for partition, count in unit.merge.lengths().items() if isinstance(unit, NodeUnit) else ():
            if count > _MAX_WAITING and partition not in self._paused:
                self._paused.add(partition)
                self._fetching.pause(partition)
            elif count <= _MAX_WAITING // 2 and partition in self._paused:
                self._paused.discard(partition)
                self._fetching.resume(partition)

    async def _run_pulse(self) -> None:
        while True:
            await asyncio.sleep(_PULSE_SECS)
            await self._pulse.beat(self._side, self._store.committed)

    async def _run_snapshots(self) -> None:
        pause_secs = self._settings.snapshot_secs
        while True:
            await asyncio.sleep(pause_secs)
            started = monotonic_secs()
            await self.save()
            took_secs = monotonic_secs() - started
            pause_secs = max(self._settings.snapshot_secs, took_secs / _SNAPSHOT_SHARE)

    def _missing(self, owned: set[Partition]) -> list[Unit]:
        """New units for what is owned and has none."""
        made: dict[Partition, Unit] = {}
        for partition in sorted(owned - self._by_partition.keys()):
            if partition not in made:
                unit = self._make(partition, owned)
                made.update(dict.fromkeys(unit.next_offsets, unit))
        return list({unit.name: unit for unit in made.values()}.values())

    def _make(self, partition: Partition, owned: set[Partition]) -> Unit:
        topic, number = partition
        count = self._settings.kafka.partitions
        skew_secs = self._settings.timing.max_skew_secs
        nodes = [f"node/{i}" for i in range(count)]
        if topic in (TELEMETRY, LOGS):
            if not owned.issuperset({(TELEMETRY, number), (LOGS, number)}):
                msg = f"telemetry and logs of partition {number} went to different workers"
                raise RuntimeError(msg)
            node_stage = self._stages.node_stage(f"node/{number}")
            return NodeUnit(number, count, node_stage, self._output, skew_secs)
        if topic == JOB_VIEW:
            job_stage = self._stages.job_stage(f"job/{number}", nodes)
            return JobUnit(number, job_stage, self._output, skew_secs)
        if topic == FINDINGS:
            jobs = [f"job/{i}" for i in range(count)]
            cluster_stage = self._stages.cluster_stage(nodes + jobs)
            return ClusterUnit(cluster_stage, self._output, skew_secs, self._publisher)
        msg = f"no stage reads {topic}"
        raise RuntimeError(msg)

    async def _add(self, units: list[Unit]) -> None:
        if units:
            await self._store.load(units)
        for unit in units:
            if isinstance(unit, ClusterUnit):
                published = (await read_whole(self._settings.kafka, INCIDENTS, [0]))[0]
                known = [(key, body) for key, body in published.items() if body is not None]
                self._publisher.begin(known, unit.watermark_unix_ns)
                self._pulse.catch_up(unit)
            self._units.append(unit)
            self._by_partition.update(dict.fromkeys(unit.next_offsets, unit))

    def _drop(self, unit: Unit) -> None:
        if isinstance(unit, ClusterUnit):
            self._publisher.end()
        self._units.remove(unit)
        for partition in unit.next_offsets:
            del self._by_partition[partition]
