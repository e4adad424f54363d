"""From parsed ``/proc`` files to canonical metrics; rates by difference from the last read."""

from stethoscope.agents.host_proc import Cpu, Disks, Network
from stethoscope.schemas.events import Value


class Rates:
    """Remembers counters between reads.

    >>> rates = Rates()
    >>> rates.begin(0); rates.per_sec("x", 10) is None
    True
    >>> rates.begin(2_000_000_000); rates.per_sec("x", 30)
    10.0
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._last_ns: int | None = None
        self._secs: float | None = None

    def begin(self, monotonic_ns: int) -> None:
        """A new read starts."""
        if self._last_ns is not None and monotonic_ns > self._last_ns:
            self._secs = (monotonic_ns - self._last_ns) / 1e9
        self._last_ns = monotonic_ns

    def delta(self, name: str, value: float | None) -> float | None:
        """The rise since the last read; ``None`` at first and after a reset."""
        if value is None:
            self._last.pop(name, None)
            return None
        old = self._last.get(name)
        self._last[name] = value
        return value - old if old is not None and value >= old else None

    def per_sec(self, name: str, value: float | None) -> float | None:
        """The rise per second."""
        delta = self.delta(name, value)
        return delta / self._secs if delta is not None and self._secs else None


def cpu_metrics(cpu: Cpu | None, rates: Rates) -> dict[str, Value]:
    """Busy is what is neither idle nor waiting for a disk."""
    if cpu is None:
        return {}
    total = rates.delta("cpu.total", cpu.total)
    parts = {
        name: rates.delta(f"cpu.{name}", getattr(cpu, name)) for name in ("idle", "iowait", "steal")
    }
    metrics: dict[str, Value] = {
        "context_switches_per_sec": rates.per_sec("ctxt", cpu.context_switches),
        "processes_blocked": None if cpu.blocked is None else float(cpu.blocked),
    }
    if not total:
        return metrics
    if (idle := parts["idle"]) is not None and (iowait := parts["iowait"]) is not None:
        metrics["cpu_busy_ratio"] = max(0.0, 1 - (idle + iowait) / total)
    for name in ("iowait", "steal"):
        if (part := parts[name]) is not None:
            metrics[f"cpu_{name}_ratio"] = min(1.0, part / total)
    return metrics


def memory_metrics(info: dict[str, int]) -> dict[str, Value]:
    """Bytes; swap is what is in use."""
    metrics: dict[str, Value] = {
        "memory_available_bytes": info.get("MemAvailable"),
        "host_memory_total_bytes": info.get("MemTotal"),
        "memory_dirty_bytes": info.get("Dirty"),
    }
    if "SwapTotal" in info and "SwapFree" in info:
        metrics["swap_used_bytes"] = float(info["SwapTotal"] - info["SwapFree"])
    return metrics


def vm_metrics(counters: dict[str, int], rates: Rates) -> dict[str, Value]:
    """OOM kills, and the share of pages that came from another NUMA node than wanted."""
    metrics: dict[str, Value] = {
        "oom_kills_total": counters.get("oom_kill"),
        "numa_foreign_total": counters.get("numa_foreign"),
    }
    hits = rates.delta("numa_hit", counters.get("numa_hit"))
    misses = rates.delta("numa_miss", counters.get("numa_miss"))
    if hits is not None and misses is not None and hits + misses > 0:
        metrics["numa_miss_ratio"] = misses / (hits + misses)
    return metrics


def disk_metrics(disks: Disks, rates: Rates) -> dict[str, Value]:
    """Bytes over all disks; the wait of the slowest disk that had something to do."""
    waits: list[float] = []
    for name, (operations, milliseconds) in disks.busy.items():
        done = rates.delta(f"{name}.operations", operations)
        took_ms = rates.delta(f"{name}.ms", milliseconds)
        if done and took_ms is not None:
            waits.append(took_ms / done / 1e3)
    if not disks.busy:
        return {}
    return {
        "disk_read_bytes_per_sec": rates.per_sec("disk.read", disks.read_bytes),
        "disk_write_bytes_per_sec": rates.per_sec("disk.written", disks.written_bytes),
        "disk_await_secs": max(waits, default=None),
    }


def network_metrics(network: Network, rates: Rates) -> dict[str, Value]:
    """Over all real interfaces."""
    return {
        "network_rx_bytes_per_sec": rates.per_sec("net.rx", network.rx_bytes),
        "network_tx_bytes_per_sec": rates.per_sec("net.tx", network.tx_bytes),
        "network_rx_errors_total": float(network.rx_errors),
    }
