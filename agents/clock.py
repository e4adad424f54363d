"""The loop's clock: wall time, monotonic time and time since boot, real or fake."""

import time
from pathlib import Path
from typing import Protocol

from msgspec import Struct

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class Now(Struct, frozen=True):
    """One moment on three clocks, all in nanoseconds.

    ``boottime_ns`` counts since boot, suspend included: it is the ``seq`` of samples, so that an
    agent that restarts within a boot never goes back.
    """

    unix_ns: int
    monotonic_ns: int
    boottime_ns: int


class Clock(Protocol):
    """Where the loop takes time from."""

    def now(self) -> Now:
        """The present moment."""
        ...

    def sleep(self, secs: float) -> None:
        """Let that many seconds pass."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Now:
        """The present moment."""
        return Now(
            unix_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        )

    def sleep(self, secs: float) -> None:
        """Sleep, no time at all where ``secs`` is not positive."""
        time.sleep(max(0.0, secs))


class FakeClock:
    """A clock for tests that moves only when told to, or when someone sleeps on it.

    >>> clock = FakeClock(unix_ns=5_000_000_000)
    >>> clock.sleep(1.5)
    >>> clock.now().unix_ns
    6500000000
    """

    def __init__(
        self, unix_ns: int = 1_700_000_000_000_000_000, boottime_ns: int = 1_000_000_000_000
    ) -> None:
        self._unix_ns = unix_ns
        self._boottime_ns = boottime_ns

    def now(self) -> Now:
        """The present moment; the monotonic clock equals the boot clock."""
        return Now(self._unix_ns, self._boottime_ns, self._boottime_ns)

    def sleep(self, secs: float) -> None:
        """Advance at once."""
        self.advance(secs)

    def advance(self, secs: float) -> None:
        """Move all three clocks on."""
        self._unix_ns += round(secs * 1e9)
        self._boottime_ns += round(secs * 1e9)

    def step_wall(self, secs: float) -> None:
        """Move the wall clock alone, as an administrator or NTP does."""
        self._unix_ns += round(secs * 1e9)


def read_boot_id(path: str = BOOT_ID_PATH) -> str:
    """The kernel's boot id; empty where the system has none."""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
