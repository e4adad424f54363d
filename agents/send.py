"""The way from the outbox to Kafka, over the spool while Kafka is away.

One thread owns producer, spool and cursor file. Each step takes what waits, sends and flushes it;
only then do the readers' positions advance on disk. When Kafka fails, what was in flight goes to
the spool; the spool is sent first when Kafka is back, and until it is empty all that is new queues
up behind it, so that the order stays. What was in flight may arrive twice: the same ids.
"""

import logging
import random
import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from stethoscope.agents.calls import one_line
from stethoscope.agents.clock import Clock
from stethoscope.agents.connect import Attempt, Producer, close_quietly, in_a_thread
from stethoscope.agents.outbox import Batch, Outbox, priority_of
from stethoscope.agents.segment import Record
from stethoscope.agents.spool import PRIORITIES, Spool
from stethoscope.agents.state import StateDir
from stethoscope.schemas.agent_config import Sending
from stethoscope.schemas.codec import decode_message, encode_message
from stethoscope.schemas.errors import BadEvent, EventRefused, ServiceError, UsageError
from stethoscope.schemas.events import Event

log = logging.getLogger(__name__)

# One message must fit the topic's limit with room for its envelope.
MAX_EVENT_BYTES = 8 * 1024 * 1024
BATCH_BYTES = 1 << 20
SAVE_SECS = 1.0
MAX_AHEAD = 64  # positions of a reader beyond its saved one
_NS = 1_000_000_000
Delivery: TypeAlias = Literal["delivered", "refused", "away"]


class SendStats(Struct):
    """What the sender did since the start."""

    sent_total: int = 0
    spooled_total: int = 0
    unsendable_total: int = 0
    failures_total: int = 0
    state_errors_total: int = 0
    connected: bool = False


