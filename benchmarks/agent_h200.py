"""What the agent's readers cost on a node with NVIDIA GPUs, and how soon they see a fault.

Run on such a node as a user who may read the kernel log::

    python benchmarks/agent_h200.py --seconds 60 --faults --record gpu.jsonl

Method. All readers that the node supports are read in one process, each at its own period (1 s
for the fast ones), for ``--seconds``; in the middle third a matrix product loads GPU 0. Cost is
the processor time of this process (user and system, ``/proc/self/stat``) by reader and in all,
divided by the wall time; memory is ``Pss`` of ``/proc/self/smaps_rollup`` at the end. With
``--faults`` three things are done while the readers go on at 1 Hz, and the time from the deed to
the event that tells of it is measured: an illegal memory access (needs ``nvcc``), a CUDA
out-of-memory in a process whose output is a training log (needs torch), and a foreign process on
the last GPU (needs torch). The whole agent, loop, worker processes and spool included, is measured
by ``--agent``: it starts ``stethoscope agent`` and reads the same numbers of its process tree.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stethoscope.agents.clock import Now, SystemClock, read_boot_id
from stethoscope.agents.reader import Context, Reader
from stethoscope.agents.registry import READERS, build
from stethoscope.schemas.agent_config import AgentConfig, Host, TrainLog
from stethoscope.schemas.codec import encode_line
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import Event, GpuEvent, LogEvent, NodeEvent

NODE_READERS = ("gpu_nvml", "ib_sysfs", "kernel_log", "train_log", "host")
LOAD = """
import sys, time, torch
device = f"cuda:{sys.argv[1]}"
a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
torch.cuda.synchronize(device)
print(time.time_ns(), flush=True)
end = time.time() + float(sys.argv[2])
while time.time() < end:
    for _ in range(50):
        b = a @ a
    torch.cuda.synchronize(device)
"""
OOM = """
import time, torch
held = []
torch.zeros(1, device="cuda")
print(time.time_ns(), flush=True)
while True:
    held.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))
"""
ILLEGAL = r"""
#include <cstdio>
#include <unistd.h>
#include <time.h>
__global__ void bad(int* p) { p[threadIdx.x] = 1; }
int main() {
  int* d; cudaMalloc(&d, 1 << 20); sleep(3);
  struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
  printf("%lld\n", t.tv_sec * 1000000000LL + t.tv_nsec); fflush(stdout);
  bad<<<1, 32>>>((int*)0xdead00000000ULL);
  return cudaDeviceSynchronize() != cudaSuccess;
}
"""


class Bench:
    """The readers of this node, read in turn; what each costs."""

    def __init__(self, train_log: Path, record: Path | None) -> None:
        self.clock = SystemClock()
        self.cpu_secs: dict[str, float] = {}
        self.wall_secs: dict[str, float] = {}
        self.reads: dict[str, int] = {}
        self.seen: list[tuple[int, Event]] = []
        self._record = record.open("wb") if record else None
        self._due_ns: dict[str, int] = {}
        self.readers = list(self._build(train_log))

    def _build(self, train_log: Path) -> Iterator[Reader]:
        context = Context("bench", "node01", read_boot_id())
        config = AgentConfig(train_log=TrainLog(globs=[str(train_log)]), host=Host())
        for name in NODE_READERS:
            try:
                reader = build(name, context, config)
                reader.probe()
            except (ReaderUnsupported, ModuleNotFoundError) as error:
                print(f"{name}: not read here: {error}")
                continue
            yield reader

    def run(self, secs: float) -> None:
        """Read whatever is due until that many seconds have passed."""
        end_ns = time.monotonic_ns() + int(secs * 1e9)
        while (now := self.clock.now()).monotonic_ns < end_ns:
            for reader in self.readers:
                if now.monotonic_ns >= self._due_ns.get(reader.name, 0):
                    self._due_ns[reader.name] = now.monotonic_ns + int(reader.period_secs * 1e9)
                    self._read(reader, self.clock.now())
            next_ns = min(self._due_ns.values(), default=end_ns)
            time.sleep(max(0.0, (next_ns - time.monotonic_ns()) / 1e9))

    def _read(self, reader: Reader, now: Now) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        events = reader.read(now)
        name = reader.name
        self.wall_secs[name] = self.wall_secs.get(name, 0) + time.perf_counter() - wall
        self.cpu_secs[name] = self.cpu_secs.get(name, 0) + time.process_time() - cpu
        self.reads[name] = self.reads.get(name, 0) + 1
        seen_ns = time.time_ns()
        self.seen.extend((seen_ns, event) for event in events)
        if self._record and name == "gpu_nvml":
            self._record.writelines(encode_line(event) + b"\n" for event in events)

    def forget(self) -> None:
        """Start the account anew."""
        self.cpu_secs.clear()
        self.wall_secs.clear()
        self.reads.clear()
        self.seen.clear()

    def first(self, matches: Callable[[Event], bool], since_ns: int) -> float | None:
        """Seconds from ``since_ns`` to the first event that matches."""
        times = [seen for seen, event in self.seen if matches(event) and seen >= since_ns]
        return round((times[0] - since_ns) / 1e9, 3) if times else None

    def close(self) -> None:
        """Close readers and the recording."""
        for reader in self.readers:
            reader.close()
        if self._record:
            self._record.close()


def python(code: str, *arguments: str, stderr: Path | None = None) -> subprocess.Popen[str]:
    """A child that runs ``code``; its first line of output is the time of its deed."""
    err = stderr.open("ab") if stderr else subprocess.DEVNULL
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)


def said_ns(child: subprocess.Popen[str]) -> int | None:
    """The time on the child's first line."""
    line = child.stdout.readline().strip() if child.stdout else ""
    return int(line) if line.isdigit() else None


