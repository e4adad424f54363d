"""Small hand-made inputs for detectors: a job that steps at a pace, a batch, a kernel line."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from stethoscope.detectors.fleet import Batch, Table
from stethoscope.detectors.job_context import (
    JobContext,
    begin_second,
    place,
    take_gpus,
    take_host,
    take_log,
)
from stethoscope.detectors.job_health import learn_healthy, settle_pace
from stethoscope.detectors.node_context import NodeContext, pci_key
from stethoscope.schemas.events import JobEvent, LogEvent, Process
from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.views import GpuView, HostView, LogView
from stethoscope.streams.node_views import LogSecond

T0 = 1_800_000_000 * NS
Metrics = Mapping[str, float | None]

HEALTHY: dict[str, float | None] = {
    "gpu_utilization_ratio": 1.0,
    "gr_engine_active_ratio": 0.95,
    "sm_active_ratio": 0.6,
    "tensor_active_ratio": 0.4,
    "power_watts": 600.0,
    "sm_clock_mhz": 1900.0,
    "processes_count": 1.0,
    "nvlink_tx_bytes_per_sec": 5e10,
    "pcie_tx_bytes_per_sec": 1e9,
    "dram_active_ratio": 0.4,
}
# A rank that waits in a collective: utilisation 1.0 and nothing done, as H200s were seen to.
SPINNING: dict[str, float | None] = HEALTHY | {
    "gr_engine_active_ratio": 1.0,
    "sm_active_ratio": 0.1,
    "tensor_active_ratio": 0.0,
    "nvlink_tx_bytes_per_sec": 0.0,
    "pcie_tx_bytes_per_sec": 3e6,
    "dram_active_ratio": 0.001,
}
IDLE: dict[str, float | None] = {
    **dict.fromkeys(HEALTHY, 0.0),
    "power_watts": 90.0,
    "sm_clock_mhz": 345.0,
    "processes_count": 1.0,
}


def at(secs: float) -> int:
    """Nanoseconds since 1970 of a second of the test."""
    return T0 + round(secs * NS)


class JobWatcher(Protocol):
    """A detector of jobs."""

    def update(self, job: JobContext, now_ns: int) -> list[Finding]: ...

    def close(self, job: JobContext, now_ns: int) -> list[Finding]: ...


def megatron(
    iteration: int, ms: float | None = 100.0, loss: float = 2.0, norm: float = 1.0, skipped: int = 0
) -> str:
    """A step line in Megatron-LM's form; without its time where ``ms`` is ``None``."""
    timed = "" if ms is None else f" elapsed time per iteration (ms): {ms:.1f} |"
    return (
        f" iteration {iteration:8d}/  500000 |{timed} lm loss: {loss:.6E} | loss scale: 1.0 |"
        f" grad norm: {norm:.3f} | number of skipped iterations: {skipped} |"
        f" number of nan iterations: 0 |"
    )


