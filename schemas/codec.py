"""Bytes to events and back: msgpack or JSON on Kafka, JSON Lines in files.

Pure functions. Whatever cannot be read raises ``BadEvent`` with a reason word; nothing else is
raised, whatever the bytes.
"""

import re
from collections.abc import Iterator

import msgspec

from stethoscope.schemas.errors import BadEvent
from stethoscope.schemas.events import KINDS, Event

MAX_EVENT_BYTES = 8 * 1024 * 1024
JSON = "application/json"
MSGPACK = "application/msgpack"

_json_decoder = msgspec.json.Decoder(Event)
_msgpack_decoder = msgspec.msgpack.Decoder(Event | list[Event])
_json_message_decoder = msgspec.json.Decoder(Event | list[Event])
_json_encoder = msgspec.json.Encoder()
_msgpack_encoder = msgspec.msgpack.Encoder()
_INVALID_TAG = re.compile(r"Invalid value '(.*)'")


def decode_line(line: bytes) -> Event:
    """One line of JSON Lines.

    >>> decode_line(b'{"kind":"clock","time_unix_ns":5}').time_unix_ns
    5

    Raises:
        BadEvent: truncated or other than JSON, unknown kind, a field of the wrong type.
    """
    if len(line) > MAX_EVENT_BYTES:
        raise BadEvent("too_large", f"{len(line)} bytes, at most {MAX_EVENT_BYTES}")
    try:
        return _json_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(error) from error


def encode_line(event: Event) -> bytes:
    """The event as one line of JSON, without the newline."""
    return _json_encoder.encode(event)


def decode_message(body: bytes | None, content_type: str = MSGPACK) -> list[Event]:
    """One Kafka message: one event, or an array of events of one node.

    Raises:
        BadEvent: as ``decode_line``; a tombstone (``None``) is ``wrong_type``.
    """
    if body is None:
        raise BadEvent("wrong_type", "the message has no value")
    if len(body) > MAX_EVENT_BYTES:
        raise BadEvent("too_large", f"{len(body)} bytes, at most {MAX_EVENT_BYTES}")
    decoder = _json_message_decoder if content_type == JSON else _msgpack_decoder
    try:
        decoded = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(error) from error
    return decoded if isinstance(decoded, list) else [decoded]


def encode_message(events: list[Event]) -> bytes:
    """Events as one Kafka message (msgpack); one event stands alone, several as an array."""
    return _msgpack_encoder.encode(events[0] if len(events) == 1 else events)


def iter_lines(lines: Iterator[bytes]) -> Iterator[Event | BadEvent]:
    """Decode line after line; what cannot be read comes out as the error itself, in its place."""
    for line in lines:
        if not line.strip():
            continue
        try:
            yield decode_line(line)
        except BadEvent as error:
            yield error


def _bad(error: Exception) -> BadEvent:
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        if (tag := _INVALID_TAG.match(text)) and text.endswith("`$.kind`"):
            return BadEvent("unknown_kind", f"{tag[1]!r}, known are {', '.join(KINDS)}")
        if "missing required field `kind`" in text:
            return BadEvent("unknown_kind", "the event has no field `kind`")
        return BadEvent("wrong_type", text)
    if "truncated" in text:
        return BadEvent("truncated", text)
    return BadEvent("not_json", text)
