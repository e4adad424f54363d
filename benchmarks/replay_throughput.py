"""How many metric values a second one core replays: file, JSON, pipeline, incidents. See README.md.

python benchmarks/replay_throughput.py [--nodes 16] [--secs 300] [--keep FILE.jsonl]
"""

import argparse
import cProfile
import os
import platform
import pstats
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stethoscope.replay.files import read_events
from stethoscope.replay.run import DeadLetters, run
from stethoscope.schemas.codec import encode_line
from stethoscope.schemas.events import Device, Event, GpuEvent, HeartbeatEvent, JobEvent, LogEvent
from stethoscope.schemas.findings import NS
from stethoscope.schemas.metrics import Metric, registry
from stethoscope.streams.config import Config
from stethoscope.streams.pipeline import Pipeline

START_NS = 1_800_000_000 * NS
GPUS_A_NODE = 8
METRICS = 45
STEP_SECS = 0.5
# Plausible levels of a busy H100; everything else lies in the middle of its range.
LEVELS = {
    "gpu_utilization_ratio": 0.99,
    "sm_active_ratio": 0.82,
    "tensor_active_ratio": 0.41,
    "gpu_temp_celsius": 62.0,
    "memory_temp_celsius": 74.0,
    "power_watts": 640.0,
    "sm_clock_mhz": 1755.0,
    "processes_count": 1.0,
    "performance_state": 0.0,
}


def recording(nodes: int, secs: int, seed: int = 1) -> Iterator[Event]:
    """A healthy job over all nodes: a scrape a node and second, two step lines a second."""
    rng = random.Random(seed)  # noqa: S311 - test data
    metrics = _metrics()
    names = [f"node{i:03d}" for i in range(nodes)]
    yield _job(names)
    for second in range(secs):
        for index, node in enumerate(names):
            # Nodes are scraped at their own moment, as jitter has it.
            now_ns = START_NS + second * NS + index * NS // nodes
            yield _scrape(node, index, second, now_ns, metrics, rng)
            if second % 10 == 0:
                yield HeartbeatEvent(
                    time_unix_ns=now_ns + 1, node=node, boot_id="b", seq=second, period_secs=10.0
                )
        yield from _steps(names[0], second, rng)


def _metrics() -> list[Metric]:
    """The named levels, then whatever else the registry has for GPUs."""
    gpu = [metric for metric in registry().values() if metric.scope == "gpu"]
    gpu.sort(key=lambda metric: metric.name not in LEVELS)
    return gpu[:METRICS]


def _job(nodes: list[str]) -> JobEvent:
    local = list(range(GPUS_A_NODE))
    return JobEvent(
        time_unix_ns=START_NS,
        job_id="1",
        state="RUNNING",
        name="pretrain",
        nodes=nodes,
        gpus=dict.fromkeys(nodes, local),
        ranks={node: [i * GPUS_A_NODE + g for g in local] for i, node in enumerate(nodes)},
        start_unix_ns=START_NS,
    )


def _scrape(
    node: str, index: int, second: int, now_ns: int, metrics: list[Metric], rng: random.Random
) -> GpuEvent:
    devices = [
        Device(uuid=f"GPU-{index:04d}-{g}", index=g, pci=f"0000:{g:02x}:00.0", model="NVIDIA H100")
        for g in range(GPUS_A_NODE)
    ]
    values = {m.name: [_value(m, second, rng) for _ in range(GPUS_A_NODE)] for m in metrics}
    return GpuEvent(
        time_unix_ns=now_ns,
        node=node,
        boot_id="b",
        seq=second,
        period_secs=1.0,
        devices=devices,
        metrics={**values},
    )


def _value(metric: Metric, second: int, rng: random.Random) -> float | None:
    if rng.random() < 0.002:  # about one sample in 500 is missing in real scrapes
        return None
    if metric.kind in ("bitmask", "state"):
        return LEVELS.get(metric.name, metric.min or 0.0)
    if metric.kind == "counter":
        return (
            float(second * 1000)
            if "errors" not in metric.name and "ecc" not in metric.name
            else 0.0
        )
    level = LEVELS.get(metric.name, ((metric.min or 0.0) + (metric.max or 100.0)) / 2)
    if level in (0.0, 1.0):
        return level
    return float(f"{level * (1 + rng.uniform(-0.01, 0.01)):.6g}")


def _steps(node: str, second: int, rng: random.Random) -> Iterator[LogEvent]:
    for half in range(2):
        number = second * 2 + half + 1
        step_ms = STEP_SECS * 1000 * (1 + rng.uniform(-0.01, 0.01))
        line = (
            f"iteration {number}/ 500000 | consumed samples: {number * 1024} | elapsed time per "
            f"iteration (ms): {step_ms:.1f} | learning rate: 6.0E-05 | global batch size: 1024 | "
            f"lm loss: {2.5 - number * 1e-5:.6E} | grad norm: {0.5 + rng.random() * 0.1:.3f} | "
            "number of skipped iterations: 0 | number of nan iterations: 0 |"
        )
        yield LogEvent(
            time_unix_ns=START_NS + second * NS + half * NS // 2 + 7,
            node=node,
            boot_id="b",
            stream="train",
            seq=number,
            source="train",
            line=line,
            job_id="1",
            rank=0,
        )


def write(path: Path, nodes: int, secs: int) -> int:
    """Write the recording; the number of metric values in it (nulls included)."""
    values = 0
    with path.open("wb") as file:
        for event in recording(nodes, secs):
            file.write(encode_line(event) + b"\n")
            if isinstance(event, GpuEvent):
                values += sum(len(column) for column in event.metrics.values())
    return values


def measure(path: Path) -> tuple[float, float, int]:
    """Wall and CPU seconds of one replay, and its incidents."""
    wall, cpu = time.perf_counter(), time.process_time()
    letters = DeadLetters()
    outcome = run(read_events([path], letters.add), Pipeline(Config()), letters)
    if letters.by_reason:
        raise SystemExit(letters.summary())
    return time.perf_counter() - wall, time.process_time() - cpu, len(outcome.incidents)


def main() -> None:
    """Generate, replay three times, print the best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--secs", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write the recording here and keep it")
    parser.add_argument("--profile", action="store_true", help="one run under the profiler")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or Path(folder) / "recording.jsonl"
        values = write(path, args.nodes, args.secs)
        megabytes = path.stat().st_size / 1e6
        print(
            f"{platform.python_version()}, {os.cpu_count()} cores; {args.nodes} nodes, "
            f"{args.secs} s, {values:,} values, {megabytes:.0f} MB"
        )
        if args.profile:
            with cProfile.Profile() as profile:
                measure(path)
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
            return
        runs = [measure(path) for _ in range(args.runs)]
    for wall, cpu, incidents in runs:
        print(
            f"{values / wall:>12,.0f} values/s  {wall:6.2f} s wall  {cpu:6.2f} s CPU  "
            f"{megabytes / wall:5.0f} MB/s  {incidents} incidents"
        )
    best = min(cpu for _, cpu, _ in runs)
    print(f"{values / best:>12,.0f} values a second of one core (best of {args.runs}, CPU time)")


if __name__ == "__main__":
    main()
