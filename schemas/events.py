"""Events, version 1: what agents send and files hold.

One struct a kind, tagged by ``kind``. Unknown fields are ignored, fields are only ever added.
Absent is ``None``. Times are ``*_unix_ns`` (int, nanoseconds since 1970 UTC).
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

Value: TypeAlias = float | None
# JSON knows no bounds: what 63 bits cannot hold is refused when read, before arithmetic meets it.
Int: TypeAlias = Annotated[int, Meta(ge=-(2**62), le=2**62)]
UnixNs: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]


class Device(Struct, frozen=True, omit_defaults=True):
    """One GPU of a scrape."""

    uuid: str
    index: Int
    pci: str = ""
    model: str = ""


class Port(Struct, frozen=True, omit_defaults=True):
    """One InfiniBand or RoCE port of a scrape."""

    device: str
    port: Int
    guid: str = ""
    state: str = ""
    phys_state: str = ""
    rate_gbps: float | None = None
    link_layer: str = ""
    netdev: str = ""


class Mount(Struct, frozen=True, omit_defaults=True):
    """One mounted file system."""

    path: str
    fstype: str = ""
    used_ratio: float | None = None
    await_secs: float | None = None


class Process(Struct, frozen=True, omit_defaults=True):
    """One training process, or a process seen on a GPU.

    ``numa_remote_ratio``: the share of its memory on other NUMA nodes than it runs on.
    """

    name: str
    pid: Int
    user: str | None = None
    job_id: str | None = None
    rank: Int | None = None
    gpu_uuid: str | None = None
    alive: bool = True
    container: str | None = None
    numa_remote_ratio: float | None = None


class Checkpoint(Struct, frozen=True, omit_defaults=True):
    """The newest checkpoint of one directory."""

    path: str
    job_id: str | None = None
    newest_unix_ns: UnixNs | None = None
    newest_step: Int | None = None
    bytes: Int | None = None
    complete: bool | None = None


class BenchRow(Struct, frozen=True, omit_defaults=True):
    """One message size of a benchmark."""

    size_bytes: Int
    time_secs: float | None = None
    algbw_bytes_per_sec: float | None = None
    busbw_bytes_per_sec: float | None = None


class Link(Struct, frozen=True, omit_defaults=True):
    """A cable from a node's port to a switch."""

    node: str
    device: str
    port: Int
    switch: str
    switch_port: Int | None = None


class SwitchLink(Struct, frozen=True, omit_defaults=True):
    """A cable between two switches."""

    switch: str
    port: Int
    peer: str
    peer_port: Int | None = None


class NodeInfo(Struct, frozen=True, omit_defaults=True):
    """What the scheduler or an inventory says of a node."""

    ip: str | None = None
    bmc: str | None = None
    aliases: list[str] = field(default_factory=list)
    gpu_count: Int | None = None
    state: str | None = None
    reason: str | None = None
    maintenance_until_unix_ns: UnixNs | None = None


class _Event(Struct, frozen=True, tag_field="kind", kw_only=True, omit_defaults=True):
    """Fields common to all kinds."""

    time_unix_ns: UnixNs
    cluster: str = "default"
    received_unix_ns: UnixNs | None = None


class _NodeEvent(_Event, frozen=True, kw_only=True):
    """Fields common to the events of a node."""

    node: str
    boot_id: str = ""
    stream: str | None = None
    seq: Int = 0


class GpuEvent(_NodeEvent, frozen=True, tag="gpu", kw_only=True):
    """A whole node's GPU scrape; ``metrics[name][i]`` belongs to ``devices[i]``."""

    devices: list[Device]
    metrics: dict[str, list[Value]]
    period_secs: float | None = None


class IbEvent(_NodeEvent, frozen=True, tag="ib", kw_only=True):
    """A whole node's InfiniBand scrape; lists run along ``ports``."""

    ports: list[Port]
    counters: dict[str, list[int | None]] = field(default_factory=dict)
    metrics: dict[str, list[Value]] = field(default_factory=dict)
    period_secs: float | None = None


