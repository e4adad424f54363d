"""File systems: how full they are and how long they take to answer, dead ones included."""

import os
import time
from pathlib import Path

from stethoscope.agents.host_background import Background
from stethoscope.agents.host_proc import MountInfo, NfsOps
from stethoscope.schemas.events import Mount

NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "gpfs", "beegfs", "wekafs", "glusterfs", "9p"}
    | {
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.s3fs",
        "fuse.sshfs",
        "orangefs",
        "pvfs2",
    }
    | {"afs", "daos", "fuse.daos", "virtiofs", "panfs", "vast"}
)
MAX_MOUNTS = 64


class Mounts:
    """Watches the root, ``/dev/shm``, network file systems and the paths asked for.

    ``await_secs`` of an NFS mount is the mean time of its operations since the last read; where it
    had none, and for other file systems, the time that ``statvfs`` took. A mount that hangs shows
    the time it has been hanging, rising from read to read, and its last known use.
    """

    def __init__(self, prefix: str, extra: list[str]) -> None:
        self._prefix = prefix
        self._extra = set(extra)
        self._probes: dict[str, Background[float | None]] = {}
        self._last_ops: dict[str, NfsOps] = {}

    def read(self, mounts: list[MountInfo], wait_secs: float) -> list[Mount]:
        """The watched mounts; waits that long in all for slow ones."""
        watched = {m.path: m for m in mounts if self._is_watched(m)}
        chosen = list(watched.values())[:MAX_MOUNTS]
        self._probes = {m.path: self._probes.get(m.path) or self._probe(m) for m in chosen}
        for mount in chosen:
            probe = self._probes[mount.path]
            if mount.fstype in NETWORK_TYPES or mount.fstype.startswith("fuse"):
                probe.start()
            else:
                probe.call()
        end = time.monotonic() + wait_secs
        for probe in self._probes.values():
            probe.wait(end - time.monotonic())
        self._last_ops = {path: o for path, o in self._last_ops.items() if path in watched}
        return [self._mount(m) for m in chosen]

    def hanging(self) -> list[str]:
        """Mounts that have not answered yet."""
        return [path for path, probe in self._probes.items() if probe.pending_secs is not None]

    def _is_watched(self, mount: MountInfo) -> bool:
        if mount.path in ("/", "/dev/shm") or mount.path in self._extra:  # noqa: S108  # a mount
            return True
        return mount.fstype in NETWORK_TYPES

    def _probe(self, mount: MountInfo) -> Background[float | None]:
        return Background(lambda: used_ratio(self._prefix + mount.path))

    def _mount(self, mount: MountInfo) -> Mount:
        probe = self._probes[mount.path]
        pending_secs = probe.pending_secs
        await_secs = pending_secs if pending_secs is not None else probe.took_secs
        operations_secs = self._nfs_await_secs(mount)
        if operations_secs is not None and pending_secs is None:
            await_secs = operations_secs
        return Mount(
            path=mount.path,
            fstype=mount.fstype,
            used_ratio=None if probe.error else probe.result,
            await_secs=await_secs if mount.fstype in NETWORK_TYPES else None,
        )

    def _nfs_await_secs(self, mount: MountInfo) -> float | None:
        if mount.nfs is None:
            return None
        old = self._last_ops.get(mount.path)
        self._last_ops[mount.path] = mount.nfs
        if old is None or mount.nfs.operations <= old.operations:
            return None
        operations = mount.nfs.operations - old.operations
        return max(0, mount.nfs.execute_ms - old.execute_ms) / operations / 1e3


def used_ratio(path: str) -> float | None:
    """Share of the space that is used, by the measure that makes a user's write fail.

    Raises:
        OSError: the file system does not answer.
    """
    status = os.statvfs(path)
    usable = status.f_blocks - status.f_bfree + status.f_bavail
    return (status.f_blocks - status.f_bfree) / usable if usable else None


def mountstats_of(proc_root: Path) -> tuple[Path, str]:
    """Where mount statistics are, and what stands before a mount's path.

    A ``/proc`` of the host, bound into a container, shows the host's mounts as those of pid 1.
    """
    if proc_root == Path("/proc"):
        return proc_root / "self" / "mountstats", ""
    return proc_root / "1" / "mountstats", f"{proc_root}/1/root"
