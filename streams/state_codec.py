"""Stage state to bytes and back: msgpack of typed structs, arrays as their raw bytes. No pickle."""

from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

T = TypeVar("T")


def encode_state(state: object) -> bytes:
    """The state as msgpack."""
    return _encoder.encode(state)


def decode_state(data: bytes, kind: type[T]) -> T:
    """The state again, as ``kind``.

    Raises:
        msgspec.ValidationError: the bytes are of another version of the state.
    """
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_from_plain)


def _to_plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    msg = f"state holds a {type(value).__name__}"
    raise TypeError(msg)


def _from_plain(kind: type, value: Any) -> object:
    if getattr(kind, "__origin__", kind) is np.ndarray:
        dtype, shape, raw = value
        array: npt.NDArray[np.generic] = np.frombuffer(raw, dtype=dtype).reshape(shape).copy()
        return array
    msg = f"state holds a {kind}"
    raise TypeError(msg)


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_plain)
