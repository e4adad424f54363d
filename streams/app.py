"""The worker's process: a Faust app that feeds the shell, and a clean way to start and end it.

Faust brings the consumer group, the rebalances and the fetching; one agent a topic hands each raw
message to the shell. Its tables, codecs, acknowledgements and web server are not used: what the
state reflects is committed with the snapshots (docs/kafka.md).
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterable, Awaitable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Protocol, cast

import faust
from aiokafka.errors import KafkaError
from faust.app.base import BootStrategy
from faust.transport.consumer import Consumer
from faust.types import TP, EventT, StreamT
from msgspec import Struct
from yarl import URL

from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import ServiceError
from stethoscope.schemas.kafka_options import (
    FINDINGS,
    JOB_VIEW,
    LOGS,
    MAX_MESSAGE_BYTES,
    TELEMETRY,
)
from stethoscope.schemas.secrets import read_secret, tls_context
from stethoscope.streams.clock import Partition
from stethoscope.streams.shell import Shell, ShellSettings, Stages
from stethoscope.streams.shell_incidents import Offering
from stethoscope.streams.shell_output import Delivered, Headers, KafkaOutput
from stethoscope.streams.shell_reading import group_less, received
from stethoscope.streams.shell_state import StateStore

_log = logging.getLogger(__name__)
_INPUTS = (TELEMETRY, LOGS, JOB_VIEW, FINDINGS)
_STOP_SECS = 8.0


class RunningSender(Offering, Protocol):
    """``sinks.sender.Sender``: takes incidents, and sends them beside the worker."""

    async def run(self) -> None:
        """Send, until cancelled."""

    async def close(self) -> None:
        """Close connections."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """What a worker process is told. ``data_dir``: Faust's scratch directory, nothing of ours."""

    shell: ShellSettings
    data_dir: Path


class _Boot(BootStrategy):
    """Without Faust's web server, which would listen on all addresses."""

    enable_web = False


class _App(faust.App):
    BootStrategy = _Boot


def make_app(settings: WorkerSettings) -> faust.App:
    """The Faust app, with no agents yet."""
    kafka = settings.shell.kafka
    return _App(
        kafka.group,
        broker=[URL(f"kafka://{broker}") for broker in kafka.brokers],
        broker_credentials=_credentials(kafka),
        # Shorter than the default 60 s: a dead worker's partitions move sooner.
        broker_session_timeout=10.0,
        broker_heartbeat_interval=2.0,
        consumer_auto_offset_reset="earliest",
        # An empty string would be a static member id, and two such workers fence each other.
        consumer_group_instance_id=None,
        producer_acks=-1,
        producer_compression_type="lz4",
        producer_max_request_size=MAX_MESSAGE_BYTES,
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_wait_empty=False,
        web_enabled=False,
        web_host="127.0.0.1",
        datadir=str(settings.data_dir),
        autodiscover=False,
    )


async def run_worker(
    settings: WorkerSettings, stages: Stages, sender: RunningSender, stop: asyncio.Event
) -> None:
    """Run until ``stop`` is set, then save everything and leave the group.

    Raises:
        ServiceError: the stream stalled, Kafka refused a message, or Faust gave up.
    """
    worker = _Worker(settings, stop)
    try:
        async with AsyncExitStack() as stack:
            await worker.start(stack, stages, sender)
            await worker.serve(sender)
    except KafkaError as error:
        raise ServiceError(f"Kafka failed: {_reason(error)}") from error


