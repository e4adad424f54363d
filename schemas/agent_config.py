"""Configuration of the node agent: one section a reader, and the loop's own.

Defaults stand here once. Every reader section has ``enabled`` and ``period_secs``.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from stethoscope.schemas.config import Kafka, PositiveSecs, Secs, Section

# Periods: 1 s is what NVML and sysfs refresh at; slower sources have their own pace.


class GpuNvml(Section, frozen=True):
    """GPUs by NVML.

    ``gpm_period_secs``: how often SM, tensor, DRAM, PCIe and NVLink activity is read, 2 ms of a
    core for each GPU, where all else takes 0.4 ms; each value is the mean since the one before.
    Absent: 3 s, on more than four GPUs 0.75 s for each.
    ``proc_root`` is where processes on a GPU are looked up.
    """

    enabled: bool = True
    period_secs: PositiveSecs = 1.0
    gpm_period_secs: PositiveSecs | None = None
    proc_root: str = "/proc"


class Target(Section, frozen=True):
    """One exporter to scrape. ``bearer_token_file`` is read at each scrape.

    ``node``: whose numbers these are, where the exporter is on another node than the agent.
    """

    url: str
    name: str = ""
    node: str | None = None
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
    """The kernel log: ``/dev/kmsg``, else journald, else ``file``; a ``file`` that is set wins.

    ``history_secs``: how far back the very first read goes (kmsg and journald; a file is read
    whole). ``timezone`` (IANA name) is that of a file's stamps; absent, the machine's own.
    ``quiet_secs``: equal lines that stop this long are sent with their rest.
    """

    enabled: bool = True
    period_secs: PositiveSecs = 1.0
    file: str | None = None
    device: str = "/dev/kmsg"
    history_secs: PositiveSecs = 3600.0
    timezone: str | None = None
    quiet_secs: PositiveSecs = 10.0


class LineRule(Section, frozen=True):
    """A user's own rule: lines in which ``pattern`` (a regular expression) is found go out."""

    name: str
    pattern: str


class TrainLog(Section, frozen=True):
    """Training logs: files by glob, journald units, standard input.

    ``path_patterns``: regular expressions whose groups ``job_id`` and ``rank`` are searched in a
    file's path. ``job_id`` is that of lines whose path names none. A glob's file older than
    ``history_secs`` at the first start is taken up at its end; a path without wildcards is read
    whole. ``max_lines_per_sec`` and ``burst_lines`` are per file; a quarter is kept for errors.
    """

    enabled: bool = True
    period_secs: PositiveSecs = 1.0
    globs: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    stdin: bool = False
    job_id: str | None = None
    path_patterns: list[str] = field(
        default_factory=lambda: [
            r"slurm-(?P<job_id>\d+)\.(?:out|err)$",
            r"job[-_]?(?P<job_id>\d+)",
            r"rank[-_]?(?P<rank>\d+)",
        ]
    )
    rules: list[LineRule] = field(default_factory=list)
    timezone: str | None = None
    history_secs: PositiveSecs = 3600.0
    rescan_secs: PositiveSecs = 5.0
    max_files: Annotated[int, Meta(ge=1, le=4096)] = 512
    max_lines_per_sec: PositiveSecs = 200.0
    burst_lines: Annotated[int, Meta(ge=1)] = 20_000


class Host(Section, frozen=True):
    """CPU, memory, disks, mounts, training processes, checkpoints, versions.

    ``checkpoint_dirs`` are globs of directories that hold one checkpoint an entry; ``mounts``
    are paths to watch besides network file systems and the root; ``process_names`` are globs of
    command lines that count as training when neither Slurm nor torchrun marked them.
    ``numa_period_secs``: how often each training process is asked where its memory lies.
    """

    enabled: bool = True
    period_secs: PositiveSecs = 5.0
    proc_root: str = "/proc"
    checkpoint_dirs: list[str] = field(default_factory=list)
    checkpoint_period_secs: PositiveSecs = 60.0
    mounts: list[str] = field(default_factory=list)
    numa_period_secs: PositiveSecs = 300.0
    process_names: list[str] = field(default_factory=list)


class Slurm(Section, frozen=True):
    """Jobs and node states by Slurm's commands; runs once per cluster, so it is off on nodes.

    ``bin_dir`` holds ``squeue`` and the rest where they are not on the path; ``conf`` is handed
    to them as ``SLURM_CONF``. ``comment_checkpoint_key``: ``KEY=DIR`` in a job's comment names its
    checkpoint directory.
    """

    enabled: bool = False
    period_secs: PositiveSecs = 3.0
    bin_dir: str | None = None
    conf: str | None = None
    timeout_secs: PositiveSecs = 30.0
    nodes: bool = True
    comment_checkpoint_key: str = "checkpoint_dir"


