"""What the shell writes to Kafka, in order, with no failed delivery unnoticed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from msgspec import Struct

from stethoscope.schemas.kafka_options import DEAD_LETTER
from stethoscope.streams.shell_metrics import DEAD_LETTERS

_DEAD_BODY_BYTES = 64 * 1024
Headers: TypeAlias = list[tuple[str, bytes]]


class Delivered(Protocol):
    """What the producer says of a message that is in Kafka."""

    @property
    def offset(self) -> int:
        """Where it stands in its partition."""


Send: TypeAlias = Callable[
    [str, bytes | None, bytes | None, int | None, Headers | None], Awaitable[Awaitable[Delivered]]
]


class Received(Struct, frozen=True):
    """One message as Kafka gave it. ``append_unix_ns``: the broker's time of appending."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    append_unix_ns: int
    content_type: str


class Output(Protocol):
    """Where units write to."""

    async def send(self, topic: str, partition: int, key: bytes | None, value: bytes) -> None:
        """Queue one message; those of one partition arrive in the order of the calls."""

    async def dead_letter(self, reason: str, detail: str, message: Received, body: bytes) -> None:
        """Set aside what could not be understood."""


class KafkaOutput:
    """``Output`` over a producer's ``send``, which gives a future for each message."""

    def __init__(self, send: Send, on_failure: Callable[[BaseException], None]) -> None:
        """``on_failure`` is told of the first delivery that fails: the worker must then end."""
        self._send = send
        self._on_failure = on_failure
        self._pending: set[asyncio.Future[Delivered]] = set()

    async def send(self, topic: str, partition: int, key: bytes | None, value: bytes) -> None:
        """Queue one message; waits only when the producer's buffer is full."""
        self._track(await self._send(topic, key, value, partition, None))

    async def send_and_wait(
        self, topic: str, partition: int, key: bytes | None, value: bytes
    ) -> int:
        """Send one message and give its offset."""
        record = await self._track(await self._send(topic, key, value, partition, None))
        return record.offset

    async def dead_letter(self, reason: str, detail: str, message: Received, body: bytes) -> None:
        """Set aside what could not be understood, with where it came from and why."""
        DEAD_LETTERS.labels(reason).inc()
        headers = [
            ("reason", reason.encode()),
            ("detail", detail[:1000].encode(errors="replace")),
            ("topic", message.topic.encode()),
            ("partition", str(message.partition).encode()),
            ("offset", str(message.offset).encode()),
        ]
        cut = body[:_DEAD_BODY_BYTES]
        self._track(await self._send(DEAD_LETTER, None, cut, None, headers))

    async def flush(self) -> None:
        """Wait until everything sent so far is in Kafka.

        Raises:
            Exception: whatever the producer says of a message that was not delivered.
        """
        if self._pending:
            await asyncio.gather(*self._pending)

    def _track(self, delivery: Awaitable[Delivered]) -> asyncio.Future[Delivered]:
        future = asyncio.ensure_future(delivery)
        self._pending.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: asyncio.Future[Delivered]) -> None:
        self._pending.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            self._on_failure(error)
