"""Messages of several partitions in the order in which the broker took them.

Telemetry and logs of a node are two topics, but one story: were one read ahead of the other (after
a restart, logs of an hour may come before the first sample), everything in the other would be
late. So a message waits until no earlier one can come from any other partition.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from stethoscope.streams.clock import Partition
from stethoscope.streams.shell_output import Received


class Merge:
    """Waiting messages by partition, each partition in its own order.

    State: the waiting messages; the shell stops fetching a partition of which many wait.
    """

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._waiting: dict[Partition, deque[Received]] = {p: deque() for p in partitions}
        self._fetched: dict[Partition, int] = {}

    def begin(self, offsets: Mapping[Partition, int | None]) -> None:
        """Forget what waits: it will come again, from these offsets on."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._fetched = {p: offset for p, offset in offsets.items() if offset is not None}

    def add(self, message: Received) -> None:
        """A message was fetched; one that came before is passed over."""
        partition = message.topic, message.partition
        if message.offset >= self._fetched.get(partition, 0):
            self._fetched[partition] = message.offset + 1
            self._waiting[partition].append(message)

    def next(self, ends: Mapping[Partition, int], until_unix_ns: int) -> Received | None:
        """The earliest message, if nothing earlier can come.

        Args:
            ends: ends of partitions, as they were when ``until_unix_ns`` had passed.
            until_unix_ns: append time up to which ``ends`` tells that a partition is empty.
        """
        heads = [waiting[0] for waiting in self._waiting.values() if waiting]
        if not heads:
            return None
        first = min(heads, key=lambda m: (m.append_unix_ns, m.topic))
        for partition in self.empty():
            read_out = self._fetched.get(partition, 0) >= ends.get(partition, 1 << 63)
            if not read_out or first.append_unix_ns > until_unix_ns:
                return None
        return self._waiting[first.topic, first.partition].popleft()

    def empty(self) -> list[Partition]:
        """Partitions of which no message waits."""
        return [partition for partition, waiting in self._waiting.items() if not waiting]

    def newest_unix_ns(self) -> int:
        """Append time of the latest message that waits; 0: none does."""
        return max((w[-1].append_unix_ns for w in self._waiting.values() if w), default=0)

    def lengths(self) -> dict[Partition, int]:
        """How many messages wait, by partition."""
        return {partition: len(waiting) for partition, waiting in self._waiting.items()}
