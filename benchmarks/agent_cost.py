"""What the whole agent costs a node: processor time and memory of its process tree.

Run on any Linux machine; GPUs are read where there are some::

    python benchmarks/agent_cost.py --seconds 60 --brokers 127.0.0.1:9092
    python benchmarks/agent_cost.py --seconds 60              # Kafka away: everything is spooled

Method. ``stethoscope agent`` runs with every node reader at 1 Hz (``adaptive: false``) on a state
directory of its own: NVML, the kernel log, the host's ``/proc``, a training log to which this
script appends ten step lines a second, and an InfiniBand tree of 8 ports with 22 counters and 17
hardware counters each, made as plain files (a real sysfs file takes longer to read than a plain
one, by the time the driver needs). After ``--warm-up`` seconds the processor time (user and system
of ``/proc/PID/stat``) of the agent and all its children is taken, and again ``--seconds`` later;
the difference over the wall time is the cost. Memory is ``Pss`` of ``/proc/PID/smaps_rollup``,
summed: what the node would get back if the agent ended. ``Rss`` beside it counts pages that the
processes share (the interpreter, libc) once for each. Children that end within the time are not
counted; the agent's workers live through it. Exit code 1 when a bound is broken.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_CORE_RATIO = 0.01
MAX_PSS_MB = 80.0
PORTS = 8
COUNTERS = [f"counter_{i}" for i in range(22)]
HW_COUNTERS = [f"hw_counter_{i}" for i in range(17)]
STEP_LINES_PER_SEC = 10


class Usage(NamedTuple):
    """One process at one moment."""

    cpu_secs: float
    rss_mb: float
    pss_mb: float


def main() -> None:
    """Measure, print a table, judge."""
    options = parse()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = prepare(folder, options.brokers)
        agent = subprocess.Popen(
            [sys.executable, "-m", "stethoscope.agents", json.dumps({"config": str(config)})]
        )
        try:
            write_steps(folder / "train.log", options.warm_up)
            before, started = tree(agent.pid), time.monotonic()
            write_steps(folder / "train.log", options.seconds)
            after, wall_secs = tree(agent.pid), time.monotonic() - started
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(30)
        sys.exit(report(before, after, wall_secs))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Cost of the agent's process tree.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=15.0)
    parser.add_argument("--brokers", default="127.0.0.1:1", help="absent: a port nobody answers on")
    return parser.parse_args()


def prepare(folder: Path, brokers: str) -> Path:
    """The InfiniBand tree, an empty training log, and the agent's configuration."""
    for index in range(PORTS):
        port = folder / "infiniband" / f"mlx5_{index}" / "ports" / "1"
        port.mkdir(parents=True)
        facts = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
        for name, value in (facts | {"link_layer": "InfiniBand"}).items():
            (port / name).write_text(f"{value}\n")
        for group, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
            (port / group).mkdir()
            for name in names:
                (port / group / name).write_text("123456789012\n")
    (folder / "train.log").touch()
    config = folder / "agent.yaml"
    config.write_text(
        f"""
state_dir: {folder / "state"}
kafka: {{brokers: ["{brokers}"]}}
loop: {{adaptive: false}}
gpu_nvml: {{period_secs: 1}}
host: {{period_secs: 1}}
ib_sysfs: {{period_secs: 1, root: {folder / "infiniband"}, optics: false}}
train_log: {{period_secs: 1, globs: ["{folder / "train.log"}"]}}
""",
        encoding="utf-8",
    )
    return config


def write_steps(path: Path, secs: float) -> None:
    """Step lines as a training job writes them, for that long."""
    end = time.monotonic() + secs
    step = 0
    with path.open("a", encoding="utf-8") as log:
        while time.monotonic() < end:
            step += 1
            log.write(f" iteration {step}/ 100000 | elapsed time per iteration (ms): 100.0 |\n")
            log.flush()
            time.sleep(1 / STEP_LINES_PER_SEC)


def tree(pid: int) -> dict[int, Usage]:
    """Usage of the process and all its descendants."""
    return {each: usage(each) for each in descendants(pid)}


def descendants(pid: int) -> Iterator[int]:
    """The process, then its children, and theirs."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from descendants(int(child))


def usage(pid: int) -> Usage:
    """Processor time and memory of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup[1:]}
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), kib["Rss"] / 1024, kib["Pss"] / 1024)


def report(before: dict[int, Usage], after: dict[int, Usage], wall_secs: float) -> int:
    """Print a line a process and the sums; the exit code."""
    print("pid      % of a core   Pss MB   Rss MB")
    core = pss = rss = 0.0
    for pid, use in after.items():
        share = (use.cpu_secs - before[pid].cpu_secs if pid in before else use.cpu_secs) / wall_secs
        core, pss, rss = core + share, pss + use.pss_mb, rss + use.rss_mb
        print(f"{pid:<8} {100 * share:11.2f} {use.pss_mb:8.1f} {use.rss_mb:8.1f}")
    print(f"{'all':<8} {100 * core:11.2f} {pss:8.1f} {rss:8.1f}   over {wall_secs:.0f} s")
    broken = core > MAX_CORE_RATIO or pss > MAX_PSS_MB
    print("above a bound" if broken else "within the bounds: 1 % of a core, 80 MB")
    return int(broken)


if __name__ == "__main__":
    main()