class _Worker:
    """One run of the Faust app and the shell."""

    def __init__(self, settings: WorkerSettings, stop: asyncio.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._failure: BaseException | None = None
        self._app = make_app(settings)
        self._shell: Shell | None = None

    async def start(self, stack: AsyncExitStack, stages: Stages, sender: RunningSender) -> None:
        kafka = self._settings.shell.kafka
        side = await stack.enter_async_context(group_less(kafka))
        output = KafkaOutput(self._send, self._fail)
        store = StateStore(kafka, output, self._commit)
        self._shell = Shell(self._settings.shell, stages, output, store, sender, side, self)
        for topic in _INPUTS:
            self._add_agent(topic, self._shell)
        self._app.on_partitions_revoked.connect(self._on_revoked)
        self._app.on_rebalance_complete.connect(self._on_rebalance_complete)
        stack.push_async_callback(sender.close)
        stack.push_async_callback(self._stop_app)
        await self._app.start()

    async def serve(self, sender: RunningSender) -> None:
        """Until told to stop, or until something fails."""
        assert self._shell is not None  # noqa: S101 - start comes first
        upkeep = asyncio.create_task(self._shell.run())
        sending = asyncio.create_task(sender.run())
        faust_watch = asyncio.create_task(self._watch_faust())
        tasks = (upkeep, sending, faust_watch)
        for task in tasks:
            task.add_done_callback(self._ended)
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure is not None:
            raise ServiceError(f"the worker ended: {_reason(self._failure)}") from self._failure
        with suppress(TimeoutError):
            await asyncio.wait_for(self._shell.save(), _STOP_SECS / 2)

    def pause(self, partition: Partition) -> None:
        """As ``shell.Fetching``."""
        self._app.consumer.pause_partitions([TP(*partition)])

    def resume(self, partition: Partition) -> None:
        """As ``shell.Fetching``."""
        self._app.consumer.resume_partitions([TP(*partition)])

    def _add_agent(self, topic: str, shell: Shell) -> None:
        app = self._app
        channel = app.topic(
            topic,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            acks=False,  # commits follow the snapshots
            allow_empty=True,
        )

        async def agent(stream: StreamT[bytes]) -> None:
            # Declared as a coroutine that gives an iterable; it is the iterable.
            async for event in cast("AsyncIterable[EventT[bytes]]", stream.events()):
                message = event.message
                # What was fetched before a rebalance comes again after it, in order.
                if message.generation_id == app.consumer_generation_id:
                    await shell.take(
                        received(
                            message.topic,
                            message.partition,
                            message.offset,
                            message.value,
                            round(message.timestamp * 1000),
                            dict(message.headers or ()),
                        )
                    )

        app.agent(channel, name=f"stethoscope.{topic}", concurrency=1)(agent)

    async def _on_revoked(self, *_: object, **__: object) -> None:
        """Leave the state as far as we got, so that the next owner repeats little."""
        if self._shell is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._shell.save(commit=False), _STOP_SECS / 2)

    async def _on_rebalance_complete(self, *_: object, **__: object) -> None:
        """Faust seeks to the commits when this returns: the shell has set them to its states."""
        if self._shell is not None:
            assignment = self._app.consumer.assignment()
            owned = [(tp.topic, tp.partition) for tp in assignment if tp.topic in _INPUTS]
            await self._shell.assigned(owned, self._app.consumer_generation_id)

    async def _send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Headers | None,
    ) -> Awaitable[Delivered]:
        producer = self._app.producer
        delivery: Awaitable[Delivered] = await producer.send(
            topic, key, value, partition, None, headers
        )
        return delivery

    async def _commit(self, offsets: Mapping[Partition, int]) -> object:
        wanted = {TP(topic, number): offset for (topic, number), offset in offsets.items()}
        consumer = cast("Consumer", self._app.consumer)
        return await consumer._commit(wanted)  # noqa: SLF001 - no public way commits by offset

    async def _watch_faust(self) -> None:
        while not self._app.crashed:
            await asyncio.sleep(0.5)
        self._fail(self._app.crash_reason or RuntimeError("Faust crashed"))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            _log.error("fatal: %s", _reason(error), exc_info=error)
            self._failure = error
        self._stop.set()

    async def _stop_app(self) -> None:
        try:
            await asyncio.wait_for(self._app.stop(), _STOP_SECS)
        except TimeoutError:
            # Known to hang after failed rebalances; everything that counts is saved.
            _log.warning("Faust did not stop within %g s; leaving", _STOP_SECS)
            os._exit(1 if self._failure else 0)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT set the event."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _credentials(kafka: Kafka) -> faust.SASLCredentials | faust.SSLCredentials | None:
    context = tls_context(kafka.tls) if kafka.tls is not None else None
    if kafka.sasl is not None:
        return faust.SASLCredentials(
            username=kafka.sasl.username,
            password=read_secret(kafka.sasl.password),
            mechanism=kafka.sasl.mechanism,
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context is not None else None


def _reason(error: BaseException) -> str:
    """The first error inside a group of them, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".splitlines()[0]
