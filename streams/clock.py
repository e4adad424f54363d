"""Wall time for the shell, and the clock that lets silence pass.

The pure stages know event time only. When no node sends anything any more, time must still pass
for them (a job that hangs with all its nodes silent is a fault): then one worker writes ``clock``
events into the log, where the stages, and replay, see them as they see everything else.
"""

import time
from collections.abc import Mapping
from typing import TypeAlias

NS = 1_000_000_000
Partition: TypeAlias = tuple[str, int]


def monotonic_secs() -> float:
    """Seconds on a clock that never goes back."""
    return time.monotonic()


def unix_secs() -> float:
    """Wall time, seconds since 1970 UTC: for what people are told, never for what is judged."""
    return time.time()


class SilenceClock:
    """Decides when ``clock`` events are due, and of what time. Reads no clock itself.

    All partitions are silent when their ends have not moved for ``idle_secs``, our own ``clock``
    events left out. From then on the time due is the last watermark and the seconds gone by.
    """

    def __init__(self, idle_secs: float) -> None:
        self._idle_secs = idle_secs
        self._ends: dict[Partition, int] = {}
        self._quiet_since = float("-inf")
        self._base_unix_ns: int | None = None

    def due(self, ends: Mapping[Partition, int], watermark_unix_ns: int, now: float) -> int | None:
        """The event time to write now, or ``None`` where something was sent or nothing ever was.

        Args:
            ends: end offsets of all telemetry and logs partitions.
            watermark_unix_ns: the highest that any node stage has sent; 0: none yet.
            now: seconds, monotonic.
        """
        if dict(ends) != self._ends:
            self._ends = dict(ends)
            self._quiet_since = now
            self._base_unix_ns = None
            return None
        quiet_secs = now - self._quiet_since
        if quiet_secs < self._idle_secs or not watermark_unix_ns:
            return None
        if self._base_unix_ns is None:
            self._base_unix_ns = watermark_unix_ns
        return self._base_unix_ns + int(quiet_secs) * NS

    def wrote(self, partition: Partition, offset: int) -> None:
        """Our own ``clock`` event landed there: that is no sign of life.

        Where another message landed before it, the ends differ at the next look: a sign of life.
        """
        if self._ends.get(partition) == offset:
            self._ends[partition] = offset + 1
