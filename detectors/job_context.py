"""What the job stage knows of one run of a job: placement, steps, marks, and its GPUs lately.

Plain data that detectors read. All of it is bounded and goes into snapshots.
"""

import math

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field, structs

from stethoscope.schemas.events import JobEvent, Process
from stethoscope.schemas.findings import NS, Subject
from stethoscope.schemas.job_states import ended_ns
from stethoscope.schemas.views import GpuView, HostView, LogView, Mark, Step

# What job detectors look at, in this order along the last axis of ``JobContext.recent``.
JOB_METRICS = (
    "gpu_utilization_ratio",
    "gr_engine_active_ratio",
    "sm_active_ratio",
    "tensor_active_ratio",
    "power_watts",
    "sm_clock_mhz",
    "processes_count",
    "nvlink_tx_bytes_per_sec",
    "pcie_tx_bytes_per_sec",
    "dram_active_ratio",
)
UTIL, ENGINE, SM, TENSOR, POWER, CLOCK, PROCESSES, NVLINK, PCIE, DRAM = range(len(JOB_METRICS))
RECENT_SECS = 60
# Agents read every 15 s while nothing happens: so long a value holds, and then a node is not heard.
LOOK_BACK_SECS = 20
HEARD_SECS = 30
PACE_LINES = 21
MAX_STEPS = 1000
MAX_MARKS = 400
Floats = npt.NDArray[np.float64]


class Gpu(Struct, frozen=True):
    """One GPU of a job. ``rank`` is known only where the job says so."""

    node: str
    index: int
    uuid: str | None = None
    rank: int | None = None


