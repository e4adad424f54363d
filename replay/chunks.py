"""Bytes of a file, unpacked, in pieces of bounded size; and lines out of such pieces."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

_READ_BYTES = 256 * 1024
_READ_PACKED_BYTES = 16 * 1024  # unpacks to 16 MiB at most; what a damage takes with it


class CutShortError(Exception):
    """A compressed file ends early or is damaged; what came before was given."""


def chunks(path: Path, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    """The file's content, unpacked by its suffix.

    Raises:
        CutShortError: after the last readable piece of a damaged compressed file.
    """
    with path.open("rb") as file:
        if path.suffix == ".gz":
            yield from _unpacked(_pieces(file, _READ_PACKED_BYTES, on_bytes), _gzip)
        elif path.suffix == ".zst":
            yield from _unpacked(_pieces(file, _READ_PACKED_BYTES, on_bytes), _zstd)
        else:
            yield from _pieces(file, _READ_BYTES, on_bytes)


def lines(pieces: Iterator[bytes], max_bytes: int) -> Iterator[bytes]:
    """Lines without their newline. Of a line longer than ``max_bytes`` only the start is given.

    The start is ``max_bytes + 1`` long, so that the decoder refuses it for its size. A last line
    without a newline counts; after a cut (``CutShortError``) the broken line is left out.
    """
    rest = b""
    skipping = False
    for piece in pieces:
        parts = piece.split(b"\n")
        if len(parts) == 1:
            rest = b"" if skipping else rest + piece
        else:
            if not skipping:
                yield rest + parts[0]
            yield from parts[1:-1]
            rest, skipping = parts[-1], False
        if len(rest) > max_bytes:
            yield rest[: max_bytes + 1]
            rest, skipping = b"", True
    if rest:
        yield rest


def _pieces(file: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    while piece := file.read(size):
        on_bytes(len(piece))
        yield piece


class _Unpack(Protocol):
    """What zlib's and zstandard's decompression objects share: one frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip() -> _Unpack:
    return zlib.decompressobj(wbits=31)


def _zstd() -> _Unpack:
    return zstandard.ZstdDecompressor().decompressobj()


def _unpacked(pieces: Iterator[bytes], make: Callable[[], _Unpack]) -> Iterator[bytes]:
    """Frame after frame, as ``gzip -c a >> b`` writes them."""
    unpack: _Unpack | None = None
    for piece in pieces:
        data = piece
        while data:
            unpack = unpack or make()
            try:
                yield unpack.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                msg = f"the compressed file is damaged: {error}"
                raise CutShortError(msg) from error
            data = unpack.unused_data if unpack.eof else b""
            unpack = None if unpack.eof else unpack
    if unpack is not None:
        msg = "the compressed file ends early; copy it again"
        raise CutShortError(msg)