class Kubernetes(Section, frozen=True):
    """Jobs by Kubernetes; runs once per cluster, so it is off on nodes.

    ``api_url`` absent: the service account of the pod the agent runs in. ``gpu_resources`` are
    globs of resource names; only pods that ask for one are followed.
    """

    enabled: bool = False
    period_secs: PositiveSecs = 5.0
    api_url: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    namespace: str | None = None
    label_selector: str | None = None
    gpu_resources: list[str] = field(
        default_factory=lambda: ["nvidia.com/gpu*", "nvidia.com/mig-*", "huawei.com/Ascend*"]
    )
    timeout_secs: PositiveSecs = 10.0


class JobsCommand(Section, frozen=True):
    """Jobs of any other scheduler: a command or a file that gives ``job`` events as JSON Lines."""

    enabled: bool = False
    period_secs: PositiveSecs = 10.0
    command: list[str] = field(default_factory=list)
    file: str | None = None
    timeout_secs: PositiveSecs = 30.0


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
    """Scheduling.

    With ``adaptive``, readers of samples run every ``calm_period_secs`` (or their own period, if
    longer) while no GPU is in use and nothing is wrong, at their own period while one is, and
    every ``alert_period_secs`` for ``alert_hold_secs`` after the node saw trouble itself or while
    a control message names it. ``deadline_secs``: for one call in a worker process.
    """

    adaptive: bool = True
    calm_period_secs: PositiveSecs = 15.0
    alert_period_secs: PositiveSecs = 1.0
    alert_hold_secs: PositiveSecs = 600.0
    heartbeat_secs: PositiveSecs = 10.0
    deadline_secs: PositiveSecs = 10.0
    reprobe_secs: PositiveSecs = 300.0
    max_backoff_secs: PositiveSecs = 60.0


class Spool(Section, frozen=True):
    """Where events wait while Kafka is away: ``spool/`` in the state directory.

    ``max_bytes`` bounds the disk it takes: a node of 8 GPUs and 8 ports fills 256 MiB in about
    eight hours at 1 Hz.
    """

    max_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    segment_bytes: Annotated[int, Meta(ge=1 << 12, le=1 << 26)] = 1 << 20


class Sending(Section, frozen=True):
    """The way to Kafka. ``linger_secs``: how long events gather into one message.

    ``queue_events`` bounds what waits in memory for the sending thread: 17 KB a sample of 8 GPUs.
    """

    linger_secs: Secs = 0.3
    queue_events: Annotated[int, Meta(ge=100)] = 3_000
    batch_events: Annotated[int, Meta(ge=1, le=10_000)] = 500
    flush_timeout_secs: PositiveSecs = 5.0
    min_retry_secs: PositiveSecs = 1.0
    max_retry_secs: PositiveSecs = 30.0


class Control(Section, frozen=True):
    """Wishes from the cluster (topic ``steth.control.v1``), and how far they are granted."""

    enabled: bool = True
    min_period_secs: PositiveSecs = 0.2
    max_hold_secs: PositiveSecs = 3600.0


class MetricsHttp(Section, frozen=True):
    """The agent's own ``/metrics``; off without a port."""

    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    address: str = "127.0.0.1"


class AgentConfig(Section, frozen=True):
    """Everything an agent can be told. ``node`` absent: the host's name, canonical form."""

    cluster: str = "default"
    node: str | None = None
    kafka: Kafka = field(default_factory=Kafka)
    state_dir: str | None = None
    loop: Loop = field(default_factory=Loop)
    spool: Spool = field(default_factory=Spool)
    sending: Sending = field(default_factory=Sending)
    control: Control = field(default_factory=Control)
    metrics: MetricsHttp = field(default_factory=MetricsHttp)
    gpu_nvml: GpuNvml = field(default_factory=GpuNvml)
    prometheus: Prometheus = field(default_factory=Prometheus)
    ib_sysfs: IbSysfs = field(default_factory=IbSysfs)
    kernel_log: KernelLog = field(default_factory=KernelLog)
    train_log: TrainLog = field(default_factory=TrainLog)
    host: Host = field(default_factory=Host)
    slurm: Slurm = field(default_factory=Slurm)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    jobs_command: JobsCommand = field(default_factory=JobsCommand)
    topology: Topology = field(default_factory=Topology)
