"""Reaching Kafka without waiting for it."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from stethoscope.agents.calls import one_line
from stethoscope.schemas.events import Event

log = logging.getLogger(__name__)

CLOSE_SECS = 5.0


class Producer(Protocol):
    """What the sender needs of ``agents.producer.EventProducer``."""

    def send(self, events: list[Event]) -> None:
        """Queue events; raises ``ServiceError``."""
        ...

    def flush(self, timeout_secs: float) -> None:
        """Wait until all are in Kafka; raises ``ServiceError``."""
        ...

    def close(self, timeout_secs: float = ...) -> None:
        """Stop."""
        ...


class Attempt:
    """One attempt to connect, which may take ten seconds, beside the spooling."""

    def __init__(self, connect: Callable[[], Producer]) -> None:
        self._connect = connect
        self.producer: Producer | None = None
        self.error: Exception | None = None
        self.ended = threading.Event()
        self._unwanted = False

    def run(self) -> None:
        """Connect; the outcome is there when ``ended`` is set."""
        try:
            self.producer = self._connect()
        except Exception as error:  # noqa: BLE001 - handed to the sending thread, which tells kinds apart
            self.error = error
        finally:
            self.ended.set()
        if self._unwanted and self.producer is not None:
            close_quietly(self.producer)

    def forget(self) -> None:
        """Its outcome is no longer wanted: what it connects, it closes."""
        self._unwanted = True


def in_a_thread(run: Callable[[], None]) -> None:
    """Run it beside the caller; nobody waits for its end."""
    threading.Thread(target=run, name="connect", daemon=True).start()


def close_quietly(producer: Producer) -> None:
    """Close a producer that is no longer of use, however long it takes."""
    try:
        producer.close(CLOSE_SECS)
    except Exception as error:  # noqa: BLE001 - what it held is in the spool
        log.info("a producer did not close: %s", one_line(error))
