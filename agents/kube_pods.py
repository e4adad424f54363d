"""Pods as the API server describes them, and what a pod says of its job. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from msgspec import Struct, field

NS = 10**9
# Who names a pod's job, the widest first: a JobSet's pods carry the name of their Job too.
JOB_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
    "training.kubeflow.org/job-name",
    "pytorch-job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
INDEX_LABELS = (
    "jobset.sigs.k8s.io/job-global-index",
    "training.kubeflow.org/replica-index",
    "volcano.sh/task-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "batch.kubernetes.io/job-completion-index",
    "apps.kubernetes.io/pod-index",
)
RANK_VARIABLES = ("PET_NODE_RANK", "NODE_RANK", "GROUP_RANK", "RANK", "JOB_COMPLETION_INDEX")
ATTEMPT_LABELS = ("jobset.sigs.k8s.io/restart-attempt",)
QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "queue")
# Why a pod was taken away, in the words of its DisruptionTarget condition and of its status.
_NODE_GONE = {"DeletionByTaintManager", "DeletionByPodGC", "NodeLost", "NodeShutdown", "Terminated"}
_FAILURES = {"DeadlineExceeded": "TIMEOUT", "OOMKilled": "OUT_OF_MEMORY", "Evicted": "PREEMPTED"}


class Owner(Struct):
    """An owner reference."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(Struct, rename="camel"):
    """What every object says of itself."""

    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: list[Owner] = field(default_factory=list)
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str = ""


class Variable(Struct):
    """An environment variable; those from references have no value here."""

    name: str
    value: str | None = None


class Resources(Struct):
    """What a container asks for: resource to quantity."""

    limits: dict[str, str | int] = field(default_factory=dict)
    requests: dict[str, str | int] = field(default_factory=dict)


class Container(Struct):
    """A container as wanted."""

    name: str = ""
    env: list[Variable] = field(default_factory=list)
    resources: Resources = field(default_factory=Resources)


class PodSpec(Struct, rename="camel"):
    """A pod as wanted."""

    containers: list[Container] = field(default_factory=list)
    node_name: str = ""
    active_deadline_seconds: int | None = None


class Moment(Struct, rename="camel"):
    """A container's state: running or terminated."""

    started_at: str | None = None
    finished_at: str | None = None
    reason: str = ""


class ContainerState(Struct):
    """At most one is set; neither: it waits."""

    running: Moment | None = None
    terminated: Moment | None = None


class ContainerStatus(Struct, rename="camel"):
    """A container as it is."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState = field(default_factory=ContainerState)


class Condition(Struct, rename="camel"):
    """One of an object's conditions."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(Struct, rename="camel"):
    """A pod as it is."""

    phase: str = "Pending"
    reason: str = ""
    start_time: str | None = None
    conditions: list[Condition] = field(default_factory=list)
    container_statuses: list[ContainerStatus] = field(default_factory=list)


class Pod(Struct):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


class JobName(Struct, frozen=True):
    """Whose pod it is.

    ``owner``: its owner's uid. ``slot``: its place among the job's pods, of which ``leads`` (a
    PyTorchJob's master) and ``index`` tell the order. ``attempt``: the owner's own count of runs.
    """

    job_id: str
    name: str
    owner: str
    slot: str
    leads: bool
    index: int | None
    attempt: int | None


def gpu_count(pod: Pod, resources: Sequence[str]) -> int:
    """GPUs that the pod asks for: the resources whose names match one of the globs."""
    total = 0
    for container in pod.spec.containers:
        asked = container.resources.requests | container.resources.limits
        for name, quantity in asked.items():
            if any(fnmatchcase(name, glob) for glob in resources) and str(quantity).isdecimal():
                total += int(quantity)
    return total


