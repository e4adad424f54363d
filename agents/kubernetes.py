"""Jobs and nodes of a Kubernetes cluster, by its API. Runs once per cluster."""

import os
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct, field

from stethoscope.agents import job_changes
from stethoscope.agents.job_changes import end_of
from stethoscope.agents.job_reader import JobReader
from stethoscope.agents.kube_client import KubeClient, KubeError, Server, in_cluster
from stethoscope.agents.kube_jobs import KubeJobs
from stethoscope.agents.kube_pods import NS, Condition, Metadata, Pod
from stethoscope.agents.reader import Context, Counters, Now
from stethoscope.schemas.agent_config import Kubernetes
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import Event, JobEvent, NodeInfo, TopologyEvent
from stethoscope.schemas.job_states import ENDED

CLOCK_LAG_NS = 2 * NS  # its times are whole seconds
_GONE = 410
T = TypeVar("T")


class Address(Struct):
    """One of a node's addresses."""

    type: str
    address: str


class NodeSpec(Struct):
    """A node as wanted."""

    unschedulable: bool = False


class NodeStatus(Struct):
    """A node as it is."""

    conditions: list[Condition] = field(default_factory=list)
    addresses: list[Address] = field(default_factory=list)
    capacity: dict[str, str | int] = field(default_factory=dict)


class Node(Struct):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


class Seen(Struct, Generic[T]):
    """What a look brought: everything (``whole``), or what changed and went since the last."""

    whole: bool
    there: list[T]
    gone: list[T]


