"""Which job is where, and since when."""

from msgspec import Struct, field, structs

from stethoscope.schemas.events import JobEvent
from stethoscope.schemas.findings import NS
from stethoscope.schemas.nodelist import expand

ENDED = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "PREEMPTED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
    }
)
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
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


def has_ended(event: JobEvent) -> bool:
    """Whether the state is a final one."""
    return event.state.split(" ")[0] in ENDED


def ended_ns(event: JobEvent) -> int | None:
    """When it ended; ``None`` while it runs."""
    return (event.end_unix_ns or event.time_unix_ns) if has_ended(event) else None


class Placement(Struct):
    """Runs by key, the newest run of each job id, and the runs on each node.

    Bound: running jobs, and those that ended within a day.
    """

    jobs: dict[str, JobEvent] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)
    on_node: dict[str, list[str]] = field(default_factory=dict)

    def apply(self, event: JobEvent) -> str | None:
        """Take over one event and return its key; ``None`` for a job that waits for a place."""
        if event.state.split(" ")[0] in WAITING:
            return None
        event = _with_nodes(event)
        key = job_key(event)
        known = self.jobs.get(key)
        if known is not None and not event.gpus and known.gpus:
            event = structs.replace(event, gpus=known.gpus, ranks=known.ranks)
        if known is not None and not event.nodes:
            event = structs.replace(event, nodes=known.nodes)
        self.jobs[key] = event
        self.latest[f"{event.cluster}/{event.job_id}"] = key
        for node in event.nodes or []:
            keys = self.on_node.setdefault(node, [])
            if key not in keys:
                keys.append(key)
        return key

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


def _with_nodes(event: JobEvent) -> JobEvent:
    if event.nodes is None and event.nodelist:
        try:
            return structs.replace(event, nodes=expand(event.nodelist))
        except ValueError:
            return structs.replace(event, nodes=[])
    if event.nodes is None:
        return structs.replace(event, nodes=sorted(event.gpus))
    return event