def job_name(pod: Pod) -> JobName:
    """Job, place and attempt, from labels, owner, annotations and environment."""
    meta = pod.metadata
    owner = next((o for o in meta.owner_references if o.controller), Owner())
    name = _first(meta.labels, JOB_LABELS) or owner.name or meta.name
    index = _index(pod)
    role = _first(meta.labels, ("training.kubeflow.org/replica-type", "volcano.sh/task-spec")) or ""
    attempt = _first(meta.labels, ATTEMPT_LABELS) or ""
    return JobName(
        job_id=f"{meta.namespace}/{name}",
        name=name,
        owner=owner.uid or meta.uid,
        slot=f"{role}/{meta.name if index is None else index}",
        leads=role.lower() in {"master", "launcher", "chief", "leader", "head"},
        index=index,
        attempt=int(attempt) if attempt.isdecimal() else None,
    )


def pod_state(pod: Pod) -> str:
    """The pod's state in Slurm's words; ``CONFIGURING`` while its containers are not yet up."""
    status = pod.status
    if taken := disruption(pod):
        return taken
    if status.phase == "Succeeded":
        return "COMPLETED"
    if status.phase == "Failed":
        reasons = [status.reason, *(ended.reason for ended in _terminated(pod))]
        found = [_FAILURES[reason] for reason in reasons if reason in _FAILURES]
        return found[0] if found else "FAILED"
    if pod.metadata.deletion_timestamp:
        return "CANCELLED"
    if status.phase == "Running":
        return "RUNNING"
    return "CONFIGURING" if pod.spec.node_name else "PENDING"


def disruption(pod: Pod) -> str | None:
    """``PREEMPTED`` or ``NODE_FAIL`` for a pod that is being taken away, else ``None``."""
    if pod.status.reason in _NODE_GONE:
        return "NODE_FAIL"
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return "NODE_FAIL" if condition.reason in _NODE_GONE else "PREEMPTED"
    return "PREEMPTED" if pod.status.reason in {"Evicted", "Preempting", "Preempted"} else None


def restart_count(pod: Pod) -> int:
    """How often its containers were started again in place."""
    return max((status.restart_count for status in pod.status.container_statuses), default=0)


def started_ns(pod: Pod) -> int | None:
    """When its last container came up, as they run now; ``None`` before."""
    moments = [c.state.running or c.state.terminated for c in pod.status.container_statuses]
    times = [parse_time(moment.started_at) for moment in moments if moment is not None]
    known = [at for at in times if at is not None]
    if known:
        return max(known)
    return None if pod.status.phase == "Pending" else parse_time(pod.status.start_time)


def finished_ns(pod: Pod) -> int | None:
    """When its last container ended; ``None`` where that is not told."""
    times = [parse_time(ended.finished_at) for ended in _terminated(pod)]
    return max((at for at in times if at is not None), default=None)


def parse_time(text: str | None) -> int | None:
    """Unix nanoseconds of Kubernetes' UTC times; ``None`` for what is none.

    >>> parse_time("2026-11-29T16:00:00Z")
    1795968000000000000
    """
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * NS + since.microseconds * 1000


def variable(pod: Pod, names: Sequence[str]) -> str | None:
    """The value of the first of those environment variables that a container of the pod has."""
    values = {v.name: v.value for c in pod.spec.containers for v in c.env if v.value}
    return next((values[name] for name in names if name in values), None)


def queue(pod: Pod) -> str | None:
    """The queue it was submitted to."""
    return _first(pod.metadata.labels, QUEUE_LABELS)


def _index(pod: Pod) -> int | None:
    labels = pod.metadata.annotations | pod.metadata.labels
    text = variable(pod, RANK_VARIABLES[:-1]) or _first(labels, INDEX_LABELS)
    text = text or variable(pod, RANK_VARIABLES[-1:]) or ""
    if not text.isdecimal():
        return None
    return int(text)


def _terminated(pod: Pod) -> list[Moment]:
    states = (status.state.terminated for status in pod.status.container_statuses)
    return [ended for ended in states if ended is not None]


def _first(labels: dict[str, str], names: Sequence[str]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)