class ListWatch(Generic[T]):
    """Objects of one path: listed once, then watched; listed again when the server forgot."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        query: dict[str, str],
        kind: type[T],
        counters: Counters,
    ) -> None:
        self._client = client
        self._path = path
        self._query = query
        self._decoder = msgspec.json.Decoder(kind)
        self._counters = counters
        self.resource_version: str | None = None

    def look(self) -> Seen[T]:
        """What is new.

        Raises:
            KubeError, ServiceError: refused; not reachable. The next look goes on from here.
        """
        if self.resource_version is not None:
            try:
                return self._watch(self.resource_version)
            except KubeError as error:
                if error.status != _GONE:
                    raise
                self._counters.error(f"{self._path} expired")
        raws, version = self._client.list_all(self._path, self._query)
        self.resource_version = version
        return Seen(True, [item for raw in raws if (item := self._decode(raw)) is not None], [])

    def _watch(self, version: str) -> Seen[T]:
        seen: Seen[T] = Seen(False, [], [])
        for change in self._client.watch(self._path, self._query, version):
            version = msgspec.json.decode(change.object, type=_Versioned).metadata.resource_version
            if change.type == "BOOKMARK" or (item := self._decode(change.object)) is None:
                continue
            (seen.gone if change.type == "DELETED" else seen.there).append(item)
        self.resource_version = version
        return seen

    def _decode(self, raw: msgspec.Raw) -> T | None:
        try:
            return self._decoder.decode(raw)
        except msgspec.DecodeError:
            self._counters.invalid_samples_total += 1
            return None


class _Version(Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(Struct):
    metadata: _Version = field(default_factory=_Version)


class KubernetesReader(JobReader):
    """Tells of each job with GPUs when it changes, of nodes when they do, and of time passing."""

    name = "kubernetes"

    def __init__(self, context: Context, section: Kubernetes) -> None:
        super().__init__(context, section.period_secs)
        self._section = section
        self._jobs = KubeJobs(context.cluster, section.gpu_resources)
        self._pods: ListWatch[Pod] | None = None
        self._nodes: ListWatch[Node] | None = None
        self._known_nodes: dict[str, NodeInfo] = {}

    def probe(self) -> None:
        """There is an API server to ask.

        Raises:
            ReaderUnsupported: none is configured and this is no pod.
            ServiceError: its URL or certificate cannot be used.
        """
        if self._pods is not None:
            return
        server = self._server()
        if server is None:
            message = "kubernetes.api_url is not set and this is not a pod with a service account"
            raise ReaderUnsupported(message)
        client = KubeClient(server)
        namespace = self._section.namespace
        path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        labels = self._section.label_selector
        query = {"labelSelector": labels} if labels else {}
        self._pods = ListWatch(client, path, query, Pod, self.counters)
        self._nodes = ListWatch(client, "/api/v1/nodes", {}, Node, self.counters)

    def read(self, now: Now) -> list[Event]:
        """What changed since the last read, then the clock.

        Raises:
            ReaderUnsupported: as ``probe``.
            KubeError, ServiceError: refused (the message says what is missing); not reachable.
        """
        self.probe()
        events: list[Event] = []
        if topology := self._look_at_nodes(now):
            events.append(topology)
        self._look_at_pods()
        counts = {name: node.gpu_count or 0 for name, node in self._known_nodes.items()}
        jobs = self._jobs.jobs(counts, now.unix_ns)
        ends = [end for job in jobs if (end := self._end_before(job, now)) is not None]
        gone = self._changes.missing([*jobs, *ends])
        ends += [end_of(job, self._jobs.end_state(job.job_id), now.unix_ns) for job in gone]
        events.extend(self._changes.update([*ends, *jobs], now.unix_ns))
        events.append(self._known_until(now.unix_ns - CLOCK_LAG_NS))
        return events

    def _resume(self, runs: list[job_changes.Seen]) -> None:
        self._jobs.resume(runs)

    def _server(self) -> Server | None:
        section = self._section
        if section.api_url is None:
            return in_cluster(dict(os.environ), section.timeout_secs)
        return Server(section.api_url, section.token_file, section.ca_file, section.timeout_secs)

    def _look_at_pods(self) -> None:
        if self._pods is None:
            return
        seen = self._pods.look()
        if seen.whole:
            self._jobs.replace_all(seen.there)
            return
        for pod in seen.there:
            self._jobs.put(pod)
        for pod in seen.gone:
            self._jobs.drop(pod)

    def _look_at_nodes(self, now: Now) -> TopologyEvent | None:
        if self._nodes is None:
            return None
        try:
            seen = self._nodes.look()
        except KubeError as error:
            # A role for pods alone gives jobs without node states.
            if error.status != 403:
                raise
            self.counters.error("nodes forbidden")
            self._nodes = None
            return None
        there = {node.metadata.name: self._info(node) for node in seen.there}
        gone = {node.metadata.name for node in seen.gone}
        if seen.whole:
            gone = set(self._known_nodes) - set(there)
        there |= {name: NodeInfo(state="down", reason="deleted") for name in gone}
        changed = {
            name: node for name, node in there.items() if self._known_nodes.get(name) != node
        }
        self._known_nodes |= there
        if not changed:
            return None
        # A topology event's id is its time; other readers may write one at this very moment.
        return TopologyEvent(time_unix_ns=now.unix_ns + 2, cluster=self._cluster, nodes=changed)

    def _info(self, node: Node) -> NodeInfo:
        addresses = {address.type: address.address for address in node.status.addresses}
        ready = next((c for c in node.status.conditions if c.type == "Ready"), None)
        is_down = ready is not None and ready.status != "True"
        gpus = [
            int(count)
            for name, count in node.status.capacity.items()
            if any(fnmatchcase(name, glob) for glob in self._section.gpu_resources)
            and str(count).isdecimal()
        ]
        host = addresses.get("Hostname", node.metadata.name)
        return NodeInfo(
            ip=addresses.get("InternalIP"),
            aliases=[] if host == node.metadata.name else [host],
            gpu_count=sum(gpus) if gpus else None,
            state="down" if is_down else "drained" if node.spec.unschedulable else "idle",
            reason=(ready.message or ready.reason) if ready is not None and is_down else None,
        )

    def _end_before(self, job: JobEvent, now: Now) -> JobEvent | None:
        """The end of the run before, where it was not seen."""
        told = self._changes.told(job.job_id, job.restart - 1)
        if told is None or told.state in ENDED:
            return None
        return end_of(told, "FAILED", now.unix_ns)
