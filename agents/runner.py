"""Where readers are called: here in a thread, or in worker processes (``workers.py``)."""

import logging
import os
import queue
import threading
from collections import deque
from typing import Protocol

from msgspec.structs import replace

from stethoscope.agents.calls import Call, Result, perform
from stethoscope.agents.reader import Reader

log = logging.getLogger(__name__)

CLOSE_SECS = 2.0
_NS = 1_000_000_000


class Runner(Protocol):
    """Takes calls and gives their outcomes later, without blocking its caller."""

    def submit(self, call: Call, deadline_secs: float) -> None:
        """Queue a call; a reader has at most one under way."""
        ...

    def poll(self, monotonic_ns: int) -> list[Result]:
        """Outcomes since the last time."""
        ...

    def handles(self) -> list[int]:
        """What becomes readable when an outcome is there."""
        ...

    def close(self) -> None:
        """End; close the readers."""
        ...


class ThreadRunner:
    """Calls readers that do not hang, one after the other, in one thread of this process.

    A flood of lines to read thus costs the scheduling thread nothing. A thread cannot be killed:
    a call beyond its deadline makes its reader ``failing`` until it returns.
    """

    def __init__(self, readers: dict[str, Reader]) -> None:
        self._readers = readers
        self._new = set(readers)
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._results: deque[Result] = deque()
        self._due_ns: dict[str, int] = {}
        self._waiting: deque[tuple[Call, float]] = deque()
        self._late: set[str] = set()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None

    def submit(self, call: Call, deadline_secs: float) -> None:
        """Hand the call to the thread; its deadline begins with the next ``poll``."""
        self._waiting.append((call, deadline_secs))

    def poll(self, monotonic_ns: int) -> list[Result]:
        """Start what waits; outcomes, and a failure for each call that became late."""
        results: list[Result] = []
        while self._waiting:
            call, deadline_secs = self._waiting.popleft()
            if call.reader in self._late:
                results.append(Result(call.reader, "failing", "its last call has not returned"))
                continue
            self._due_ns[call.reader] = monotonic_ns + round(deadline_secs * _NS)
            self._start(call)
        self._drain_pipe()
        while self._results:
            result = self._results.popleft()
            self._due_ns.pop(result.reader, None)
            self._late.discard(result.reader)
            results.append(result)
        for name, due_ns in self._due_ns.items():
            if due_ns <= monotonic_ns and name not in self._late:
                self._late.add(name)
                results.append(Result(name, "failing", "no answer within its deadline"))
        return results

    def handles(self) -> list[int]:
        """The end of a pipe that the thread writes to."""
        return [self._woken]

    def close(self) -> None:
        """Let the thread end; a reader that is stuck in a call is left to it."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join(CLOSE_SECS)
            if self._thread.is_alive():
                log.warning("a reader has not returned: %s", ", ".join(self._due_ns))
                return
        for reader in self._readers.values():
            reader.close()
        os.close(self._woken)
        os.close(self._waker)

    def _start(self, call: Call) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="readers", daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            fresh = call.verb == "read" and call.reader in self._new
            if fresh:
                self._new.discard(call.reader)
            else:
                call = replace(call, restore=None, ahead=[])
            self._results.append(perform(self._readers[call.reader], call))
            os.write(self._waker, b"x")

    def _drain_pipe(self) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            return
