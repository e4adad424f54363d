"""How much of a training process's memory lies on another NUMA node than the process runs on."""

import time
from pathlib import Path

from stethoscope.agents.host_background import Background
from stethoscope.agents.host_processes import last_cpu

SYS_NODES = "/sys/devices/system/node"
MAX_BYTES = 4 << 20  # of numa_maps: some 40,000 mappings; a PyTorch process has a few thousand
MAX_SECS = 0.5
# The kernel walks a process's page tables for us, 4 ms a GB of 4 KiB pages: a look that took long
# is followed by a pause of this many times its length, so that all stays below 0.1 % of a core.
PAUSE = 1000


def parse_cpu_list(text: str) -> frozenset[int]:
    """Processors of ``cpulist`` or ``Cpus_allowed_list``.

    >>> sorted(parse_cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.isdecimal() and (high or low).isdecimal() and len(high or low) < 6:
            found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def parse_numa_maps(text: str) -> dict[int, int]:
    """Bytes of a process by node, from its ``numa_maps``.

    >>> parse_numa_maps("7f00 default anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4")
    {0: 4096, 1: 8192}
    """
    found: dict[int, int] = {}
    for line in text.splitlines():
        pages: dict[int, int] = {}
        page_bytes = 0
        for word in line.split()[2:]:  # a file's name has neither blanks nor equals signs here
            name, _, number = word.partition("=")
            if not number.isdecimal() or len(number) > 18:
                continue
            if name == "kernelpagesize_kB":
                page_bytes = int(number) * 1024
            elif name[:1] == "N" and name[1:].isdecimal() and len(name) < 6:
                pages[int(name[1:])] = int(number)
        for node, count in pages.items():
            found[node] = found.get(node, 0) + count * page_bytes
    return found


class NumaNodes:
    """The machine's NUMA nodes that have processors, by number."""

    def __init__(self, root: Path) -> None:
        cpus = {
            int(path.name[4:]): parse_cpu_list(_cpu_list(path))
            for path in root.glob("node[0-9]*")
            if path.name[4:].isdecimal()
        }
        # GPUs and memory expanders stand there as nodes without: who uses them means to.
        self._cpus = {node: there for node, there in cpus.items() if there}

    def __len__(self) -> int:
        return len(self._cpus)

    def near(self, allowed: frozenset[int], last_cpu: int | None) -> set[int]:
        """The nodes a process is bound to; without such a bond, that of its last processor."""
        near = {node for node, cpus in self._cpus.items() if cpus & allowed}
        if len(near) == len(self._cpus):
            near = {node for node, cpus in self._cpus.items() if last_cpu in cpus}
        return near

    def remote_ratio(self, bytes_by_node: dict[int, int], near: set[int]) -> float | None:
        """The share that is not near; ``None`` where nothing is anywhere, or near is unknown."""
        there = {node: size for node, size in bytes_by_node.items() if node in self._cpus}
        total = sum(there.values())
        if not near or not total:
            return None
        return sum(size for node, size in there.items() if node not in near) / total


class NumaShares:
    """Looks into one process at a time, each every ``period_secs`` at most, beside the reads.

    On a machine with one node nothing is looked into. State: one number a process given.
    """

    def __init__(self, proc_root: Path, period_secs: float, sys_nodes: str = SYS_NODES) -> None:
        self._proc = proc_root
        self._sys_nodes = Path(sys_nodes)
        self._nodes: NumaNodes | None = None
        self._period_ns = round(period_secs * 1e9)
        self._look = Background(self._measure)
        self._pid: int | None = None
        self._looked_ns: dict[int, int] = {}
        self._ratios: dict[int, float | None] = {}
        self._due_ns = 0

    def read(self, pids: list[int], monotonic_ns: int) -> dict[int, float | None]:
        """What is known of these processes; the next look starts where one is due."""
        if self._nodes is None:
            self._nodes = NumaNodes(self._sys_nodes)
        if len(self._nodes) < 2 or self._look.pending_secs is not None:
            return self._ratios
        self._take(monotonic_ns)
        self._looked_ns = {pid: at for pid, at in self._looked_ns.items() if pid in pids}
        self._ratios = {pid: ratio for pid, ratio in self._ratios.items() if pid in pids}
        due = [p for p in pids if monotonic_ns >= self._looked_ns.get(p, -1) + self._period_ns]
        new = [p for p in pids if p not in self._looked_ns]
        if (new or due) and monotonic_ns >= self._due_ns:
            self._pid = (new or sorted(due, key=self._looked_ns.__getitem__))[0]
            self._looked_ns[self._pid] = monotonic_ns
            self._look.start()
        return self._ratios

    def wait(self, secs: float) -> None:
        """Give the look under way that long."""
        self._look.wait(secs)

    def _take(self, monotonic_ns: int) -> None:
        """The outcome of the look that ended."""
        if self._pid is None:
            return
        # Another user's process, or one that ended meanwhile, has none.
        self._ratios[self._pid] = self._look.result if self._look.error is None else None
        self._due_ns = monotonic_ns + round((self._look.took_secs or 0.0) * PAUSE * 1e9)
        self._pid = None

    def _measure(self) -> float | None:
        folder = self._proc / str(self._pid)
        allowed = frozenset[int]()
        for line in (folder / "status").read_text(errors="replace").splitlines():
            if line.startswith("Cpus_allowed_list:"):
                allowed = parse_cpu_list(line.partition(":")[2])
        cpu = last_cpu((folder / "stat").read_text(errors="replace"))
        text = _bounded(folder / "numa_maps")
        if text is None or self._nodes is None:
            return None
        return self._nodes.remote_ratio(parse_numa_maps(text), self._nodes.near(allowed, cpu))


def _cpu_list(node: Path) -> str:
    try:
        return (node / "cpulist").read_text(encoding="ascii")
    except OSError:  # a node taken offline meanwhile
        return ""


def _bounded(path: Path) -> str | None:
    """The file's text; ``None`` where it is too long or takes too long to make."""
    parts: list[bytes] = []
    size = 0
    end = time.monotonic() + MAX_SECS
    with path.open("rb", buffering=0) as file:
        while part := file.read(65536):
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES or time.monotonic() > end:
                return None
    return b"".join(parts).decode(errors="replace")