class NodeEvent(_NodeEvent, frozen=True, tag="node", kw_only=True):
    """Host-wide numbers, mounts, training processes, checkpoints and versions."""

    metrics: dict[str, Value] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    versions: dict[str, str | None] = field(default_factory=dict)
    period_secs: float | None = None


class LogEvent(_NodeEvent, frozen=True, tag="log", kw_only=True):
    """One log line; ``count`` equal lines since the previous event of it, this one included."""

    source: Literal["kernel", "train", "nccl", "system"]
    line: str
    count: Int = 1
    job_id: str | None = None
    rank: Int | None = None
    path: str | None = None


class HeartbeatEvent(_NodeEvent, frozen=True, tag="heartbeat", kw_only=True):
    """The agent lives."""

    period_secs: float | None = None
    agent_version: str = ""
    spooled: Int = 0
    dropped_total: Int = 0
    readers: dict[str, Literal["ok", "failing", "unsupported"]] = field(default_factory=dict)


class BenchEvent(_NodeEvent, frozen=True, tag="bench", kw_only=True):
    """The result of one benchmark run.

    ``results``: verdicts by test (``pass``, ``fail``, ``warn``, ``skip``); ``values``: other
    numbers, the unit in their names.
    """

    test: str
    job_id: str | None = None
    world_size: Int | None = None
    rows: list[BenchRow] = field(default_factory=list)
    versions: dict[str, str | None] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)


class JobEvent(_Event, frozen=True, tag="job", kw_only=True):
    """A job's placement and state, in Slurm's words."""

    job_id: str
    state: str
    restart: Int = 0
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    nodes: list[str] | None = None
    nodelist: str | None = None
    gpus: dict[str, list[Int | str]] = field(default_factory=dict)
    ranks: dict[str, list[Int]] = field(default_factory=dict)
    start_unix_ns: UnixNs | None = None
    end_unix_ns: UnixNs | None = None
    time_limit_secs: float | None = None
    checkpoint_dir: str | None = None


class TopologyEvent(_Event, frozen=True, tag="topology", kw_only=True):
    """Cables, racks and nodes of the cluster."""

    links: list[Link] = field(default_factory=list)
    switch_links: list[SwitchLink] = field(default_factory=list)
    racks: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, NodeInfo] = field(default_factory=dict)


class ClockEvent(_Event, frozen=True, tag="clock", kw_only=True):
    """Time passed in silence, on the partition (or, where given, for the node) that carries it."""

    node: str | None = None


Event: TypeAlias = (
    GpuEvent
    | IbEvent
    | NodeEvent
    | LogEvent
    | HeartbeatEvent
    | BenchEvent
    | JobEvent
    | TopologyEvent
    | ClockEvent
)
AnyNodeEvent: TypeAlias = GpuEvent | IbEvent | NodeEvent | LogEvent | HeartbeatEvent | BenchEvent
KINDS: tuple[str, ...] = (
    "gpu",
    "ib",
    "node",
    "log",
    "heartbeat",
    "bench",
    "job",
    "topology",
    "clock",
)


def kind_of(event: Event) -> str:
    """The event's kind, as written in its ``kind`` field."""
    tag = type(event).__struct_config__.tag
    return str(tag)


def sort_key(event: Event) -> tuple[int, str, str]:
    """Order of release: (time, kind, id).

    >>> sort_key(ClockEvent(time_unix_ns=7))
    (7, 'clock', 'default//')
    """
    return event.time_unix_ns, kind_of(event), event_id(event)


def event_id(event: Event) -> str:
    """What makes two deliveries the same event.

    Events of a node: (cluster, node, boot_id, stream or kind, seq). ``job`` and ``topology``:
    (cluster, kind, key, time). ``clock`` has no identity beyond its time.
    """
    if isinstance(event, ClockEvent):
        return f"{event.cluster}//{event.node or ''}"
    if isinstance(event, JobEvent):
        return f"{event.cluster}/job/{event.job_id}.{event.restart}/{event.time_unix_ns}"
    if isinstance(event, TopologyEvent):
        return f"{event.cluster}/topology//{event.time_unix_ns}"
    stream = event.stream or kind_of(event)
    return f"{event.cluster}/{event.node}/{event.boot_id}/{stream}/{event.seq:020d}"
