"""The host: processors, memory, disks, mounts, training processes, checkpoints, versions."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from stethoscope.agents import host_proc
from stethoscope.agents.host_background import Background
from stethoscope.agents.host_checkpoints import newest_checkpoint
from stethoscope.agents.host_clock import clock_state
from stethoscope.agents.host_metrics import (
    Rates,
    cpu_metrics,
    disk_metrics,
    memory_metrics,
    network_metrics,
    vm_metrics,
)
from stethoscope.agents.host_mounts import Mounts, mountstats_of
from stethoscope.agents.host_numa import NumaShares
from stethoscope.agents.host_processes import ProcessTable
from stethoscope.agents.host_training import TrainingProcesses
from stethoscope.agents.host_versions import host_versions, nccl_version
from stethoscope.agents.reader import Context, Counters, Now
from stethoscope.schemas.agent_config import Host
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import Checkpoint, Event, NodeEvent, Process, Value

T = TypeVar("T")
WAIT_SECS = 0.3  # for mounts and checkpoint folders that answer slowly
FIRST_WAIT_SECS = 2.0  # so that a single read shows them
VERSIONS_SECS = 300
MAX_CHECKPOINT_DIRS = 64


class HostReader:
    """Everything about the host that is neither a GPU nor a fabric port, as one ``node`` event.

    The event's stream is ``host``. Rates are over the time since the last read, so the first read
    has none. What hangs (a dead mount) hangs in a thread of its own and holds up nothing else.
    """

    name = "host"
    hazardous = True

    def __init__(self, context: Context, config: Host) -> None:
        self.period_secs = config.period_secs
        self.counters = Counters()
        self._context = context
        self._config = config
        self._root = Path(config.proc_root)
        self._mountstats, prefix = mountstats_of(self._root)
        self._prefix = prefix
        self._mounts = Mounts(prefix, config.mounts)
        self._training = TrainingProcesses(ProcessTable(config.proc_root), config.process_names)
        self._numa = NumaShares(self._root, config.numa_period_secs)
        self._checkpoints: Background[list[Checkpoint]] = Background(self._scan_checkpoints)
        self._nccl: Background[str | None] = Background(self._find_nccl)
        self._nccl_pids: list[int] = []
        self._checkpoints_due_ns = 0
        self._versions_due_ns = 0
        self._versions: dict[str, str | None] = {}
        self._rates = Rates()
        self._first = True

    def probe(self) -> None:
        """See whether there is a ``/proc``.

        Raises:
            ReaderUnsupported: there is none at ``proc_root``.
        """
        if not (self._root / "stat").exists():
            msg = f"no /proc at {self._root}: set host.proc_root or --proc-root"
            raise ReaderUnsupported(msg)

    def read(self, now: Now) -> list[Event]:
        """One look at the host."""
        wait_secs, self._first = (FIRST_WAIT_SECS if self._first else WAIT_SECS), False
        self._start_slow_work(now)
        metrics = self._metrics(now)
        mounts = self._mounts.read(self._parse("mountstats", host_proc.parse_mountstats), wait_secs)
        shm = next((m.used_ratio for m in mounts if m.path == "/dev/shm"), None)  # noqa: S108
        for path in self._mounts.hanging():
            self.counters.error(f"statvfs {path}")
        metrics["shm_used_ratio"] = shm
        processes = self._training.read(now.monotonic_ns)
        if self._training.zombies is not None:
            metrics["zombie_processes"] = float(self._training.zombies)
        if self._config.checkpoint_dirs:
            self._checkpoints.wait(wait_secs)
        return [
            NodeEvent(
                **self._context.stamp(now, self.period_secs, self.name),
                metrics={
                    name: self.counters.clean(name, value)
                    for name, value in metrics.items()
                    if value is not None
                },
                mounts=mounts,
                processes=self._with_numa(processes, now),
                checkpoints=self._checkpoints.result or [],
                versions=self._versions | ({"nccl": nccl} if (nccl := self._nccl.result) else {}),
            )
        ]

    def close(self) -> None:
        """Nothing is held open; a thread that hangs ends with its mount."""

    def _start_slow_work(self, now: Now) -> None:
        if now.monotonic_ns >= self._versions_due_ns:
            self._versions_due_ns = now.monotonic_ns + VERSIONS_SECS * 1_000_000_000
            self._versions = host_versions(self._root, Path(self._prefix or "/"))
        if self._nccl.result is None and self._nccl.pending_secs is None:
            self._nccl_pids = self._training.pids()
            if self._nccl_pids:
                self._nccl.start()
        if self._config.checkpoint_dirs and now.monotonic_ns >= self._checkpoints_due_ns:
            period_secs = self._config.checkpoint_period_secs
            self._checkpoints_due_ns = now.monotonic_ns + int(period_secs * 1e9)
            self._checkpoints.start()

    def _with_numa(self, processes: list[Process], now: Now) -> list[Process]:
        ratios = self._numa.read(self._training.pids(), now.monotonic_ns)
        return [
            replace(p, numa_remote_ratio=ratios.get(p.pid)) if p.alive else p for p in processes
        ]

    def _metrics(self, now: Now) -> dict[str, Value]:
        rates = self._rates
        rates.begin(now.monotonic_ns)
        metrics: dict[str, Value] = {}
        metrics.update(cpu_metrics(self._parse("stat", host_proc.parse_stat), rates))
        metrics.update(memory_metrics(self._parse("meminfo", host_proc.parse_meminfo)))
        metrics.update(vm_metrics(self._parse("vmstat", host_proc.parse_vmstat), rates))
        metrics.update(disk_metrics(self._parse("diskstats", host_proc.parse_diskstats), rates))
        metrics.update(network_metrics(self._parse("net/dev", host_proc.parse_net_dev), rates))
        if load := self._parse("loadavg", host_proc.parse_loadavg):
            metrics["load1"], metrics["load5"] = load
        metrics["uptime_secs"] = self._parse("uptime", host_proc.parse_uptime)
        metrics["file_descriptors_used_ratio"] = self._parse(
            "sys/fs/file-nr", host_proc.parse_file_nr
        )
        metrics.update(clock_state())
        return metrics

    def _parse(self, name: str, parse: Callable[[str], T]) -> T:
        """The parsed file; one that cannot be read is counted and parses as empty."""
        path = self._mountstats if name == "mountstats" else self._root / name
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            self.counters.error(name)
            text = ""
        return parse(text)

    def _scan_checkpoints(self) -> list[Checkpoint]:
        found: list[Checkpoint] = []
        for pattern in self._config.checkpoint_dirs:
            root = Path(self._prefix or "/")
            directories = (p for p in root.glob(pattern.lstrip("/")) if p.is_dir())
            for directory in sorted(directories)[:MAX_CHECKPOINT_DIRS]:
                name = os.fsencode(directory).decode(errors="replace")
                path = name.removeprefix(self._prefix)
                try:
                    found.append(replace(newest_checkpoint(directory), path=path))
                except OSError:
                    self.counters.error(f"checkpoint {path}")
        return found

    def _find_nccl(self) -> str | None:
        for pid in self._nccl_pids:
            try:
                version = nccl_version(self._root, pid)
            except OSError:  # ended meanwhile, or another user's
                continue
            if version is not None:
                return version
        return None
