"""Sees when the worker only seems to live: reading, or committing, has stopped.

Stream processors are known to stall after rebalances, and to go on reading while commits have
stopped for ever. Nothing inside repairs that; ending the process so that a supervisor starts it
anew does.
"""

from collections.abc import Mapping

from msgspec import Struct

from stethoscope.streams.clock import Partition


class Progress(Struct, frozen=True):
    """One input partition: offsets of the next message to read, of the last commit, of the end."""

    position: int | None
    committed: int | None
    end: int


class _Seen(Struct):
    value: int | None
    since: float


class Watchdog:
    """Compares what was to happen with what did. Reads no clock itself.

    State: two numbers an input partition.
    """

    def __init__(self, stall_secs: float, commit_stall_secs: float) -> None:
        self._stall_secs = stall_secs
        self._commit_stall_secs = commit_stall_secs
        self._position: dict[Partition, _Seen] = {}
        self._committed: dict[Partition, _Seen] = {}

    def trouble(self, progress: Mapping[Partition, Progress], now: float) -> str | None:
        """What is wrong, in one line, or ``None``. ``now``: seconds, monotonic."""
        self._forget_others(progress)
        for partition, at in progress.items():
            behind = at.end > (at.position or 0)
            if self._stands(self._position, partition, at.position, now, behind) > self._stall_secs:
                return f"{_name(partition)} stands at {at.position} of {at.end}"
            owed = at.position is not None and (at.committed or 0) < at.position
            stood_secs = self._stands(self._committed, partition, at.committed, now, owed)
            if stood_secs > self._commit_stall_secs:
                return f"{_name(partition)} is read to {at.position}, committed to {at.committed}"
        return None

    def _stands(
        self,
        seen: dict[Partition, _Seen],
        partition: Partition,
        value: int | None,
        now: float,
        should_move: bool,
    ) -> float:
        """For how many seconds the value has stood still although it should move."""
        if not should_move:
            seen.pop(partition, None)
            return 0.0
        last = seen.get(partition)
        if last is None or last.value != value:
            seen[partition] = _Seen(value, now)
            return 0.0
        return now - last.since

    def _forget_others(self, progress: Mapping[Partition, Progress]) -> None:
        for seen in (self._position, self._committed):
            for partition in seen.keys() - progress.keys():
                del seen[partition]


def _name(partition: Partition) -> str:
    return f"{partition[0]} partition {partition[1]}"
