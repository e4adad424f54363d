"""One call of one reader and its outcome, the same here and in a worker process.

Between processes both travel as msgpack behind their length (u32, little endian); nothing is
pickled.
"""

import logging
import struct
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from stethoscope.agents import registry
from stethoscope.agents.reader import Context, Counters, Now, Reader, Repeating, Resumable
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.errors import ReaderUnsupported, StethoscopeError
from stethoscope.schemas.events import Event

log = logging.getLogger(__name__)

Verb: TypeAlias = Literal["probe", "read"]
ReaderState: TypeAlias = Literal["ok", "failing", "unsupported"]
MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class Setup(Struct, frozen=True):
    """What a worker process must know first; ``readers``: name → ``module:class``."""

    context: Context
    config: AgentConfig
    readers: dict[str, str]


class Call(Struct, frozen=True):
    """Probe or read the reader of that name.

    ``restore``: the position to go on from; ``ahead``: later ones, whose events may be out already.
    """

    reader: str
    verb: Verb
    now: Now
    restore: str | None = None
    ahead: list[str] = field(default_factory=list)


class Result(Struct, frozen=True):
    """What came of a call. ``detail`` explains every state but ``ok``, in one line."""

    reader: str
    state: ReaderState
    detail: str = ""
    events: list[Event] = field(default_factory=list)
    checkpoint: str | None = None
    counters: Counters | None = None


def build(
    name: str, context: Context, config: AgentConfig, readers: dict[str, str] | None = None
) -> Reader | str:
    """The reader, or in one line why it cannot be made. ``readers``: other places to find them."""
    try:
        registry.READERS.update(readers or {})
        return registry.build(name, context, config)
    except (StethoscopeError, ImportError) as error:
        return one_line(error)


def perform(reader: Reader, call: Call, *, fresh: bool = False) -> Result:
    """Call the reader; whatever it raises becomes a state. A ``fresh`` one is probed first."""
    try:
        if fresh and call.verb == "read":
            reader.probe()
        if call.restore is not None and (resumable := as_resumable(reader)):
            resumable.restore(call.restore)
        if call.ahead and (repeating := as_repeating(reader)):
            repeating.expect(call.ahead)
        if call.verb == "probe":
            reader.probe()
            return Result(call.reader, "ok", counters=reader.counters)
        events = reader.read(call.now)
        resumable = as_resumable(reader)
        checkpoint = resumable.checkpoint() if resumable else None
        return Result(call.reader, "ok", "", events, checkpoint, reader.counters)
    except ReaderUnsupported as error:
        return Result(call.reader, "unsupported", one_line(error), counters=reader.counters)
    except (StethoscopeError, OSError) as error:
        return Result(call.reader, "failing", one_line(error), counters=reader.counters)
    except Exception as error:  # a fault in one reader must not end the others
        log.exception("reader %s raised", call.reader)
        detail = f"{type(error).__name__}: {one_line(error)}"
        return Result(call.reader, "failing", detail, counters=reader.counters)


def as_resumable(reader: Reader) -> Resumable | None:
    """The reader, where it keeps a position."""
    if hasattr(reader, "checkpoint") and hasattr(reader, "restore"):
        return reader  # type: ignore[return-value]  # just tested: it has both methods
    return None


def as_repeating(reader: Reader) -> Repeating | None:
    """The reader, where it can make events anew as they were."""
    if hasattr(reader, "expect") and as_resumable(reader):
        return reader  # type: ignore[return-value]  # just tested: it has all three methods
    return None


def one_line(error: Exception) -> str:
    """The error's message, its first line, at most 300 characters."""
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__


def frame(message: Struct) -> bytes:
    """The message behind its length."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def unframe(buffer: bytearray) -> bytes | None:
    """Take one whole message off the buffer's front; ``None`` while it is not there yet.

    Raises:
        ValueError: the length is beyond ``MAX_FRAME_BYTES``.
    """
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length > MAX_FRAME_BYTES:
        msg = f"a message of {length} bytes, at most {MAX_FRAME_BYTES}"
        raise ValueError(msg)
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    body = bytes(buffer[_LENGTH.size : end])
    del buffer[:end]
    return body
