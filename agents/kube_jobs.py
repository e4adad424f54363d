"""Pods to jobs: which run of which job they are, where it is and how it stands. No I/O."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from stethoscope.agents.job_changes import Seen
from stethoscope.agents.kube_pods import (
    NS,
    JobName,
    Pod,
    disruption,
    finished_ns,
    gpu_count,
    job_name,
    parse_time,
    pod_state,
    queue,
    restart_count,
    started_ns,
    variable,
)
from stethoscope.schemas.events import JobEvent
from stethoscope.schemas.job_states import ENDED

MAX_JOBS = 50_000
FORGET_NS = 3600 * NS
# The state of a run whose pods stand differently: the first of these that one of them is in.
_WORST = ("NODE_FAIL", "OUT_OF_MEMORY", "FAILED", "TIMEOUT", "PREEMPTED", "CANCELLED")


class _Slot(Struct):
    """One place of a job: the pod in it now, and the runs that its forerunners had."""

    uid: str
    before: int = 0
    restarts: int = 0


class _Job(Struct):
    """What is remembered of a job beyond its pods."""

    owner: str
    first_run: int = 0
    slots: dict[str, _Slot] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)  # run: when it was seen to be over
    disrupted: str | None = None
    seen_unix_ns: int = 0


class _Member(Struct, frozen=True):
    pod: Pod
    name: JobName
    gpus: int


class KubeJobs:
    """The cluster's pods with GPUs, and the jobs they make.

    A run is over when one of its pods fails, is evicted or deleted; a pod in its place, or a
    container started again, makes the next run. State: the pods, and a memory of each job until an
    hour after its last pod, at most ``MAX_JOBS``.
    """

    def __init__(self, cluster: str, gpu_resources: Sequence[str]) -> None:
        self._cluster = cluster
        self._gpu_resources = gpu_resources
        self._members: dict[str, _Member] = {}
        self._memory: dict[str, _Job] = {}
        self._resumed: dict[str, Seen] = {}

    def resume(self, runs: Iterable[Seen]) -> None:
        """Runs known before a restart: counting goes on from them."""
        self._resumed = {run.job_id: run for run in runs}

    def put(self, pod: Pod) -> None:
        """A pod that is new or has changed."""
        gpus = gpu_count(pod, self._gpu_resources)
        if gpus:
            self._members[pod.metadata.uid] = _Member(pod, job_name(pod), gpus)

    def drop(self, pod: Pod) -> None:
        """A pod that was deleted; how it last stood tells how its job ended."""
        member = self._members.pop(pod.metadata.uid, None)
        if member is not None and member.name.job_id in self._memory:
            self._memory[member.name.job_id].disrupted = disruption(pod)

    def replace_all(self, pods: Iterable[Pod]) -> None:
        """All pods there are, after a gap."""
        self._members.clear()
        for pod in pods:
            self.put(pod)

    def jobs(self, node_gpus: dict[str, int], now_unix_ns: int) -> list[JobEvent]:
        """Every job's present run; ``time_unix_ns`` is that of its state."""
        by_job: dict[str, list[_Member]] = {}
        for member in self._members.values():
            by_job.setdefault(member.name.job_id, []).append(member)
        events = [
            self._event(job_id, members, node_gpus, now_unix_ns)
            for job_id, members in by_job.items()
        ]
        self._forget(now_unix_ns)
        return events

    def end_state(self, job_id: str) -> str:
        """How a job ended whose pods are all gone: deleted, unless they were taken away."""
        memory = self._memory.get(job_id)
        return (memory.disrupted if memory is not None else None) or "CANCELLED"

    def _event(
        self, job_id: str, members: list[_Member], node_gpus: dict[str, int], now_unix_ns: int
    ) -> JobEvent:
        members = _in_order(members)
        memory = self._remember(job_id, members, now_unix_ns)
        attempts = [m.name.attempt for m in members if m.name.attempt is not None]
        runs = [slot.before + slot.restarts for slot in memory.slots.values()]
        pods = [member.pod for member in members]
        state = _state([pod_state(pod) for pod in pods])
        starts = [at for at in map(started_ns, pods) if at is not None]
        start_ns = max(starts) if starts and state not in {"PENDING", "CONFIGURING"} else None
        restart = max(attempts) if attempts else max(runs)
        if (known := self._resumed.pop(job_id, None)) is not None and not attempts:
            run = known.restart if known.start_unix_ns in (None, start_ns) else known.restart + 1
            memory.first_run = max(0, run - restart)
        restart += 0 if attempts else memory.first_run
        end_ns = None
        if state in ENDED:
            finishes = [at for at in map(finished_ns, pods) if at is not None]
            end_ns = memory.ends.setdefault(restart, max(finishes, default=now_unix_ns))
        first = pods[0]
        created = [at for pod in pods if (at := parse_time(pod.metadata.creation_timestamp))]
        waits_ns = max(created, default=now_unix_ns) if state == "PENDING" else now_unix_ns
        limit_secs = first.spec.active_deadline_seconds
        return JobEvent(
            time_unix_ns=min(now_unix_ns, end_ns or start_ns or waits_ns),
            cluster=self._cluster,
            job_id=job_id,
            restart=restart,
            state=state,
            name=members[0].name.name,
            account=first.metadata.namespace,
            partition=queue(first),
            nodes=_nodes(members) or None,
            gpus=_gpus(members, node_gpus),
            ranks=_ranks(members),
            start_unix_ns=start_ns,
            end_unix_ns=end_ns,
            time_limit_secs=None if limit_secs is None else float(limit_secs),
            checkpoint_dir=variable(first, ("CHECKPOINT_DIR",)),
        )

    def _remember(self, job_id: str, members: list[_Member], now_unix_ns: int) -> _Job:
        owner = members[0].name.owner
        memory = self._memory.get(job_id)
        # Bare pods own themselves: a successor of the same name is the next run, not a new job.
        if memory is None or (memory.owner != owner and owner != members[0].pod.metadata.uid):
            memory = self._memory[job_id] = _Job(owner)
        memory.seen_unix_ns = now_unix_ns
        memory.disrupted = None
        for member in members:
            uid, restarts = member.pod.metadata.uid, restart_count(member.pod)
            slot = memory.slots.setdefault(member.name.slot, _Slot(uid))
            if slot.uid != uid:
                slot.before, slot.uid = slot.before + slot.restarts + 1, uid
            slot.restarts = restarts
        return memory

    def _forget(self, now_unix_ns: int) -> None:
        old = [
            key for key, job in self._memory.items() if now_unix_ns - job.seen_unix_ns > FORGET_NS
        ]
        for key in old:
            del self._memory[key]
        while len(self._memory) > MAX_JOBS:
            del self._memory[next(iter(self._memory))]


