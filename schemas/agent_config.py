"""Configuration of the node agent: one section a reader, and the loop's own.

Defaults stand here once. Every reader section has ``enabled`` and ``period_secs``.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from stethoscope.schemas.config import Kafka, PositiveSecs, Section

# Periods: 1 s is what NVML and sysfs refresh at; slower sources have their own pace.


class GpuNvml(Section, frozen=True):
    """GPUs by NVML. ``library`` names another libnvidia-ml.so.1."""

    enabled: bool = True
    period_secs: PositiveSecs = 1.0
    library: str | None = None
    processes_period_secs: PositiveSecs = 2.0


class Target(Section, frozen=True):
    """One exporter to scrape. ``bearer_token_file`` is read at each scrape."""

    url: str
    name: str = ""
    timeout_secs: PositiveSecs = 5.0
    bearer_token_file: str | None = None
    ca_file: str | None = None


class Prometheus(Section, frozen=True):
    """Prometheus exporters. ``mapping_files`` extend the packaged mapping, the last one wins."""

    enabled: bool = True
    period_secs: PositiveSecs = 15.0
    targets: list[Target] = field(default_factory=list)
    mapping_files: list[str] = field(default_factory=list)


class IbSysfs(Section, frozen=True):
    """InfiniBand and RoCE ports. ``root`` stands for ``/sys/class/infiniband``."""

    enabled: bool = True
    period_secs: PositiveSecs = 1.0
    root: str = "/sys/class/infiniband"
    optics: bool = True
    optics_period_secs: PositiveSecs = 60.0
    tool_timeout_secs: PositiveSecs = 10.0


class KernelLog(Section, frozen=True):
    """The kernel log: ``/dev/kmsg``, journald, else ``file``."""

    enabled: bool = True
    period_secs: PositiveSecs = 1.0
    file: str | None = None


class TrainLog(Section, frozen=True):
    """Training logs by glob."""

    enabled: bool = True
    period_secs: PositiveSecs = 1.0
    globs: list[str] = field(default_factory=list)


class Host(Section, frozen=True):
    """CPU, memory, disks, mounts, training processes, checkpoints, versions.

    ``checkpoint_dirs`` are globs of directories that hold one checkpoint an entry; ``mounts``
    are paths to watch besides network file systems and the root; ``process_names`` are globs of
    command lines that count as training when neither Slurm nor torchrun marked them.
    """

    enabled: bool = True
    period_secs: PositiveSecs = 5.0
    proc_root: str = "/proc"
    checkpoint_dirs: list[str] = field(default_factory=list)
    checkpoint_period_secs: PositiveSecs = 60.0
    mounts: list[str] = field(default_factory=list)
    process_names: list[str] = field(default_factory=list)


class Slurm(Section, frozen=True):
    """Jobs by Slurm; runs once per cluster, so it is off on nodes."""

    enabled: bool = False
    period_secs: PositiveSecs = 10.0


class Kubernetes(Section, frozen=True):
    """Jobs by Kubernetes; runs once per cluster, so it is off on nodes."""

    enabled: bool = False
    period_secs: PositiveSecs = 5.0


class Topology(Section, frozen=True):
    """Cables, racks and names; runs once per cluster, so it is off on nodes.

    ``source``: what ``file`` holds, or the command to run where ``file`` is absent (only
    ``ibnetdiscover`` and ``iblinkinfo`` are commands).
    """

    enabled: bool = False
    period_secs: PositiveSecs = 300.0
    source: Literal["ibnetdiscover", "iblinkinfo", "slurm", "csv"] = "ibnetdiscover"
    file: str | None = None
    aliases_file: str | None = None
    timeout_secs: PositiveSecs = 60.0


class Loop(Section, frozen=True):
    """Scheduling."""

    jitter_ratio: Annotated[float, Meta(ge=0, le=0.5)] = 0.1


class Spool(Section, frozen=True):
    """Where events wait while Kafka is away."""

    directory: str = "/var/lib/stethoscope/spool"
    max_bytes: Annotated[int, Meta(ge=1 << 20)] = 1 << 30


class AgentConfig(Section, frozen=True):
    """Everything an agent can be told. ``node`` absent: the host's name, canonical form."""

    cluster: str = "default"
    node: str | None = None
    kafka: Kafka = field(default_factory=Kafka)
    loop: Loop = field(default_factory=Loop)
    spool: Spool = field(default_factory=Spool)
    gpu_nvml: GpuNvml = field(default_factory=GpuNvml)
    prometheus: Prometheus = field(default_factory=Prometheus)
    ib_sysfs: IbSysfs = field(default_factory=IbSysfs)
    kernel_log: KernelLog = field(default_factory=KernelLog)
    train_log: TrainLog = field(default_factory=TrainLog)
    host: Host = field(default_factory=Host)
    slurm: Slurm = field(default_factory=Slurm)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    topology: Topology = field(default_factory=Topology)
