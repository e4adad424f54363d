"""One worker process as its parent sees it: pipes, an answer, an end."""

import fcntl
import os
import subprocess
import sys
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from stethoscope.agents.calls import Call, Result, Setup, frame, unframe

_CHUNK_BYTES = 1 << 20
# A call with the positions of thousands of log files; the largest that needs no privilege.
_PIPE_BYTES = 1 << 20


class Process:
    """One worker process and the call it is busy with."""

    def __init__(self, setup: Setup) -> None:
        """Start it.

        Raises:
            OSError: the system starts no more processes.
        """
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "stethoscope.agents.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._known: set[str] = set()
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(Result)
        self.busy_with: Call | None = None
        self.due_ns = 0
        self._write(frame(setup))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def fileno(self) -> int:
        """Readable when an answer, or the end, is there."""
        return self._popen.stdout.fileno() if self._popen.stdout else -1

    def without_known(self, call: Call) -> Call:
        """The call; its position only where the reader is new to this process."""
        if call.verb == "probe" or call.reader in self._known:
            return replace(call, restore=None, ahead=[])
        self._known.add(call.reader)
        return call

    def submit(self, call: Call, due_ns: int) -> None:
        """Hand the call over.

        Raises:
            OSError: the process has ended or does not take input.
        """
        self.busy_with = call
        self.due_ns = due_ns
        self._write(frame(call))

    def answer(self) -> Result | None:
        """The answer, if it is there.

        Raises:
            OSError, EOFError, ValueError: the process has ended, or talks nonsense.
        """
        if self._popen.stdout is None:
            raise EOFError
        try:
            data = os.read(self._popen.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError
        self._buffer += data
        body = unframe(self._buffer)
        if body is None:
            return None
        self.busy_with = None
        return self._decoder.decode(body)

    def kill(self) -> None:
        """SIGKILL; whether it took is what ``ended`` says."""
        self._popen.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()

    def ended(self) -> bool:
        """Whether the kernel has let go of it."""
        return self._popen.poll() is not None

    def wait(self, timeout_secs: float) -> None:
        """Wait that long for the end; it may outlive the wait."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_secs)

    def _write(self, data: bytes) -> None:
        if self._popen.stdin is None or os.write(self._popen.stdin.fileno(), data) != len(data):
            msg = "the worker process does not take its input"
            raise BlockingIOError(msg)