class JobContext(Struct):
    """One run of one job. Its identity is (cluster, job id, restart, start time).

    ``recent[s % 60, g, m]`` is second ``s`` of GPU ``g``; ``healthy[g, m]`` the slow mean of the
    seconds in which the job stepped undisturbed, ``healthy_secs`` of them. ``host_ns``: when each
    node's host was last heard; ``beats``: times of lines a second apart or more. Bounds: 1,000
    steps, 21 beats, 400 marks and those of the newest second, 60 s of GPU samples.
    """

    key: str
    cluster: str
    job_id: str
    first_seen_ns: int
    event: JobEvent | None = None
    ended_ns: int | None = None
    gpus: list[Gpu] = field(default_factory=list)
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    new_steps: int = 0
    lead: tuple[str, int | None] | None = None
    segment_ns: int = 0
    step_count: int = 0
    marks: list[Mark] = field(default_factory=list)
    new_marks: int = 0
    fabrics: dict[str, list[str]] = field(default_factory=dict)
    gpu_model: str = ""
    host: dict[str, dict[str, float | None]] = field(default_factory=dict)
    processes: dict[str, list[Process]] = field(default_factory=dict)
    listed: dict[str, dict[str, list[Process]]] = field(default_factory=dict)
    host_ns: dict[str, int] = field(default_factory=dict)
    recent: Floats = field(default_factory=lambda: np.empty((RECENT_SECS, 0, len(JOB_METRICS))))
    healthy: Floats = field(default_factory=lambda: np.empty((0, len(JOB_METRICS))))
    healthy_count: Floats = field(default_factory=lambda: np.empty((0, len(JOB_METRICS))))
    healthy_secs: int = 0
    healthy_cpu: dict[str, float] = field(default_factory=dict)
    disturbed_ns: int = 0
    beats: list[int] = field(default_factory=list)
    pace_secs: float | None = None

    def subject(self) -> Subject:
        """The job; on its node when it has just one."""
        nodes = self.nodes()
        return Subject(
            cluster=self.cluster, node=nodes[0] if len(nodes) == 1 else None, job_id=self.job_id
        )

    def gpu_subject(self, gpu: Gpu) -> Subject:
        """One of its GPUs."""
        return Subject(
            cluster=self.cluster,
            node=gpu.node,
            gpu_uuid=gpu.uuid,
            gpu_index=gpu.index,
            job_id=self.job_id,
            rank=gpu.rank,
        )

    def rank_subject(self, rank: int) -> Subject:
        """The place of a rank; without placement just its number."""
        for gpu in self.gpus:
            if gpu.rank == rank:
                return self.gpu_subject(gpu)
        return Subject(
            cluster=self.cluster, node=self.subject().node, job_id=self.job_id, rank=rank
        )

    def nodes(self) -> list[str]:
        """Its nodes, in the order of placement."""
        if self.event and self.event.nodes:
            return self.event.nodes
        return sorted(self.host)

    def running(self) -> bool:
        """Whether the job has not ended, as far as anybody said."""
        return self.ended_ns is None

    def is_shared(self) -> bool:
        """Whether anything is known of its GPUs."""
        return bool(self.gpus)

    def last_step_ns(self) -> int | None:
        """When the newest step line was printed."""
        return self.steps[-1].time_unix_ns if self.steps else None

    def fresh_steps(self) -> list[Step]:
        """Step lines of this tick."""
        return self.steps[len(self.steps) - self.new_steps :] if self.new_steps else []

    def fresh_marks(self, *marks: str) -> list[Mark]:
        """Marks of this tick, of the named kinds."""
        fresh = self.marks[len(self.marks) - self.new_marks :] if self.new_marks else []
        return [m for m in fresh if m.mark in marks]

    def marks_since(self, since_ns: int, *marks: str) -> list[Mark]:
        """Remembered marks of the named kinds that are not older."""
        return [m for m in self.marks if m.time_unix_ns >= since_ns and m.mark in marks]

    def is_pause(self, from_ns: int, to_ns: int) -> bool:
        """Whether the log tells of a save or an evaluation in that time, give or take a second."""
        marks = self.marks_since(from_ns - NS, "checkpoint_begin", "checkpoint_end", "evaluation")
        return any(m.time_unix_ns <= to_ns + NS for m in marks)

    def window(self, now_ns: int, secs: int) -> Floats:
        """``float64[gpus, metrics]``: mean over the last ``secs`` seconds, NaN where unseen."""
        last = now_ns // NS
        rows = [s % RECENT_SECS for s in range(last - secs + 1, last + 1)]
        return nan_mean(self.recent[rows])

    def latest(self, now_ns: int, secs: int) -> Floats:
        """``float64[gpus, metrics]``: the newest value of the last ``secs`` seconds."""
        last = now_ns // NS
        newest: Floats = self.recent[last % RECENT_SECS]
        for second in range(last - 1, last - secs, -1):
            unknown = np.isnan(newest)
            if not unknown.any():
                break
            newest = np.where(unknown, self.recent[second % RECENT_SECS], newest)
        return newest

    def second(self, now_ns: int) -> Floats:
        """``float64[gpus, metrics]`` of the tick's own second."""
        latest: Floats = self.recent[(now_ns // NS) % RECENT_SECS]
        return latest


def nan_mean(values: Floats) -> Floats:
    """Mean along the first axis without NaN; NaN where nothing is known. Silent on empty."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def place(context: JobContext, event: JobEvent) -> None:
    """Take over what a ``job`` event says: state, and GPUs with their ranks."""
    before, context.event = context.event, event
    context.ended_ns = ended_ns(event)
    if not event.gpus:
        return
    gpus = _placed(event)
    if before is None or before.gpus != event.gpus:
        _settle_on(context, gpus)
    elif before.ranks != event.ranks:
        known = zip(context.gpus, gpus, strict=True)
        context.gpus = [structs.replace(old, rank=new.rank) for old, new in known]


def _placed(event: JobEvent) -> list[Gpu]:
    """The event's GPUs in its order; one named by its UUID gets its index when it is seen."""
    gpus: list[Gpu] = []
    for node, devices in event.gpus.items():
        ranks = event.ranks.get(node, [])
        if not ranks and len(event.gpus) == 1:
            ranks = list(range(len(devices)))  # one node: launchers number ranks by device
        paired = len(ranks) == len(devices)
        for position, device in enumerate(devices):
            index = device if isinstance(device, int) else position
            uuid = device if isinstance(device, str) else None
            gpus.append(Gpu(node, index, uuid, ranks[position] if paired else None))
    return gpus


def _settle_on(context: JobContext, gpus: list[Gpu]) -> None:
    context.gpus = gpus
    context.positions = {}
    for i, gpu in enumerate(gpus):
        context.positions.setdefault(gpu.node, {})[gpu.uuid or str(gpu.index)] = i
    context.recent = np.full((RECENT_SECS, len(gpus), len(JOB_METRICS)), np.nan)
    context.healthy = np.full((len(gpus), len(JOB_METRICS)), np.nan)
    context.healthy_count = np.zeros((len(gpus), len(JOB_METRICS)))
    context.healthy_secs = 0


def _discover(context: JobContext, view: GpuView) -> None:
    """A job event without devices: the job has what its nodes show."""
    if context.event is not None and context.event.gpus:
        return
    known = context.positions.get(view.node, {})
    fresh = [
        Gpu(view.node, index, uuid)
        for index, uuid in zip(view.indices, view.uuids, strict=True)
        if str(index) not in known and uuid not in known
    ]
    if fresh:
        _settle_on(context, sorted([*context.gpus, *fresh], key=lambda g: (g.node, g.index)))


def begin_second(context: JobContext, now_ns: int) -> None:
    """Forget the second that the ring's slot held, what was fresh, and the oldest marks."""
    context.new_steps = context.new_marks = 0
    del context.marks[:-MAX_MARKS]
    if len(context.gpus):
        context.recent[(now_ns // NS) % RECENT_SECS] = np.nan


def take_gpus(context: JobContext, view: GpuView, now_ns: int) -> None:
    """Put a node's GPU second into the ring."""
    _discover(context, view)
    context.fabrics[view.node] = view.fabrics
    context.gpu_model = view.model or context.gpu_model
    known = context.positions.get(view.node, {})
    named = zip(view.indices, view.uuids, strict=True)
    at = [known.get(uuid, known.get(str(index))) for index, uuid in named]
    columns = [view.metrics.get(name) or [None] * len(at) for name in JOB_METRICS]
    values = np.array(columns, dtype=np.float64).T
    mine = [j for j, i in enumerate(at) if i is not None]
    rows = [i for i in at if i is not None]
    context.recent[(now_ns // NS) % RECENT_SECS, rows] = values[mine]
    for i, j in zip(rows, mine, strict=True):
        gpu = context.gpus[i]
        if (gpu.uuid, gpu.index) != (view.uuids[j], view.indices[j]):
            context.gpus[i] = Gpu(gpu.node, view.indices[j], view.uuids[j], gpu.rank)


def take_host(context: JobContext, view: HostView) -> None:
    """Remember the host's latest numbers and processes; each source speaks for itself only.

    A process that two sources list is one; what its GPU is comes from the one that knows.
    """
    context.host[view.node] = {**context.host.get(view.node, {}), **view.metrics}
    context.host_ns[view.node] = view.second_unix_ns
    lists = context.listed.setdefault(view.node, {})
    lists[view.stream] = view.processes
    merged: dict[tuple[int, str | None], Process] = {}
    for stream in sorted(lists):
        for process in lists[stream]:
            key = (process.pid, process.gpu_uuid if process.pid == 0 else None)
            if key not in merged or merged[key].gpu_uuid is None:
                merged[key] = process
    context.processes[view.node] = list(merged.values())


def survivors(context: JobContext, since_ns: int) -> dict[str, list[Process]]:
    """The job's processes that live, by node, as the hosts said that were heard since then."""
    nodes = [n for n in sorted(context.processes) if context.host_ns.get(n, 0) >= since_ns]
    found = {
        node: [p for p in context.processes[node] if p.job_id == context.job_id and p.alive]
        for node in nodes
    }
    return {node: processes for node, processes in found.items() if processes}


def take_log(context: JobContext, view: LogView) -> None:
    """Append step lines of the leading printer, and all marks.

    Where several ranks print the same steps, the lowest rank that ever printed leads; counting
    all would make one step look like many.
    """
    for step in view.steps:
        source = (view.node, step.rank)
        if context.lead is None or _order(source) < _order(context.lead):
            context.lead = source
            context.steps.clear()
            context.beats.clear()
            context.new_steps = 0
        if source == context.lead:
            _append_step(context, step)
    context.marks.extend(view.marks)
    context.new_marks += len(view.marks)


def _order(source: tuple[str, int | None]) -> tuple[float, str]:
    return (math.inf if source[1] is None else float(source[1]), source[0])


def _append_step(context: JobContext, step: Step) -> None:
    last = context.steps[-1] if context.steps else None
    went_back = (
        last is not None
        and last.iteration is not None
        and step.iteration is not None
        and step.iteration < last.iteration
    )
    if last is None or went_back:  # a resume, or a new epoch's count: a new segment
        context.segment_ns = step.time_unix_ns
    context.steps.append(step)
    context.step_count += 1
    context.new_steps += 1
    if not context.beats or step.time_unix_ns >= context.beats[-1] + NS:
        context.beats.append(step.time_unix_ns)
    del context.beats[:-PACE_LINES]
    del context.steps[:-MAX_STEPS]
    context.new_steps = min(context.new_steps, len(context.steps))