class Sender:
    """Moves events on, one ``step`` at a time; ``run`` steps until told to stop."""

    def __init__(
        self,
        connect: Callable[[], Producer],
        outbox: Outbox,
        spool: Spool,
        state: StateDir,
        clock: Clock,
        config: Sending,
        seed: str = "",
        boot_id: str = "",
        spawn: Callable[[Callable[[], None]], None] = in_a_thread,
    ) -> None:
        """``connect`` makes a producer or raises ``ServiceError``; ``seed`` spreads retries.

        ``boot_id`` is that of the events, beyond whose boot positions ahead mean nothing.
        ``spawn`` runs a function that may block; in a thread, or at once in tests.
        """
        self._spawn = spawn
        self._attempt: Attempt | None = None
        self._connect = connect
        self._outbox = outbox
        self._spool = spool
        self._state = state
        self._clock = clock
        self._config = config
        self._random = random.Random(seed)  # noqa: S311 - spreads retries, guards nothing
        self._producer: Producer | None = None
        self._cursors = state.load_cursors()
        self._saved_cursors = dict(self._cursors)
        self._boot_id = boot_id
        self._ahead = state.load_ahead(boot_id)
        self._retries = 0
        self._retry_at_ns = 0
        self._part = config.batch_events
        self._save_at_ns = 0
        self._stopping = threading.Event()
        self._stale = False
        self.stats = SendStats()

    @property
    def dropped_total(self) -> int:
        """Events lost by the bounds of outbox and spool."""
        return self._outbox.dropped_total + self._spool.dropped_total

    def run(self) -> None:
        """Step until ``stop``; whatever a step raises is logged, counted and survived."""
        while not self._stopping.is_set():
            try:
                more = self.step()
            except Exception:
                log.exception("a step of sending failed")
                self.stats.failures_total += 1
                more = False
            if not more:
                self._outbox.wait(1.0)
                self._stopping.wait(self._config.linger_secs)

    def reconnect(self, connect: Callable[[], Producer]) -> None:
        """From the next step on, reach Kafka in another way."""
        self._connect = connect
        self._stale = True

    def stop(self) -> None:
        """Make ``run`` return after its step."""
        self._stopping.set()

    def finish(self) -> None:
        """Send or spool what is left, and close. The last thing that is done with a sender."""
        try:
            while batches := self._outbox.take(self._config.batch_events):
                self._forward(batches)
            self._save()
        finally:
            self._spool.close()
            self._disconnect()

    def step(self) -> bool:
        """Take and forward once, then drain once. Whether there is more to do at once."""
        if self._stale:
            self._stale = False
            self._disconnect()
            if self._attempt is not None:
                self._attempt.forget()
                self._attempt = None
            self._retry_at_ns = 0
        self._connect_if_due()
        batches = self._outbox.take(self._config.batch_events)
        if batches:
            self._forward(batches)
        drained = self._drain()
        if self._clock.now().monotonic_ns >= self._save_at_ns:
            self._save()
        return drained or sum(len(b.events) for b in batches) >= self._config.batch_events

    def _connect_if_due(self) -> None:
        due = self._clock.now().monotonic_ns >= self._retry_at_ns
        if self._producer is None and self._attempt is None and due:
            self._attempt = Attempt(self._connect)
            self._spawn(self._attempt.run)
        attempt = self._attempt
        if attempt is None or not attempt.ended.is_set():
            return
        self._attempt = None
        self._producer = attempt.producer
        self.stats.connected = attempt.producer is not None
        if attempt.error is not None:
            if not isinstance(attempt.error, ServiceError | UsageError):
                log.error("connecting failed", exc_info=attempt.error)
            self._back_off(attempt.error)

    def _forward(self, batches: list[Batch]) -> None:
        """Send at once, or queue behind what the spool holds."""
        self._announce(batches)
        events = [event for batch in batches for event in batch.events]
        if self._producer is not None and not self._spool.pending:
            delivered = self._deliver(self._producer, events) == "delivered"
            safe = delivered or self._to_spool(events)
        else:
            safe = self._to_spool(events)
        if safe:
            self._cursors.update({b.reader: b.checkpoint for b in batches if b.checkpoint})

    def _announce(self, batches: list[Batch]) -> None:
        """Write which reads are about to go out: if we die, they are read again as they were."""
        for batch in batches:
            if batch.checkpoint is not None:
                positions = [*self._ahead.get(batch.reader, []), batch.checkpoint]
                self._ahead[batch.reader] = positions[-MAX_AHEAD:]
        if not any(batch.checkpoint is not None and batch.events for batch in batches):
            return
        try:
            self._state.save_ahead(self._boot_id, self._ahead)
        except OSError as error:
            self.stats.state_errors_total += 1
            log.warning("positions ahead not saved: %s", error)

    def _deliver(self, producer: Producer, events: list[Event]) -> Delivery:
        if not events:
            return "delivered"
        try:
            producer.send(events)
            producer.flush(self._config.flush_timeout_secs)
        except EventRefused as error:
            self.stats.failures_total += 1
            self._disconnect()
            log.warning("Kafka refused a message: %s", one_line(error))
            return "refused"
        except Exception as error:  # whatever it is, the events are still ours to spool
            if not isinstance(error, ServiceError):
                log.exception("sending failed")
            self._disconnect()
            self._back_off(error)
            return "away"
        if self._retries:
            log.warning("Kafka is back; events in the spool: %d", self._spool.pending)
        self._retries = 0
        self.stats.sent_total += len(events)
        return "delivered"

    def _drain(self) -> bool:
        """Send the oldest part of the spool; whether more can be sent at once.

        The part halves with each failure and doubles with each success: so a slow line gets
        through, and an event that Kafka will never take is found, alone, and given up.
        """
        if self._producer is None or not self._spool.pending:
            return False
        records = self._spool.peek(self._part, BATCH_BYTES)
        if not records:
            return False
        delivery = self._deliver(self._producer, self._decoded(records))
        if delivery == "delivered":
            self._part = min(self._part * 2, self._config.batch_events)
        elif delivery == "refused" and len(records) == 1:
            self.stats.unsendable_total += 1
        else:
            self._part = max(1, len(records) // 2)
            return delivery == "refused"
        self._spool.ack(records[-1].seq)
        return self._spool.pending > 0

    def _decoded(self, records: list[Record]) -> list[Event]:
        events: list[Event] = []
        for record in records:
            try:
                events += decode_message(record.payload)
            except BadEvent as error:  # written by another version of the agent
                self.stats.unsendable_total += 1
                log.warning("spooled event is unreadable: %s", error)
        return events

    def _to_spool(self, events: list[Event]) -> bool:
        """Whether all events of high priority are on disk."""
        safe = True
        for priority in PRIORITIES:
            bodies = [encode_message([e]) for e in events if priority_of(e) == priority]
            fitting = [body for body in bodies if len(body) <= MAX_EVENT_BYTES]
            self.stats.unsendable_total += len(bodies) - len(fitting)
            written = self._spool.append(priority, fitting)
            self.stats.spooled_total += written
            if priority == "high" and written < len(fitting):
                log.error("spool refused events: %s", self._spool.last_error)
                safe = False
        return safe

    def _save(self) -> None:
        """Make the spool survive a power cut, then write the positions up to which it reaches."""
        self._save_at_ns = self._clock.now().monotonic_ns + round(SAVE_SECS * _NS)
        try:
            self._spool.sync()
            if self._cursors != self._saved_cursors:
                self._state.save_cursors(self._cursors)
                self._saved_cursors = dict(self._cursors)
                self._forget_ahead()
        except OSError as error:
            self.stats.state_errors_total += 1
            log.warning("positions not saved: %s", error)

    def _forget_ahead(self) -> None:
        """Positions up to the saved one are no longer ahead."""
        for reader, position in self._saved_cursors.items():
            positions = self._ahead.get(reader, [])
            if position in positions:
                self._ahead[reader] = positions[positions.index(position) + 1 :]

    def _back_off(self, error: Exception) -> None:
        """Try again after a while that doubles, spread so that nodes do not come all at once."""
        self.stats.failures_total += 1
        longest = self._config.max_retry_secs
        secs = min(longest, self._config.min_retry_secs * 2 ** min(self._retries, 16))
        secs *= self._random.uniform(0.5, 1.0)
        self._retries += 1
        self._retry_at_ns = self._clock.now().monotonic_ns + round(secs * _NS)
        if self._retries == 1:
            log.warning("Kafka is away, events go to the spool: %s", one_line(error))

    def _disconnect(self) -> None:
        self.stats.connected = False
        producer, self._producer = self._producer, None
        if producer is not None:
            self._spawn(lambda: close_quietly(producer))