def _in_order(members: list[_Member]) -> list[_Member]:
    """The newest pod of each place, leaders first, then by index."""
    newest: dict[str, _Member] = {}
    for member in sorted(members, key=lambda m: m.pod.metadata.creation_timestamp or ""):
        newest[member.name.slot] = member
    return sorted(
        newest.values(),
        key=lambda m: (not m.name.leads, m.name.index is None, m.name.index or 0, m.name.slot),
    )


def _state(states: list[str]) -> str:
    for worst in _WORST:
        if worst in states:
            return worst
    if set(states) == {"COMPLETED"}:
        return "COMPLETED"
    if set(states) <= {"RUNNING", "COMPLETED"}:
        return "RUNNING"
    return "PENDING" if set(states) == {"PENDING"} else "CONFIGURING"


def _nodes(members: list[_Member]) -> list[str]:
    return list(dict.fromkeys(m.pod.spec.node_name for m in members if m.pod.spec.node_name))


def _gpus(members: list[_Member], node_gpus: dict[str, int]) -> dict[str, list[int | str]]:
    """GPUs by index, where a pod has all of its node's: the API does not tell which else."""
    return {
        member.pod.spec.node_name: list(range(member.gpus))
        for member in members
        if node_gpus.get(member.pod.spec.node_name) == member.gpus
    }


def _ranks(members: list[_Member]) -> dict[str, list[int]]:
    """A rank a GPU, numbered pod by pod; nothing where a pod's place or node is not known."""
    sizes = {member.gpus for member in members}
    known = all(
        m.pod.spec.node_name and (m.name.leads or m.name.index is not None) for m in members
    )
    if len(sizes) != 1 or not (known or len(members) == 1) or not members[0].pod.spec.node_name:
        return {}
    ranks: dict[str, list[int]] = {}
    for place, member in enumerate(members):
        first = place * member.gpus
        ranks.setdefault(member.pod.spec.node_name, []).extend(range(first, first + member.gpus))
    return ranks
