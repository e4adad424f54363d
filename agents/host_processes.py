"""Who a process is: name, user, container, job and rank, from ``/proc``.

What cannot be read (another user's ``environ``, a process that just ended) is absent.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

_SLURM_CGROUP = re.compile(r"/job_(\d+)(?:/|$)")
# cri-containerd-<id>.scope, docker-<id>.scope, /docker/<id>, kubepods/pod<uid>/<id>
_CONTAINER_CGROUP = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_MASTER_POD = re.compile(r"^(?P<job>[a-z0-9.-]+?)-(?:master|worker|launcher)-0(?:\..*)?$")
_NO_RUN_ID = {"", "none", "(null)"}
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "VC_JOB_NAME")
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
MAX_ENVIRON_BYTES = 256 * 1024


class Facts(Struct, frozen=True):
    """What is known of one process.

    ``start_ticks``: clock ticks after boot, its identity beside the pid. ``own_rank``: a launcher
    set its rank (``RANK`` or ``LOCAL_RANK``), rather than the scheduler its task number.
    """

    pid: int
    name: str
    state: str
    start_ticks: int
    ppid: int = 0
    command: str = ""
    user: str | None = None
    job_id: str | None = None
    rank: int | None = None
    container: str | None = None
    own_rank: bool = False


class Stat(Struct, frozen=True):
    """The part of ``/proc/PID/stat`` that we use."""

    name: str
    state: str
    ppid: int
    start_ticks: int


def parse_stat(text: str) -> Stat | None:
    """``/proc/PID/stat``; the name may hold spaces and parentheses.

    >>> parse_stat("7 (a) b) S 1 " + " ".join(map(str, range(5, 30)))).name
    'a) b'
    """
    head, found, tail = text.rpartition(")")
    values = tail.split()
    if not found or "(" not in head or len(values) < 20:
        return None
    try:
        return Stat(head.split("(", 1)[1], values[0], int(values[1]), int(values[19]))
    except ValueError:
        return None


def last_cpu(text: str) -> int | None:
    """The processor that a process last ran on, from its ``stat``."""
    values = text.rpartition(")")[2].split()
    cpu = values[36] if len(values) > 36 else ""
    return int(cpu) if cpu.isdecimal() and len(cpu) < 8 else None


def parse_environ(data: bytes) -> dict[str, str]:
    """The NUL-separated block of ``/proc/PID/environ``."""
    pairs = (item.partition(b"=") for item in data.split(b"\0"))
    return {k.decode(errors="replace"): v.decode(errors="replace") for k, eq, v in pairs if eq}


def job_of(environ: Mapping[str, str], cgroup: str) -> str | None:
    """The job's id: what the scheduler set, else Slurm's cgroup, else the PyTorchJob's name.

    >>> job_of({"MASTER_ADDR": "llama-7b-master-0"}, "")
    'llama-7b'
    """
    for name in JOB_VARIABLES:
        if environ.get(name, "") not in _NO_RUN_ID:
            return environ[name]
    if match := _SLURM_CGROUP.search(cgroup):
        return match[1]
    if match := _MASTER_POD.match(environ.get("MASTER_ADDR", "")):
        return match["job"]
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    return None if run_id in _NO_RUN_ID else run_id


def number_of(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of the variables that holds a whole number."""
    for name in names:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
    return None


def container_of(cgroup: str) -> str | None:
    """The container's short id (12 digits).

    >>> container_of("0::/kubepods.slice/cri-containerd-" + "ab" * 32 + ".scope")
    'abababababab'
    """
    match = _CONTAINER_CGROUP.search(cgroup)
    return match[1][:12] if match else None


class ProcessTable:
    """Reads processes below a ``/proc``; remembers the facts of those that live on."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self.root = Path(proc_root)
        self._known: dict[int, Facts] = {}
        self._users: dict[int, str] | None = None

    def pids(self) -> list[int]:
        """Ids of all processes."""
        return [int(name) for name in os.listdir(self.root) if name.isdigit()]  # noqa: PTH208  # cheap

    def forget_all_but(self, pids: set[int]) -> None:
        """Drop the facts of processes that are gone; bounds the table."""
        for pid in self._known.keys() - pids:
            del self._known[pid]

    def facts(self, pid: int) -> Facts | None:
        """The process as it is now, ``None`` where it has ended."""
        stat = parse_stat(self._text(pid, "stat"))
        if stat is None:
            self._known.pop(pid, None)
            return None
        old = self._known.get(pid)
        # exec keeps pid and start time but not the name
        if old and old.start_ticks == stat.start_ticks and old.name == stat.name:
            if old.state == stat.state:
                return old
            new = replace(old, state=stat.state)
        else:
            new = self._find_out(pid, stat)
        self._known[pid] = new
        return new

    def _find_out(self, pid: int, stat: Stat) -> Facts:
        cgroup = self._text(pid, "cgroup")
        environ = parse_environ(self._bytes(pid, "environ"))
        command = self._bytes(pid, "cmdline")[:4096].replace(b"\0", b" ").decode(errors="replace")
        return Facts(
            pid=pid,
            name=stat.name,
            state=stat.state,
            start_ticks=stat.start_ticks,
            ppid=stat.ppid,
            command=command.strip(),
            user=self._user(pid),
            job_id=job_of(environ, cgroup),
            rank=number_of(environ, *RANK_VARIABLES),
            container=container_of(cgroup),
            own_rank="RANK" in environ or "LOCAL_RANK" in environ,
        )

    def _bytes(self, pid: int, name: str) -> bytes:
        try:
            with (self.root / str(pid) / name).open("rb") as file:
                return file.read(MAX_ENVIRON_BYTES)
        except OSError:  # ended meanwhile, or another user's
            return b""

    def _text(self, pid: int, name: str) -> str:
        return self._bytes(pid, name).decode(errors="replace")

    def _user(self, pid: int) -> str | None:
        try:
            uid = (self.root / str(pid)).stat().st_uid
        except OSError:
            return None
        if self._users is None:
            self._users = read_passwd()
        return self._users.get(uid, str(uid))


def read_passwd(path: str = "/etc/passwd") -> dict[int, str]:
    """Names by uid from the file alone: a directory service behind NSS may hang."""
    users: dict[int, str] = {}
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return users
    for line in text.splitlines():
        parts = line.split(":")
        if len(parts) > 2 and parts[2].isascii() and parts[2].isdigit():
            users.setdefault(int(parts[2]), parts[0])
    return users
