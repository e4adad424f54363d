"""The process in which readers run that may hang: ``python -m stethoscope.agents.worker``.

It reads a ``Setup`` and then ``Call`` after ``Call`` from standard input, and answers each with a
``Result`` on standard output. It ends with its parent.
"""

import ctypes
import os
import signal
import sys

import msgspec

from stethoscope.agents.calls import Call, Result, Setup, build, frame, one_line, perform, unframe
from stethoscope.agents.reader import Reader

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 65536


def main() -> None:
    """Serve until standard input ends."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes our input
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is not an answer
    buffer = bytearray()
    first = _next_message(buffer)
    if first is None:
        return
    setup = msgspec.msgpack.decode(first, type=Setup)
    decoder = msgspec.msgpack.Decoder(Call)
    readers: dict[str, Reader] = {}
    while (body := _next_message(buffer)) is not None:
        call = decoder.decode(body)
        known = len(readers)
        _write(answers, _framed(_answer(readers, setup, call)))
        if len(readers) > known:
            _give_back_memory()
    for reader in readers.values():
        reader.close()


def _answer(readers: dict[str, Reader], setup: Setup, call: Call) -> Result:
    fresh = call.reader not in readers
    if fresh:
        built = build(call.reader, setup.context, setup.config, setup.readers)
        if isinstance(built, str):
            return Result(call.reader, "failing", built)
        readers[call.reader] = built
    return perform(readers[call.reader], call, fresh=fresh)


def _framed(answer: Result) -> bytes:
    try:
        return frame(answer)
    except UnicodeEncodeError as error:  # a file's name that is no text must not end the others
        return frame(Result(answer.reader, "failing", one_line(error)))


def _next_message(buffer: bytearray) -> bytes | None:
    while (body := unframe(buffer)) is None:
        data = os.read(sys.stdin.fileno(), _CHUNK_BYTES)
        if not data:
            return None
        buffer += data
    return body


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _give_back_memory() -> None:
    """What starting a reader took for a moment: 3 MB after NVML's start (H200, driver 580)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


if __name__ == "__main__":
    main()