def memory_kib(pids: list[int]) -> dict[str, int]:
    """Sums of ``Rss`` and ``Pss`` over the processes, KiB."""
    total = {"rss_kib": 0, "pss_kib": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Rss:", "Pss:")):
                total[line[:3].lower() + "_kib"] += int(line.split()[1])
    return total


def cost(bench: Bench, secs: float) -> dict[str, object]:
    """A minute at full pace, a third of it under load on GPU 0."""
    bench.run(3)
    bench.forget()
    start, cpu = time.perf_counter(), time.process_time()
    bench.run(secs / 3)
    load = python(LOAD, "0", str(secs / 3))
    bench.run(2 * secs / 3)
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    load.wait()
    return {
        "secs": round(wall, 1),
        "percent_of_a_core": round(100 * used / wall, 3),
        "readers": {
            name: {
                "reads": bench.reads[name],
                "cpu_ms_a_read": round(1e3 * bench.cpu_secs[name] / bench.reads[name], 3),
                "wall_ms_a_read": round(1e3 * bench.wall_secs[name] / bench.reads[name], 3),
                "percent_of_a_core": round(100 * bench.cpu_secs[name] / wall, 3),
            }
            for name in bench.reads
        },
        **memory_kib([os.getpid()]),
    }


def faults(bench: Bench, folder: Path, log: Path) -> dict[str, object]:
    """Seconds from deed to event for each fault; ``None``: not seen."""
    found: dict[str, object] = {}
    gpus = max((len(e.devices) for _, e in bench.seen if isinstance(e, GpuEvent)), default=1)
    bench.forget()
    child = python(LOAD, str(gpus - 1), "4")
    bench.run(14)
    if (deed := said_ns(child)) is not None:
        found["foreign_process_listed_secs"] = bench.first(lambda e: lists(e, child.pid), deed)
        # The process is on the GPU from its first allocation, a while before it says so.
        found["foreign_process_listed_at_deed"] = any(
            lists(e, child.pid) for seen, e in bench.seen if seen <= deed
        )
    child.wait()
    if (program := compiled(folder)) is not None:
        bench.forget()
        child = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
        bench.run(8)
        if (deed := said_ns(child)) is not None:
            found["illegal_access_by_nvml_secs"] = bench.first(has_xid, deed)
            found["illegal_access_by_kernel_log_secs"] = bench.first(
                lambda e: isinstance(e, LogEvent) and "Xid" in e.line, deed
            )
            found["xid_lines"] = [
                e.line for _, e in bench.seen if isinstance(e, LogEvent) and "Xid" in e.line
            ]
        child.wait()
    bench.forget()
    child = python(OOM, stderr=log)
    bench.run(14)
    if (deed := said_ns(child)) is not None:
        found["out_of_memory_by_train_log_secs"] = bench.first(
            lambda e: isinstance(e, LogEvent) and "OutOfMemoryError" in e.line, deed
        )
    child.kill()
    child.wait()
    return found


def lists(event: Event, pid: int) -> bool:
    """Whether the event shows the process on a GPU."""
    return isinstance(event, NodeEvent) and any(
        p.pid == pid and p.gpu_uuid is not None for p in event.processes
    )


def has_xid(event: Event) -> bool:
    """Whether a GPU reported an Xid in that scrape."""
    return isinstance(event, GpuEvent) and any(event.metrics.get("xid_last", []))


def compiled(folder: Path) -> str | None:
    """The program with the illegal access, where a compiler is at hand."""
    source = folder / "illegal.cu"
    source.write_text(ILLEGAL)
    try:
        subprocess.run(["nvcc", "-o", str(folder / "illegal"), str(source)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no illegal access: {error}")
        return None
    return str(folder / "illegal")


def process_tree(pid: int) -> list[int]:
    """The process and all that descend from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(p for child in children for p in process_tree(int(child)))]


def cpu_secs(pid: int) -> float:
    """User and system time of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def whole_agent(secs: float, arguments: list[str]) -> dict[str, object]:
    """The same figures of ``stethoscope agent`` and of each of its processes."""
    child = subprocess.Popen([sys.executable, "-m", "stethoscope.cli", "agent", *arguments])
    time.sleep(15)
    tree = process_tree(child.pid)
    before, start = {pid: cpu_secs(pid) for pid in tree}, time.perf_counter()
    time.sleep(secs)
    wall = time.perf_counter() - start
    used = {pid: round(100 * (cpu_secs(pid) - before[pid]) / wall, 3) for pid in tree}
    each = [{"percent_of_a_core": used[pid], **memory_kib([pid])} for pid in tree]
    total = {"percent_of_a_core": round(sum(used.values()), 3), **memory_kib(tree)}
    child.terminate()
    child.wait()
    return {"secs": round(wall, 1), "all": total, "agent_then_workers": each}


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--agent", nargs=argparse.REMAINDER, help="arguments of the agent")
    options = parser.parse_args()
    if options.agent is not None:
        print(json.dumps(whole_agent(options.seconds, options.agent), indent=1))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "train.log"
        log.touch()
        bench = Bench(log, options.record)
        result: dict[str, object] = {"readers": [r.name for r in bench.readers], "of": [*READERS]}
        result["cost"] = cost(bench, options.seconds)
        if options.faults:
            result["faults"] = faults(bench, folder, log)
        result["errors"] = {r.name: r.counters.collector_errors for r in bench.readers}
        result["invalid"] = {r.name: r.counters.invalid_samples_total for r in bench.readers}
        bench.close()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
