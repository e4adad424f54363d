"""The bytes of a spool segment: records that find themselves again after damage.

Record: magic ``STR1``, sequence (u64), length (u32), crc32 of everything else of the record (u32),
payload; little endian. A torn or damaged record is skipped: the next magic with a valid checksum
goes on.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"STR1"
MAX_RECORD_BYTES = 16 * 1024 * 1024
_HEAD = struct.Struct("<4sQII")
_CRC_AT = _HEAD.size - 4
HEAD_BYTES = _HEAD.size


class Record(NamedTuple):
    """One event on disk: its place in the order of appending, and its encoded body."""

    seq: int
    payload: bytes


class Parsed(NamedTuple):
    """A record, and the byte offset behind it in its segment."""

    record: Record
    end: int


def encode_record(record: Record) -> bytes:
    """The bytes of one record."""
    head = _HEAD.pack(MAGIC, record.seq, len(record.payload), 0)[:_CRC_AT]
    crc = zlib.crc32(record.payload, zlib.crc32(head))
    return head + struct.pack("<I", crc) + record.payload


def parse_segment(data: bytes, offset: int = 0) -> Iterator[Parsed | None]:
    """Records of a segment from ``offset``; ``None`` for each stretch that cannot be read."""
    damaged = False
    while offset < len(data):
        parsed = _parse_at(data, offset)
        if parsed is None:
            if not damaged:
                yield None
            damaged = True
            offset = data.find(MAGIC, offset + 1)
            if offset < 0:
                return
            continue
        damaged = False
        yield parsed
        offset = parsed.end


def _parse_at(data: bytes, offset: int) -> Parsed | None:
    if offset + _HEAD.size > len(data):
        return None
    magic, seq, length, crc = _HEAD.unpack_from(data, offset)
    end = offset + _HEAD.size + length
    if magic != MAGIC or length > MAX_RECORD_BYTES or end > len(data):
        return None
    payload = data[offset + _HEAD.size : end]
    if zlib.crc32(payload, zlib.crc32(data[offset : offset + _CRC_AT])) != crc:
        return None
    return Parsed(Record(seq, payload), end)
