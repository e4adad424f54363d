"""Parsers of ``/proc`` files: text in, numbers out. A line that does not parse is left out."""

import re

from msgspec import Struct

SECTOR_BYTES = 512  # /proc/diskstats counts these whatever the disk's own sector is
_WHOLE_DISK = re.compile(r"^(?:sd[a-z]+|vd[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+)$")
# Bridges and bonds count the traffic of their members a second time.
_COUNTED_TWICE = re.compile(r"^(?:lo|veth|docker|br-|bond|virbr|cni|flannel|cali|tunl|dummy)")


class Cpu(Struct, frozen=True):
    """Ticks since boot over all processors, and the counters beside them."""

    total: int
    idle: int
    iowait: int
    steal: int
    context_switches: int | None = None
    blocked: int | None = None


class Disks(Struct, frozen=True):
    """Sums over whole disks; ``busy`` holds (operations, milliseconds) by disk."""

    read_bytes: int
    written_bytes: int
    busy: dict[str, tuple[int, int]]


class Network(Struct, frozen=True):
    """Sums over real interfaces since boot."""

    rx_bytes: int
    tx_bytes: int
    rx_errors: int


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def _numbers(words: list[str]) -> list[int]:
    return [n for word in words if (n := _number(word)) is not None]


def parse_stat(text: str) -> Cpu | None:
    """``/proc/stat``.

    >>> parse_stat("cpu  1 0 1 6 2 0 0 0 0 0").idle
    6
    """
    values: list[int] = []
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["cpu"]:
            values = _numbers(words[1:9])  # guest time is part of user time
        elif len(words) == 2 and words[0] in ("ctxt", "procs_blocked"):
            found[words[0]] = _number(words[1])
    if len(values) < 8:
        return None
    return Cpu(
        total=sum(values),
        idle=values[3],
        iowait=values[4],
        steal=values[7],
        context_switches=found.get("ctxt"),
        blocked=found.get("procs_blocked"),
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo`` in bytes.

    >>> parse_meminfo("MemTotal:  16 kB")
    {'MemTotal': 16384}
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.replace(":", " ").split()
        if len(words) == 3 and words[2] == "kB" and (number := _number(words[1])) is not None:
            found[words[0]] = number * 1024
    return found


VM_COUNTERS = frozenset({"oom_kill", "numa_hit", "numa_miss", "numa_foreign"})


def parse_vmstat(text: str) -> dict[str, int]:
    r"""Those of ``/proc/vmstat`` that we use.

    >>> parse_vmstat("nr_free_pages 7\noom_kill 3")
    {'oom_kill': 3}
    """
    lines = (line.split() for line in text.splitlines() if line.split(" ", 1)[0] in VM_COUNTERS)
    pairs = ((words[0], _number(words[1])) for words in lines if len(words) == 2)
    return {name: number for name, number in pairs if number is not None}


def parse_loadavg(text: str) -> tuple[float, float] | None:
    """The load of the last minute and of the last five.

    >>> parse_loadavg("0.52 0.58 0.59 1/1028 12345")
    (0.52, 0.58)
    """
    words = text.split()
    try:
        return (float(words[0]), float(words[1])) if len(words) >= 2 else None
    except ValueError:
        return None


def parse_uptime(text: str) -> float | None:
    """Seconds since boot."""
    words = text.split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def parse_file_nr(text: str) -> float | None:
    """Share of the file descriptors that may exist, from ``/proc/sys/fs/file-nr``.

    >>> parse_file_nr("1000 0 4000")
    0.25
    """
    numbers = _numbers(text.split())
    return numbers[0] / numbers[2] if len(numbers) == 3 and numbers[2] else None


def parse_diskstats(text: str) -> Disks:
    """``/proc/diskstats``: whole disks, neither partitions nor what is stacked on them."""
    read = written = 0
    busy: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 11 or not _WHOLE_DISK.match(words[2]):
            continue
        values = _numbers(words[3:11])
        if len(values) < 8:
            continue
        reads, _, sectors_read, read_ms, writes, _, sectors_written, write_ms = values
        read += sectors_read * SECTOR_BYTES
        written += sectors_written * SECTOR_BYTES
        busy[words[2]] = (reads + writes, read_ms + write_ms)
    return Disks(read, written, busy)


def parse_net_dev(text: str) -> Network:
    """``/proc/net/dev`` without loopback, bridges, bonds and containers' ends."""
    rx = tx = errors = 0
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        values = _numbers(rest.split())
        if not colon or len(values) < 16 or _COUNTED_TWICE.match(name.strip()):
            continue
        rx, tx, errors = rx + values[0], tx + values[8], errors + values[2]
    return Network(rx, tx, errors)


class NfsOps(Struct, frozen=True):
    """Operations of an NFS mount since it was mounted, and the milliseconds they took in all."""

    operations: int
    execute_ms: int


class MountInfo(Struct, frozen=True):
    """One mount."""

    device: str
    path: str
    fstype: str
    nfs: NfsOps | None = None


_MOUNT = re.compile(r"^device (?P<device>.+) mounted on (?P<path>.+) with fstype (?P<type>\S+)")
_OCTAL = re.compile(r"\\([0-7]{3})")


def parse_mountstats(text: str) -> list[MountInfo]:
    r"""``/proc/PID/mountstats``: every mount, with the counts of those that are NFS.

    >>> parse_mountstats("device fs:/x mounted on /a\\040b with fstype nfs4 statvers=1.1")[0].path
    '/a b'
    """
    mounts: list[MountInfo] = []
    operations = execute_ms = 0
    counted = False
    current: MountInfo | None = None

    def finish() -> None:
        if current is not None:
            nfs = NfsOps(operations, execute_ms) if counted else None
            mounts.append(MountInfo(current.device, current.path, current.fstype, nfs))

    for line in text.splitlines():
        if match := _MOUNT.match(line):
            finish()
            operations = execute_ms = 0
            counted = False
            current = MountInfo(match["device"], _unescaped(match["path"]), match["type"])
            continue
        name, colon, rest = line.partition(":")
        values = rest.split()
        # ops transmissions timeouts sent received queue_ms rtt_ms execute_ms [errors]
        if colon and name.strip().isupper() and len(values) in (8, 9) and current is not None:
            numbers = _numbers(values)
            if len(numbers) == len(values):
                operations, execute_ms = operations + numbers[0], execute_ms + numbers[7]
                counted = True
    finish()
    return mounts


def _unescaped(path: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)
