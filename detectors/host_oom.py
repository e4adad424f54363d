"""The kernel's out-of-memory killer."""

import re

from msgspec import Struct

from stethoscope.detectors.conditions import Condition, quoted, to_finding
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.events import LogEvent
from stethoscope.schemas.findings import Finding

_KILLED = re.compile(
    r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (\d+) \(([^)]*)\)"
)
_SLURM = re.compile(r"Detected (\d+) oom[_-]kill events? in ")


class HostOomConfig(DetectorConfig, frozen=True, tag="host_oom", kw_only=True):
    """No settings of its own."""


class HostOomState(Struct):
    """Nothing is remembered."""


class HostOom:
    """One finding a process that the kernel killed for want of host memory."""

    def __init__(self, config: HostOomConfig) -> None:
        self.config = config
        self.state = HostOomState()

    def update(self, line: LogEvent, node: NodeContext) -> list[Finding]:
        """The finding of one kernel or system line, if it is one."""
        match = _KILLED.search(line.line)
        if match is None and not _SLURM.search(line.line):
            return []
        condition = Condition(
            cause="host_oom",
            subject=node.subject(),
            onset_unix_ns=line.time_unix_ns,
            value=float(match[1]) if match else None,
            unit="pid" if match else "",
            score=1.0,
            evidence=quoted(line.line),
            moment=True,
            raw_events=line.count,
        )
        return [to_finding(self.config, condition, line.time_unix_ns)]
