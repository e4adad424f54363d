"""What all readers of schedulers share: runs that are followed from read to read."""

import msgspec

from stethoscope.agents.job_changes import JobChanges, Seen
from stethoscope.agents.reader import Context, Counters
from stethoscope.schemas.events import ClockEvent


class JobReader:
    """Tells of each job when it changes; remembers those that have not ended."""

    hazardous = True

    def __init__(self, context: Context, period_secs: float) -> None:
        self.period_secs = period_secs
        self.counters = Counters()
        self._cluster = context.cluster
        self._changes = JobChanges()

    def checkpoint(self) -> str:
        """The jobs that have not ended."""
        return self._changes.checkpoint()

    def restore(self, state: str) -> None:
        """Know those jobs, so that an end in the meantime is told."""
        try:
            runs = self._changes.restore(state, self._cluster)
        except msgspec.DecodeError:
            self.counters.error("checkpoint")
            return
        self._resume(runs)

    def close(self) -> None:
        """Nothing is held."""

    def _resume(self, runs: list[Seen]) -> None:
        """A former life followed these runs."""

    def _known_until(self, unix_ns: int) -> ClockEvent:
        """Up to then the jobs of this cluster are known."""
        return ClockEvent(time_unix_ns=unix_ns, cluster=self._cluster)
