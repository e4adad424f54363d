"""What happens once a second without a message: idleness, clock of silence, lag, watchdog."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from aiokafka import AIOKafkaConsumer

from stethoscope.schemas.codec import encode_message
from stethoscope.schemas.config import Kafka, Timing
from stethoscope.schemas.errors import ServiceError
from stethoscope.schemas.events import ClockEvent
from stethoscope.schemas.kafka_options import FINDINGS, JOBS, LOGS, TELEMETRY
from stethoscope.streams.clock import Partition, SilenceClock, monotonic_secs
from stethoscope.streams.shell_incidents import IncidentPublisher
from stethoscope.streams.shell_metrics import LAG
from stethoscope.streams.shell_output import KafkaOutput
from stethoscope.streams.shell_reading import JobsReader, ends_of
from stethoscope.streams.shell_unit import Unit
from stethoscope.streams.shell_units import ClusterUnit, JobUnit, NodeUnit
from stethoscope.streams.watchdog import Progress, Watchdog


class Settings(Protocol):
    """What the pulse reads of the shell's settings."""

    @property
    def kafka(self) -> Kafka:
        """The brokers and the partition count."""

    @property
    def timing(self) -> Timing:
        """When a partition is idle."""

    @property
    def silence_clock(self) -> bool:
        """Whether to write ``clock`` events in silence."""

    @property
    def stall_secs(self) -> float:
        """For how long reading may stand still."""

    @property
    def commit_stall_secs(self) -> float:
        """For how long commits may stand still."""


class Pulse:
    """Beats once a second. ``units`` is the shell's living list."""

    def __init__(
        self,
        settings: Settings,
        output: KafkaOutput,
        units: list[Unit],
        jobs: JobsReader,
        publisher: IncidentPublisher,
    ) -> None:
        self._settings = settings
        self._output = output
        self._units = units
        self._jobs = jobs
        self._publisher = publisher
        self._heard: dict[str, float] = {}
        self._catching_up: ClusterUnit | None = None
        self._catch_up_to: int | None = None
        self.restart()

    def restart(self) -> None:
        """The partitions were dealt anew: nothing is known of what they do."""
        settings = self._settings
        self._started = monotonic_secs()
        self._heard.clear()
        self._watchdog = Watchdog(settings.stall_secs, settings.commit_stall_secs)
        self._silence = SilenceClock(settings.timing.idle_secs)

    def heard(self, unit: Unit) -> None:
        """A message came for the unit."""
        self._heard[unit.name] = monotonic_secs()

    def catch_up(self, unit: ClusterUnit) -> None:
        """The unit was restored: tell the publisher when it has read what was there by then."""
        self._catching_up = unit
        self._catch_up_to = None

    async def beat(self, consumer: AIOKafkaConsumer, committed: Mapping[Partition, int]) -> None:
        """One second has passed.

        Raises:
            ServiceError: reading or committing has stopped for too long.
        """
        now = monotonic_secs()
        ends = await ends_of(consumer, self._watched())
        await self._say_idle(ends, now)
        await self._let_silence_pass(ends, now)
        await self._finish_catching_up(ends)
        for unit in self._units:
            if isinstance(unit, ClusterUnit):
                self._publisher.beat(unit.watermark_unix_ns)
                await self._publisher.renew_wishes()
        self._look_after(ends, committed, now)

    def _watched(self) -> set[Partition]:
        watched = {partition for unit in self._units for partition in unit.next_offsets}
        if self._keeps_time():
            watched |= self._all_of_nodes()
        return watched

    def _all_of_nodes(self) -> set[Partition]:
        count = self._settings.kafka.partitions
        return {(topic, number) for topic in (TELEMETRY, LOGS) for number in range(count)}

    def _keeps_time(self) -> bool:
        return self._settings.silence_clock and any(u.name == "job/0" for u in self._units)

    async def _say_idle(self, ends: Mapping[Partition, int], now: float) -> None:
        idle_secs = self._settings.timing.idle_secs
        for unit in list(self._units):
            quiet_secs = now - self._heard.get(unit.name, self._started)
            if not isinstance(unit, NodeUnit) or quiet_secs < idle_secs:
                continue
            if _read_out(unit, ends) and not unit.held_back:
                await unit.say_idle()

    async def _let_silence_pass(self, ends: Mapping[Partition, int], now: float) -> None:
        """The owner of partition 0 keeps time: its job stage hears every node stage's watermark."""
        if not self._keeps_time():
            return
        seen = max(unit.seen_unix_ns for unit in self._units if isinstance(unit, JobUnit))
        node_ends = {partition: ends[partition] for partition in self._all_of_nodes()}
        due = self._silence.due(node_ends, seen, now)
        if due is None:
            return
        body = encode_message([ClockEvent(time_unix_ns=due)])
        await self._output.send(JOBS, 0, None, body)
        for number in range(self._settings.kafka.partitions):
            offset = await self._output.send_and_wait(TELEMETRY, number, None, body)
            self._silence.wrote((TELEMETRY, number), offset)

    async def _finish_catching_up(self, ends: Mapping[Partition, int]) -> None:
        unit = self._catching_up
        if unit is None or unit not in self._units:
            return
        if self._catch_up_to is None:
            self._catch_up_to = ends[FINDINGS, 0]
        read_to = unit.next_offsets[FINDINGS, 0] or 0
        if read_to >= self._catch_up_to and self._jobs.read_out:
            self._catching_up = None
            async with unit.lock:
                await self._publisher.caught_up(unit.watermark_unix_ns)

    def _look_after(
        self, ends: Mapping[Partition, int], committed: Mapping[Partition, int], now: float
    ) -> None:
        progress = dict(self._progress(ends, committed))
        for (topic, number), at in progress.items():
            LAG.labels(topic, number).set(max(0, at.end - (at.position or 0)))
        trouble = self._watchdog.trouble(progress, now)
        if trouble is not None:
            msg = f"the stream stalled: {trouble}; restart the worker"
            raise ServiceError(msg)

    def _progress(
        self, ends: Mapping[Partition, int], committed: Mapping[Partition, int]
    ) -> Iterator[tuple[Partition, Progress]]:
        for unit in self._units:
            for partition, position in unit.next_offsets.items():
                if partition in ends:
                    at = Progress(position, committed.get(partition), ends[partition])
                    yield partition, at


def _read_out(unit: Unit, ends: Mapping[Partition, int]) -> bool:
    """Whether the unit has read its inputs to their ends."""
    return all(
        partition in ends and (offset or 0) >= ends[partition]
        for partition, offset in unit.next_offsets.items()
    )
