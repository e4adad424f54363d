"""Which job is where, and since when."""

from msgspec import Struct, field, structs

from stethoscope.schemas.events import JobEvent
from stethoscope.schemas.findings import NS
from stethoscope.schemas.job_states import WAITING, ended_ns, has_ended, state_word
from stethoscope.schemas.nodelist import expand

KEEP_ENDED_SECS = 86400


def job_key(event: JobEvent) -> str:
    """A run's identity: (cluster, job id, restart, start time).

    >>> job_key(JobEvent(time_unix_ns=9, job_id="7", state="RUNNING", start_unix_ns=5))
    'default/7.0@5'
    """
    return f"{event.cluster}/{event.job_id}.{event.restart}@{event.start_unix_ns or 0}"


def unknown_key(cluster: str, job_id: str) -> str:
    """The identity of a job that only a log names."""
    return f"{cluster}/{job_id}.0@?"


class Placement(Struct):
    """Runs by key, the newest run of each job id, and the runs on each node.

    Bound: running jobs, and those that ended within a day.
    """

    jobs: dict[str, JobEvent] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)
    on_node: dict[str, list[str]] = field(default_factory=dict)

    def apply(self, event: JobEvent) -> str | None:
        """Take over one event and return its key; ``None`` for a job that waits for a place.

        A run that a newer one of the same job takes the place of ends with that, as REQUEUED.
        """
        name = f"{event.cluster}/{event.job_id}"
        latest = self.jobs.get(self.latest.get(name, ""))
        if state_word(event) in WAITING:
            if latest is not None and event.time_unix_ns >= latest.time_unix_ns:
                self._supersede(latest, event.time_unix_ns)
            return None
        event = _of_run(with_nodes(event), latest)
        key = job_key(event)
        self.jobs[key] = event = _completed(event, self.jobs.get(key))
        if latest is None or _age(event) >= _age(latest):
            self.latest[name] = key
            if latest is not None and job_key(latest) != key:
                self._supersede(latest, event.start_unix_ns or event.time_unix_ns)
        for node in event.nodes or []:
            keys = self.on_node.setdefault(node, [])
            if key not in keys:
                keys.append(key)
        return key

    def _supersede(self, run: JobEvent, time_ns: int) -> None:
        if not has_ended(run):
            end_ns = max(time_ns, run.time_unix_ns)
            ended = structs.replace(run, state="REQUEUED", end_unix_ns=end_ns)
            self.jobs[job_key(run)] = ended

    def prune(self, now_ns: int) -> None:
        """Forget jobs that ended a day ago."""
        oldest_ns = now_ns - KEEP_ENDED_SECS * NS
        gone = [k for k, e in self.jobs.items() if (ended_ns(e) or now_ns) < oldest_ns]
        for key in gone:
            event = self.jobs.pop(key)
            name = f"{event.cluster}/{event.job_id}"
            if self.latest.get(name) == key:
                del self.latest[name]
            for node in event.nodes or []:
                self.on_node[node].remove(key)

    def key_of(self, cluster: str, job_id: str) -> str:
        """The newest run of a job id."""
        return self.latest.get(f"{cluster}/{job_id}") or unknown_key(cluster, job_id)

    def running_on(self, node: str) -> list[str]:
        """Keys of the runs that are on the node now."""
        return [k for k in self.on_node.get(node, []) if not has_ended(self.jobs[k])]

    def at(self, node: str, time_ns: int, gpu: tuple[int | None, str | None]) -> list[str]:
        """Keys of the runs that were on the node (and on the GPU, where one is named) then."""
        found = []
        for key in self.on_node.get(node, []):
            event = self.jobs[key]
            end_ns = ended_ns(event)
            if (event.start_unix_ns or 0) > time_ns or (end_ns is not None and end_ns < time_ns):
                continue
            devices = event.gpus.get(node)
            if devices and gpu != (None, None) and gpu[0] not in devices and gpu[1] not in devices:
                continue
            found.append(key)
        return found


def _age(event: JobEvent) -> tuple[int, int]:
    return event.start_unix_ns or 0, event.restart


def _of_run(event: JobEvent, latest: JobEvent | None) -> JobEvent:
    """An event that does not say when its run began belongs to the newest run that it fits."""
    if event.start_unix_ns is not None or latest is None or latest.restart != event.restart:
        return event
    if has_ended(latest) and not has_ended(event):
        return event
    return structs.replace(event, start_unix_ns=latest.start_unix_ns)


def _completed(event: JobEvent, known: JobEvent | None) -> JobEvent:
    """The event with what was said of the run before and is not said again."""
    if known is None:
        return event
    if not event.gpus and known.gpus:
        event = structs.replace(event, gpus=known.gpus, ranks=known.ranks)
    if not event.nodes:
        event = structs.replace(event, nodes=known.nodes)
    return event


def with_nodes(event: JobEvent) -> JobEvent:
    """The event with its nodes listed: from ``nodelist``, else from ``gpus``."""
    if event.nodes is None and event.nodelist:
        try:
            return structs.replace(event, nodes=expand(event.nodelist))
        except ValueError:
            return structs.replace(event, nodes=[])
    if event.nodes is None:
        return structs.replace(event, nodes=sorted(event.gpus))
    return event
