"""Readers that may hang, in at most three worker processes.

Every call has a deadline. A process that misses it is killed and replaced. One that the kernel
does not let go of (a system call that cannot be interrupted, on a dead mount or a lost GPU) is
abandoned: counted, reported, and never waited for. The reader that hangs in it is not called again
until it has ended, so that there is at most one of them a reader; the others of its group go on.
"""

import logging
from collections import deque

import msgspec
from msgspec import Struct

from stethoscope.agents.calls import Call, Result, Setup
from stethoscope.agents.process import Process

log = logging.getLogger(__name__)

MAX_PROCESSES = 3
REAP_SECS = 2.0
IDLE_SECS = 120.0
START_SECS = 20.0  # for an interpreter and libnvidia-ml on a node that is busy
_NS = 1_000_000_000


class _Waiting(Struct, frozen=True):
    """A call and the seconds it may take."""

    call: Call
    deadline_secs: float


class _Slot:
    """One place of the pool: a process, the one before it while it is dying, a queue."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.dying: Process | None = None
        self.dying_since_ns = 0
        self.queue: deque[_Waiting] = deque()
        self.used_ns = 0


class WorkerPool:
    """Calls of hazardous readers, none of which can block the caller.

    Readers of one group share a process, so that what one of them breaks costs only its group. A
    process starts with the first call and ends when it had none for ``IDLE_SECS``.
    """

    def __init__(self, setup: Setup, groups: dict[str, str]) -> None:
        """``groups``: reader → group, at most ``MAX_PROCESSES`` different ones."""
        self._setup = setup
        slots = {group: _Slot() for group in dict.fromkeys(groups.values())}
        self._slots = {reader: slots[group] for reader, group in groups.items()}
        self._all = list(slots.values())
        self._abandoned: dict[str, Process] = {}
        self.killed_total = 0
        self.abandoned_total = 0

    @property
    def abandoned(self) -> int:
        """Processes that were killed and have not ended."""
        return len(self._abandoned)

    def pids(self) -> list[int]:
        """Process ids of the workers that serve."""
        return [slot.process.pid for slot in self._all if slot.process]

    def handles(self) -> list[int]:
        """What to wait on for answers."""
        return [s.process.fileno() for s in self._all if s.process and s.process.busy_with]

    def submit(self, call: Call, deadline_secs: float) -> None:
        """Queue the call; its outcome comes out of ``poll``. Time in the queue does not count."""
        self._slots[call.reader].queue.append(_Waiting(call, deadline_secs))

    def poll(self, monotonic_ns: int) -> list[Result]:
        """Start what waits, take what is answered, kill what is late. Never blocks."""
        results: list[Result] = []
        self._abandoned = {r: p for r, p in self._abandoned.items() if not p.ended()}
        for slot in self._all:
            self._bury(slot, monotonic_ns)
            if slot.process and slot.process.busy_with:
                results += self._look_at(slot, slot.process, monotonic_ns)
            if slot.process and slot.process.busy_with:
                continue
            if slot.queue:
                results += self._start_next(slot, monotonic_ns)
            elif slot.process and monotonic_ns - slot.used_ns > IDLE_SECS * _NS:
                self._end(slot, slot.process, monotonic_ns)
        return results

    def close(self) -> None:
        """Kill all; wait at most a second for each."""
        for slot in self._all:
            for process in (slot.process, slot.dying):
                if process is not None:
                    process.kill()
                    process.wait(1.0)
            slot.process = slot.dying = None

    def _look_at(self, slot: _Slot, process: Process, monotonic_ns: int) -> list[Result]:
        call = process.busy_with
        if call is None:
            return []
        try:
            answer = process.answer()
        except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:
            self._kill(slot, process, monotonic_ns)
            return [_failed(call, f"its worker process ended ({type(error).__name__})")]
        if answer is not None:
            return [answer]
        if monotonic_ns < process.due_ns:
            return []
        self._kill(slot, process, monotonic_ns)
        return [_failed(call, "no answer within its deadline; its worker process was killed")]

    def _start_next(self, slot: _Slot, monotonic_ns: int) -> list[Result]:
        slot.used_ns = monotonic_ns
        waiting = slot.queue.popleft()
        allowed_secs = waiting.deadline_secs
        if slot.dying:
            return [_failed(waiting.call, "its worker process is being killed")]
        if stuck := self._abandoned.get(waiting.call.reader):
            return [_failed(waiting.call, f"process {stuck.pid} hangs in it and cannot be killed")]
        try:
            process = slot.process
            if process is None:
                process = slot.process = Process(self._setup)
                allowed_secs += START_SECS
            process.submit(
                process.without_known(waiting.call), monotonic_ns + round(allowed_secs * _NS)
            )
        except OSError as error:
            if slot.process:
                self._kill(slot, slot.process, monotonic_ns)
            return [_failed(waiting.call, f"its worker process does not start ({error})")]
        return []

    def _kill(self, slot: _Slot, process: Process, monotonic_ns: int) -> None:
        self.killed_total += 1
        self._end(slot, process, monotonic_ns)

    def _end(self, slot: _Slot, process: Process, monotonic_ns: int) -> None:
        process.kill()
        slot.process, slot.dying, slot.dying_since_ns = None, process, monotonic_ns

    def _bury(self, slot: _Slot, monotonic_ns: int) -> None:
        process = slot.dying
        if process is None:
            return
        if process.ended():
            slot.dying = None
        elif monotonic_ns - slot.dying_since_ns > REAP_SECS * _NS:
            reader = process.busy_with.reader if process.busy_with else ""
            log.error(
                "reader %s: process %d cannot be killed, it is abandoned", reader, process.pid
            )
            self._abandoned[reader] = process
            slot.dying = None
            self.abandoned_total += 1


def _failed(call: Call, detail: str) -> Result:
    return Result(call.reader, "failing", detail)
