"""The sender's clocks: wall time for what it writes, monotonic time for when it writes."""

import asyncio
import time
from contextlib import suppress
from typing import Protocol

NS = 1_000_000_000


class Clock(Protocol):
    """Where the sender takes time from."""

    def unix_ns(self) -> int:
        """Wall time, nanoseconds since 1970 UTC; may step."""
        ...

    def monotonic_secs(self) -> float:
        """Seconds since some moment; never steps."""
        ...

    async def wait(self, event: asyncio.Event, secs: float) -> None:
        """Until the event is set, at most that many seconds."""
        ...


class SystemClock:
    """The machine's clocks."""

    def unix_ns(self) -> int:
        """Wall time."""
        return time.time_ns()

    def monotonic_secs(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    async def wait(self, event: asyncio.Event, secs: float) -> None:
        """Sleep, or wake with the event."""
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), max(0.0, secs))


class FakeClock:
    """A clock for tests: moves when told to, and at once when someone waits on it.

    >>> clock = FakeClock(unix_ns=5 * NS)
    >>> clock.advance(1.5)
    >>> clock.unix_ns()
    6500000000
    """

    def __init__(self, unix_ns: int = 1_700_000_000 * NS) -> None:
        self._unix_ns = unix_ns
        self._monotonic_secs = 1000.0

    def unix_ns(self) -> int:
        """Wall time as told."""
        return self._unix_ns

    def monotonic_secs(self) -> float:
        """Monotonic time as told."""
        return self._monotonic_secs

    async def wait(self, event: asyncio.Event, secs: float) -> None:
        """Let the time pass at once, unless the event is set; others get their turn."""
        if not event.is_set():
            self.advance(secs)
        await asyncio.sleep(0)

    def advance(self, secs: float) -> None:
        """Move both clocks on."""
        self._unix_ns += round(secs * NS)
        self._monotonic_secs += secs

    def step_wall(self, secs: float) -> None:
        """Move the wall clock alone, as an administrator or NTP does."""
        self._unix_ns += round(secs * NS)
