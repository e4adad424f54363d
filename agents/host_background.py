"""Work that may hang (a dead mount), done beside the read that wants its result."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one function in a daemon thread, one call at a time.

    A call that hangs holds its thread until the kernel lets go; meanwhile ``pending_secs`` grows
    and no second call is started, so the number of threads is bounded by that of the objects.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._thread: threading.Thread | None = None
        self._started_ns = 0
        self._took_secs: float | None = None
        self._result: T | None = None
        self._error: OSError | None = None

    @property
    def result(self) -> T | None:
        """What the last finished call returned."""
        return self._result

    @property
    def error(self) -> OSError | None:
        """What the last finished call raised."""
        return self._error

    @property
    def took_secs(self) -> float | None:
        """How long the last finished call took."""
        return self._took_secs

    @property
    def pending_secs(self) -> float | None:
        """How long the running call has been running; ``None`` when there is none."""
        if self._thread is None or not self._thread.is_alive():
            return None
        return (time.monotonic_ns() - self._started_ns) / 1e9

    def start(self) -> None:
        """Start a call, unless one still runs."""
        if self.pending_secs is None:
            self._started_ns = time.monotonic_ns()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def call(self) -> None:
        """Make the call at once, where it cannot hang: a thread costs more than ``statvfs``."""
        self._started_ns = time.monotonic_ns()
        self._run()

    def wait(self, secs: float) -> None:
        """Give the running call that long."""
        if self._thread is not None:
            self._thread.join(max(0.0, secs))

    def _run(self) -> None:
        try:
            self._result, self._error = self._function(), None
        except OSError as error:
            self._error = error
        self._took_secs = (time.monotonic_ns() - self._started_ns) / 1e9
