"""Snapshots of a stage: how they travel in the state topic, and how the newest whole one is found.

A snapshot is compressed and cut into chunks, each a message with a key of stage, slot and index.
Snapshots of a stage use the slots A and B in turn, so compaction keeps the last two, and a write
that was torn by a crash leaves the one before it whole. Chunks carry the digest of the whole: what
does not fit together is not taken.
"""

import hashlib
from collections.abc import Iterable

import msgspec
import zstandard
from msgspec import Struct

CHUNK_BYTES = 512 * 1024
MAX_STATE_BYTES = 1 << 30
_SLOTS = "AB"


class Snapshot(Struct, frozen=True, kw_only=True):
    """The state of one stage, and what of its inputs it reflects.

    ``offsets``: the next offset of each input, by "topic/partition". ``jobs_offset`` and
    ``jobs_unix_ns``: the same for the jobs topic, and the latest time read there.
    ``watermark_unix_ns``: the last one emitted; ``newest_unix_ns``: the latest event read.
    ``extra``: what the shell keeps beside the stage.
    """

    stage: str
    offsets: dict[str, int]
    jobs_offset: int | None = None
    jobs_unix_ns: int = 0
    watermark_unix_ns: int = 0
    newest_unix_ns: int = 0
    state: bytes = b""
    extra: bytes = b""

    def progress(self) -> int:
        """How far the inputs were read: of two snapshots of a stage the greater is the newer."""
        return sum(self.offsets.values()) + (self.jobs_offset or 0)


class _Chunk(Struct, frozen=True, array_like=True):
    number: int
    count: int
    digest: bytes
    data: bytes


_decode_chunk = msgspec.msgpack.Decoder(_Chunk).decode
_decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


def to_messages(snapshot: Snapshot, number: int) -> list[tuple[bytes, bytes]]:
    """The messages (key, value) of a snapshot; ``number`` rises by one with each."""
    packed = zstandard.compress(msgspec.msgpack.encode(snapshot), 1)
    digest = hashlib.blake2b(packed, digest_size=16).digest()
    pieces = [packed[i : i + CHUNK_BYTES] for i in range(0, len(packed), CHUNK_BYTES)]
    slot = _SLOTS[number % 2]
    return [
        (
            f"{snapshot.stage}|{slot}|{index}".encode(),
            msgspec.msgpack.encode(_Chunk(number, len(pieces), digest, piece)),
        )
        for index, piece in enumerate(pieces)
    ]


def newest(messages: Iterable[tuple[bytes, bytes]], stage: str) -> tuple[Snapshot, int] | None:
    """The newest whole snapshot of the stage and its number, from the messages of its partition."""
    slots: dict[str, dict[int, bytes]] = {}
    for key, value in messages:
        name, slot, index = key.decode(errors="replace").rsplit("|", 2)
        if name == stage:
            slots.setdefault(slot, {})[int(index)] = value
    whole = [found for chunks in slots.values() if (found := _whole(chunks)) is not None]
    return max(whole, key=lambda found: (found[0].progress(), found[1]), default=None)


def _whole(values: dict[int, bytes]) -> tuple[Snapshot, int] | None:
    """The snapshot that the chunk at index 0 begins, or ``None`` where a piece is missing."""
    try:
        first = _decode_chunk(values[0])
        chunks = [_decode_chunk(values[index]) for index in range(first.count)]
        packed = b"".join(chunk.data for chunk in chunks)
        if hashlib.blake2b(packed, digest_size=16).digest() != first.digest:
            return None
        unpacked = zstandard.decompress(packed, max_output_size=MAX_STATE_BYTES)
        return _decode_snapshot(unpacked), first.number
    except (KeyError, msgspec.DecodeError, zstandard.ZstdError):
        return None