class Job:
    """One run on ``nodes`` with ``gpus`` each, and detectors that look at it a second at a time.

    ``run`` makes it step; ``tick`` gives one second by hand. Both return the findings and collect
    them in ``findings``.
    """

    def __init__(
        self, *detectors: JobWatcher, nodes: Sequence[str] = ("node01",), gpus: int = 2
    ) -> None:
        self.detectors = detectors
        self.nodes = list(nodes)
        self.gpus = gpus
        self.event = JobEvent(
            time_unix_ns=at(0),
            job_id="77",
            state="RUNNING",
            nodes=self.nodes,
            gpus={n: list(range(gpus)) for n in self.nodes},
            ranks={n: [i * gpus + g for g in range(gpus)] for i, n in enumerate(self.nodes)},
            start_unix_ns=at(0),
        )
        self.context = JobContext("default/77.0@0", "default", "77", at(0))
        place(self.context, self.event)
        self.second = 0
        self.iteration = 0
        self.findings: list[Finding] = []
        self._next_step = 0.0

    @property
    def now_ns(self) -> int:
        """The second that was looked at last."""
        return at(self.second)

    def tick(
        self,
        lines: Sequence[str | tuple[float, str]] = (),
        gpus: Metrics | Sequence[Metrics] | None = HEALTHY,
        cpu: float | None = 0.1,
        processes: Sequence[Process] = (),
        line_node: str | None = None,
        rank: int | None = 0,
        **host: float,
    ) -> list[Finding]:
        """One second. A line may carry its offset into the second; ``gpus`` is each GPU's row."""
        self.second += 1
        begin_second(self.context, self.now_ns)
        if gpus is not None:
            self._see_gpus(gpus)
        for node in self.nodes:
            take_host(
                self.context,
                HostView(
                    job=self.context.key,
                    node=node,
                    second_unix_ns=self.now_ns,
                    metrics={"cpu_busy_ratio": cpu, **host},
                    processes=list(processes),
                ),
            )
        self._read(lines, line_node or self.nodes[0], rank)
        settle_pace(self.context)
        found = [f for d in self.detectors for f in d.update(self.context, self.now_ns)]
        learn_healthy(self.context, self.now_ns)
        self.findings += found
        return found

    def run(
        self,
        secs: int,
        step_secs: float | Callable[[int], float] = 0.1,
        line: Callable[[int, float], str] | None = None,
        gpus: Metrics | Sequence[Metrics] | None = HEALTHY,
        cpu: float | None = 0.1,
    ) -> list[Finding]:
        """``secs`` seconds of steps; ``line(iteration, step_secs)`` writes each one's line."""
        found: list[Finding] = []
        for _ in range(secs):
            lines: list[tuple[float, str]] = []
            self._next_step = max(self._next_step, self.second)
            while self._next_step < self.second + 1:
                self.iteration += 1
                took = step_secs(self.iteration) if callable(step_secs) else step_secs
                text = line(self.iteration, took) if line else megatron(self.iteration, 1000 * took)
                self._next_step = round(self._next_step + took, 6)
                if self._next_step >= self.second + 1:
                    lines.append((0.999, text))
                else:
                    lines.append((self._next_step - self.second, text))
            found += self.tick(lines, gpus, cpu)
        return found

    def end(self, state: str = "FAILED") -> list[Finding]:
        """The job ends now; its detectors close."""
        event = JobEvent(
            time_unix_ns=self.now_ns,
            job_id="77",
            state=state,
            nodes=self.nodes,
            gpus=self.event.gpus,
            ranks=self.event.ranks,
            start_unix_ns=at(0),
            end_unix_ns=self.now_ns,
        )
        place(self.context, event)
        found = [f for d in self.detectors for f in d.close(self.context, self.now_ns)]
        self.findings += found
        return found

    def _see_gpus(self, gpus: Metrics | Sequence[Metrics]) -> None:
        total = len(self.nodes) * self.gpus
        rows = [gpus] * total if isinstance(gpus, Mapping) else list(gpus)
        for i, node in enumerate(self.nodes):
            mine = rows[i * self.gpus : (i + 1) * self.gpus]
            take_gpus(
                self.context,
                GpuView(
                    job=self.context.key,
                    node=node,
                    second_unix_ns=self.now_ns,
                    indices=list(range(self.gpus)),
                    uuids=[f"GPU-{node}-{g}" for g in range(self.gpus)],
                    metrics={name: [row.get(name) for row in mine] for name in HEALTHY},
                ),
                self.now_ns,
            )

    def _read(self, lines: Sequence[str | tuple[float, str]], node: str, rank: int | None) -> None:
        logs = LogSecond()
        for i, line in enumerate(lines):
            offset, text = (0.5, line) if isinstance(line, str) else line
            time_ns = at(self.second - 1 + offset)
            logs.take(train(text, time_ns, node=node, rank=rank, seq=i), self.context.key)
        for view in logs.views(node, self.now_ns):
            if isinstance(view, LogView):
                take_log(self.context, view)


def train(
    line: str, time_ns: int = T0, node: str = "node01", rank: int | None = None, seq: int = 0
) -> LogEvent:
    """A training-log line of job 77."""
    return LogEvent(
        time_unix_ns=time_ns, node=node, seq=seq, source="train", line=line, job_id="77", rank=rank
    )


def kernel(line: str, secs: float = 0.0, count: int = 1) -> LogEvent:
    """A kernel line of node01."""
    return LogEvent(time_unix_ns=at(secs), node="node01", source="kernel", line=line, count=count)


def node_context(gpus: int = 2) -> NodeContext:
    """node01 with GPUs at 0000:00:06, 0000:00:07 and so on."""
    node = NodeContext("default", "node01")
    for i in range(gpus):
        key = pci_key(f"00000000:00:{6 + i:02x}.0")
        node.gpus[key] = Subject(node="node01", gpu_uuid=f"GPU-{i}", gpu_index=i, gpu_pci=key)
        node.devices[key] = at(0)
    return node


class Gpus:
    """Rows of GPUs that a detector of samples is shown a second at a time."""

    def __init__(self, count: int = 2) -> None:
        self.table = Table("gpu")
        for i in range(count):
            self.table.row(f"g{i}", Subject(node="node01", gpu_index=i))

    def batch(self, secs: float, metric: str, *values: float) -> Batch:
        """One sample a GPU; everything but ``metric`` is missing."""
        rows = np.arange(len(values))
        table = np.full((len(values), len(self.table.columns)), np.nan)
        table[:, self.table.columns.index[metric]] = values
        return Batch(self.table, rows, np.full(len(values), at(secs), dtype=np.int64), table)
