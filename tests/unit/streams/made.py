"""Hand-made events of nodes and jobs for the stages."""

from collections.abc import Sequence
from typing import Any

from stethoscope.schemas.events import (
    Device,
    Event,
    GpuEvent,
    JobEvent,
    LogEvent,
    NodeEvent,
    Process,
)
from tests.unit.detectors.build import HEALTHY as STEPPING
from tests.unit.detectors.build import at

HEALTHY = STEPPING | {"gpu_temp_celsius": 60.0}


def job(
    job_id: str = "77",
    state: str = "RUNNING",
    secs: float = 0.0,
    nodes: Sequence[str] = ("node01",),
    start: float = 0.0,
    restart: int = 0,
    end: float | None = None,
) -> JobEvent:
    """A job with GPUs 0 and 1 of each node."""
    return JobEvent(
        time_unix_ns=at(secs),
        job_id=job_id,
        state=state,
        restart=restart,
        nodes=list(nodes),
        gpus={node: [0, 1] for node in nodes},
        ranks={node: [2 * i, 2 * i + 1] for i, node in enumerate(nodes)},
        start_unix_ns=at(start),
        end_unix_ns=None if end is None else at(end),
    )


def gpus(secs: float, node: str = "node01", count: int = 2, **metrics: Any) -> GpuEvent:
    """A scrape; ``metrics`` differ from health on every GPU."""
    values = HEALTHY | metrics
    return GpuEvent(
        time_unix_ns=at(secs),
        node=node,
        boot_id="b",
        seq=round(secs * 1000),
        period_secs=1.0,
        devices=[
            Device(uuid=f"GPU-{node}-{i}", index=i, pci=f"00000000:00:{6 + i:02x}.0")
            for i in range(count)
        ],
        metrics={name: [value] * count for name, value in values.items()},
    )


def host(secs: float, node: str = "node01", processes: Sequence[Process] = ()) -> NodeEvent:
    return NodeEvent(
        time_unix_ns=at(secs),
        node=node,
        boot_id="b",
        seq=round(secs * 1000),
        metrics={"cpu_busy_ratio": 0.1},
        processes=list(processes),
    )


def line(
    secs: float,
    text: str,
    node: str = "node01",
    source: str = "train",
    job_id: str | None = "77",
    rank: int | None = 0,
) -> LogEvent:
    return LogEvent(
        time_unix_ns=at(secs),
        node=node,
        boot_id="b",
        stream=f"{source}:{job_id}:{rank}",
        seq=round(secs * 1000),
        source=source,  # type: ignore[arg-type]  # one of its words
        line=text,
        job_id=job_id if source in ("train", "nccl") else None,
        rank=rank if source in ("train", "nccl") else None,
    )


def step(
    secs: float, iteration: int, ms: float = 500.0, loss: float = 2.0, **where: Any
) -> LogEvent:
    text = (
        f" iteration {iteration:8d}/  500000 | elapsed time per iteration (ms): {ms:.1f} |"
        f" lm loss: {loss:.6E} | grad norm: 1.000 | number of skipped iterations: 0 |"
    )
    return line(secs, text, **where)


def healthy(secs: range, node: str = "node01", job_id: str = "77") -> list[Event]:
    """A job that steps twice a second on ``node``, with scrapes and host samples."""
    events: list[Event] = []
    for second in secs:
        events += [gpus(second + 0.1, node), host(second + 0.2, node)]
        for half in (0, 1):
            count = 2 * second + half
            events.append(step(second + 0.3 + half / 2, count, node=node, job_id=job_id))
    return events
