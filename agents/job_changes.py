"""What changed between two looks at a scheduler's jobs."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct, structs

from stethoscope.schemas.events import JobEvent
from stethoscope.schemas.job_states import ENDED, WAITING

MAX_JOBS = 200_000
# A job that starts and fails within a second has one time for both: the order is in these.
_ORDER = {"PENDING": 0, "CONFIGURING": 1, "RUNNING": 2, "SUSPENDED": 3, "COMPLETING": 4}


class Seen(Struct, frozen=True, array_like=True):
    """A run as last told of, in short: enough to end it after a restart of the agent."""

    job_id: str
    restart: int
    state: str
    start_unix_ns: int | None = None


class JobChanges:
    """Remembers each run; tells of new runs, changed ones and those that went.

    The start and the end of a run are dated by the scheduler, other changes by when they were
    noticed. State: one event a run that is still listed or has not ended, at most ``MAX_JOBS``.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], JobEvent] = {}

    def update(self, jobs: Iterable[JobEvent], now_unix_ns: int) -> list[JobEvent]:
        """Events of what changed; ``time_unix_ns`` of the jobs given is their state's own."""
        changed: list[JobEvent] = []
        for listed in jobs:
            key = (listed.job_id, listed.restart)
            told = self._told.get(key)
            job = _completed(listed, told)
            if told is not None and _same(told, job):
                continue
            if told is None and len(self._told) >= MAX_JOBS:
                del self._told[next(iter(self._told))]
            event = structs.replace(job, time_unix_ns=_changed_at(job, told, now_unix_ns))
            self._told[key] = event
            changed.append(event)
        return changed

    def missing(self, listed: Iterable[JobEvent]) -> list[JobEvent]:
        """Runs not ended when last told of, and listed no more. Ended ones are forgotten."""
        there = {(job.job_id, job.restart) for job in listed}
        gone = [key for key in self._told if key not in there]
        over = [key for key in gone if self._told[key].state in ENDED]
        for key in over:
            del self._told[key]
        return [self._told[key] for key in gone if key in self._told]

    def told(self, job_id: str, restart: int) -> JobEvent | None:
        """The run as last told of."""
        return self._told.get((job_id, restart))

    def checkpoint(self) -> str:
        """The runs that have not ended."""
        runs = self._told.values()
        open_runs = [
            Seen(job.job_id, job.restart, job.state, job.start_unix_ns)
            for job in runs
            if job.state not in ENDED
        ]
        return msgspec.json.encode(open_runs).decode()

    def restore(self, state: str, cluster: str) -> list[Seen]:
        """Remember those runs, so that one that ended meanwhile is missed; gives them.

        Raises:
            msgspec.DecodeError: not what ``checkpoint`` gives.
        """
        runs = msgspec.json.decode(state, type=list[Seen])
        for seen in runs:
            self._told[seen.job_id, seen.restart] = JobEvent(
                time_unix_ns=0,
                cluster=cluster,
                job_id=seen.job_id,
                restart=seen.restart,
                state=seen.state,
                start_unix_ns=seen.start_unix_ns,
            )
        return runs


def end_of(job: JobEvent, state: str, unix_ns: int) -> JobEvent:
    """The same run, over."""
    return structs.replace(job, state=state, end_unix_ns=unix_ns, time_unix_ns=unix_ns)


def _completed(job: JobEvent, told: JobEvent | None) -> JobEvent:
    """Schedulers forget a run's GPUs when it ends; the event of its end repeats them."""
    if told is None or job.state not in ENDED or job.gpus:
        return job
    return structs.replace(job, nodes=job.nodes or told.nodes, gpus=told.gpus, ranks=told.ranks)


def _changed_at(job: JobEvent, told: JobEvent | None, now_unix_ns: int) -> int:
    dated = told is None or (
        told.state != job.state and (job.state in ENDED or told.state in WAITING)
    )
    at_ns = job.time_unix_ns + _ORDER.get(job.state, len(_ORDER)) if dated else now_unix_ns
    # Schedulers round to seconds; what follows must not come before.
    return at_ns if told is None else max(at_ns, told.time_unix_ns + 1)


def _same(told: JobEvent, job: JobEvent) -> bool:
    return structs.replace(told, time_unix_ns=0) == structs.replace(job, time_unix_ns=0)
