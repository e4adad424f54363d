"""Kernel lines as text: which matter, and what stands before the message in log files."""

import re

# A line must hold one of these, in lower case. Drivers first, then machine, memory, storage, net.
CLUES = (
    "xid",
    "nvrm",
    "nvidia",
    "nvlink",
    "fallen off the bus",
    "gpu",
    "amdgpu",
    "davinci",
    "ascend",
    "mlx5",
    "mlx4",
    "infiniband",
    "rdma",
    "ib_",
    "netdev watchdog",
    "link is down",
    "link is up",
    "link down",
    "link up",
    "aer:",
    "pcie bus error",
    "pcieport",
    "pciehp",
    "dpc:",
    "mce:",
    "machine check",
    "hardware error",
    "edac",
    "ghes",
    "memory failure",
    "temperature above threshold",
    "clock throttled",
    "out of memory",
    "oom-kill",
    "oom_kill",
    "oom_reaper",
    "killed process",
    "nfs",
    "rpc:",
    "lustre",
    "lnet",
    "gpfs",
    "mmfs",
    "beegfs",
    "ceph",
    "i/o error",
    "ext4-fs error",
    "xfs (",
    "nvme",
    "remounting filesystem",
    "segfault",
    "general protection",
    "traps:",
    "lockup",
    "blocked for more than",
    "rcu: info",
    "self-detected stall",
    "kernel panic",
    "bug:",
    "oops",
)
_LEVEL = re.compile(r"^(?:<\d{1,3}>|[a-z]+ *:[a-z]+ *: )")
_STAMP = re.compile(
    r"^\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} [\d:]{8} \d{4}\] "
    r"|^\[\s*[+-]?\d+\.\d+\]\s?"
    r"|^\d{4}-\d\d-\d\dT[\d:]{8}(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d) "
    r"|^[A-Z][a-z]{2} +\d{1,2} [\d:]{8}(?:\.\d+)? "
)
_TAG = re.compile(r"^(?:\S+ )?(?P<program>[\w./-]+)(?:\[\d+\])?: ")


def matters(message: str) -> bool:
    """Whether the message is of the kind that faults leave.

    >>> matters("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus")
    True
    >>> matters("usb 1-1: new high-speed USB device number 2")
    False
    """
    lowered = message.lower()
    return any(clue in lowered for clue in CLUES)


def message_of(line: str) -> str | None:
    """The message alone, of a line by dmesg or syslog; ``None`` if another program wrote it.

    >>> message_of("Jan 14 22:15:17 node01 kernel: [2437042.8] NVRM: Xid (PCI:0000:84:00): 95, x")
    'NVRM: Xid (PCI:0000:84:00): 95, x'
    >>> message_of("Jan 14 22:15:17 node01 sshd[71]: Accepted publickey") is None
    True
    """
    line = _LEVEL.sub("", line, count=1)
    stamp = _STAMP.match(line)
    if stamp is None:
        return line.removeprefix("kernel: ")
    line = line[stamp.end() :]
    if stamp[0].startswith("["):  # dmesg's own
        return line
    tag = _TAG.match(line)
    if tag and tag["program"] == "kernel":
        line = line[tag.end() :]
        inner = _STAMP.match(line)
        return line[inner.end() :] if inner else line
    # dmesg --time-format=iso names no program; syslog always does.
    return line if "," in stamp[0] else None
