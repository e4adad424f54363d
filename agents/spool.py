"""A bounded queue of events on disk, for the time that Kafka is away.

Two families of segment files, ``high`` (logs and changes of state) and ``low`` (samples), share one
rising sequence number, so that reading merges them in the order of appending and one number says
what has been delivered. Over the bound the oldest segment of ``low`` goes first.

A record that is torn or damaged is skipped and counted. After a restart appending begins a new
segment, so a torn end is never written over.
"""

import heapq
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from stethoscope.agents.segment import HEAD_BYTES, Parsed, Record, encode_record, parse_segment
from stethoscope.agents.state import read_json, write_atomically

Priority: TypeAlias = Literal["high", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "low")


class _Segment:
    """One file of a family. ``start`` is the offset of its first record that is not yet acked."""

    def __init__(self, path: Path, first_seq: int) -> None:
        self.path = path
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.size = 0
        self.start = 0


class SpoolCounts(Struct):
    """What the spool did since the agent's first start on this state directory."""

    acked_seq: int = 0
    dropped_total: int = 0
    torn_total: int = 0


class Spool:
    """Bounded, checksummed, ordered; survives ``kill -9`` at any byte.

    Bounds: ``max_bytes`` on disk over both families; in memory one segment while reading.
    Not safe for use from several threads at once.
    """

    def __init__(self, folder: Path, max_bytes: int, segment_bytes: int) -> None:
        """Open or create the spool in ``folder``.

        Raises:
            OSError: the folder cannot be made or read.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._counts = read_json(folder / "ack.json", SpoolCounts) or SpoolCounts()
        self._segments: dict[Priority, list[_Segment]] = {}
        self._open: dict[Priority, int | None] = {"high": None, "low": None}
        self._dirty: set[Priority] = set()
        self._peeked: list[tuple[int, _Segment, int]] = []
        self._pending = 0
        self.last_error = ""
        for priority in PRIORITIES:
            (folder / priority).mkdir(parents=True, exist_ok=True, mode=0o750)
            self._segments[priority] = self._load(priority)
        used = (max(s.first_seq, s.last_seq) for p in PRIORITIES for s in self._segments[p])
        self._next_seq = max([self._counts.acked_seq, *used]) + 1
        self._forget_acked()

    @property
    def pending(self) -> int:
        """Events that wait to be sent."""
        return self._pending

    @property
    def dropped_total(self) -> int:
        """Events given up: over the bound, or not written because the disk refused."""
        return self._counts.dropped_total

    @property
    def torn_total(self) -> int:
        """Stretches of segments that could not be read."""
        return self._counts.torn_total

    @property
    def size_bytes(self) -> int:
        """Bytes on disk over both families."""
        return sum(s.size for segments in self._segments.values() for s in segments)

    def append(self, priority: Priority, payloads: Iterable[bytes]) -> int:
        """Write the payloads behind all others. What the disk refuses is dropped and counted.

        Returns:
            How many were written; they survive the death of this process at once, and that of
            the machine after the next ``sync``.
        """
        written = 0
        records = [Record(seq, p) for seq, p in enumerate(payloads, self._next_seq)]
        self._next_seq += len(records)
        while records:
            chunk = self._chunk(records)
            records = records[len(chunk) :]
            if self._write(priority, chunk):
                self._pending += len(chunk)
                written += len(chunk)
            else:
                self._counts.dropped_total += len(chunk)
            self._enforce_bound()
        return written

    def peek(self, max_records: int, max_bytes: int) -> list[Record]:
        """The oldest records not yet acked, in order; at least one if there is any."""
        self._peeked = []
        merged = heapq.merge(
            *(self._unacked(p) for p in PRIORITIES), key=lambda item: item[0].record.seq
        )
        found: list[Record] = []
        size = 0
        for parsed, segment in merged:
            size += len(parsed.record.payload)
            if found and size > max_bytes:
                break
            found.append(parsed.record)
            self._peeked.append((parsed.record.seq, segment, parsed.end))
            if len(found) >= max_records:
                break
        if not found:
            self._forget_unreadable()
        return found

    def ack(self, seq: int) -> None:
        """Forget all records up to ``seq``, which must come from the last ``peek``."""
        for peeked_seq, segment, end in self._peeked:
            if peeked_seq <= seq:
                segment.start = end
                self._pending -= 1
        self._peeked = [item for item in self._peeked if item[0] > seq]
        self._counts.acked_seq = max(self._counts.acked_seq, seq)
        self._save_counts(durable=False)
        self._forget_acked()

    def sync(self) -> None:
        """Make what was appended survive a power cut.

        Raises:
            OSError: the disk refused.
        """
        for priority in sorted(self._dirty):
            handle = self._open[priority]
            if handle is not None:
                os.fsync(handle)
        self._dirty.clear()

    def close(self) -> None:
        """Sync, write the counts, close the files."""
        self.sync()
        self._save_counts(durable=True)
        for priority in PRIORITIES:
            self._close_segment(priority)

    def _load(self, priority: Priority) -> list[_Segment]:
        segments = []
        for path in sorted((self._folder / priority).glob("*.seg")):
            segment = _Segment(path, int(path.stem))
            segment.size = path.stat().st_size
            for parsed in parse_segment(path.read_bytes()):
                if parsed is None:
                    self._counts.torn_total += 1
                    continue
                segment.last_seq = parsed.record.seq
                if parsed.record.seq <= self._counts.acked_seq:
                    segment.start = parsed.end
                else:
                    self._pending += 1
            segments.append(segment)
        return segments

    def _chunk(self, records: list[Record]) -> list[Record]:
        """As many records as fit one segment, at least one."""
        size = 0
        for index, record in enumerate(records):
            size += HEAD_BYTES + len(record.payload)
            if index and size > self._segment_bytes:
                return records[:index]
        return records

    def _write(self, priority: Priority, records: list[Record]) -> bool:
        data = b"".join(encode_record(record) for record in records)
        try:
            segment = self._segment_for(priority, records[0].seq, len(data))
            handle = self._handle_for(priority, segment)
            segment.size += len(data)
            if os.write(handle, data) == len(data):
                segment.last_seq = records[-1].seq
                self._dirty.add(priority)
                return True
            self.last_error = "the disk took a part only"
        except OSError as error:
            self.last_error = str(error)
        self._close_segment(priority)  # it may end in a torn record: nothing is appended to it
        return False

    def _segment_for(self, priority: Priority, first_seq: int, size: int) -> _Segment:
        segments = self._segments[priority]
        handle = self._open[priority]
        if handle is not None and segments[-1].size + size > self._segment_bytes:
            os.fsync(handle)
            self._close_segment(priority)
        if self._open[priority] is None:
            path = self._folder / priority / f"{first_seq:020d}.seg"
            segments.append(_Segment(path, first_seq))
        return segments[-1]

    def _handle_for(self, priority: Priority, segment: _Segment) -> int:
        handle = self._open[priority]
        if handle is None:
            handle = os.open(
                segment.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640
            )
            self._open[priority] = handle
        return handle

    def _close_segment(self, priority: Priority) -> None:
        handle = self._open[priority]
        if handle is not None:
            os.close(handle)
        self._open[priority] = None
        self._dirty.discard(priority)

    def _enforce_bound(self) -> None:
        dropped = False
        while self.size_bytes > self._max_bytes:
            priority: Priority = "low" if self._segments["low"] else "high"
            self._drop_oldest(priority)
            dropped = True
        if dropped:
            self._save_counts(durable=False)

    def _drop_oldest(self, priority: Priority) -> None:
        segment = self._segments[priority][0]
        lost = sum(1 for _ in self._parsed(segment))
        self._pending -= lost
        self._counts.dropped_total += lost
        self._remove(priority, segment)

    def _remove(self, priority: Priority, segment: _Segment) -> None:
        if segment is self._segments[priority][-1]:
            self._close_segment(priority)
        self._segments[priority].remove(segment)
        self._peeked = [item for item in self._peeked if item[1] is not segment]
        segment.path.unlink(missing_ok=True)

    def _parsed(self, segment: _Segment) -> Iterator[Parsed]:
        """The segment's records that are not yet acked."""
        try:
            data = segment.path.read_bytes()
        except OSError as error:
            self.last_error = str(error)
            return
        for parsed in parse_segment(data, segment.start):
            if parsed is not None and parsed.record.seq > self._counts.acked_seq:
                yield parsed

    def _unacked(self, priority: Priority) -> Iterator[tuple[Parsed, _Segment]]:
        for segment in list(self._segments[priority]):
            if segment.last_seq > self._counts.acked_seq:
                yield from ((parsed, segment) for parsed in self._parsed(segment))

    def _forget_acked(self) -> None:
        for priority in PRIORITIES:
            for segment in list(self._segments[priority]):
                if segment.last_seq <= self._counts.acked_seq:
                    self._remove(priority, segment)

    def _forget_unreadable(self) -> None:
        """Nothing could be read: what is still counted as waiting was destroyed on disk."""
        if self._pending:
            self._counts.dropped_total += self._pending
            self._pending = 0
            for priority in PRIORITIES:
                for segment in list(self._segments[priority]):
                    self._remove(priority, segment)

    def _save_counts(self, *, durable: bool) -> None:
        body = msgspec.json.encode(self._counts)
        try:
            write_atomically(self._folder / "ack.json", body, durable=durable)
        except OSError as error:  # a full disk: what was acked is sent again after a restart
            self.last_error = str(error)
