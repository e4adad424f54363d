"""Xid and SXid lines of the kernel log."""

import re

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, quoted, to_finding
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.events import LogEvent
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.sxid import sxid_catalogue
from stethoscope.schemas.xid import Xid as XidEntry
from stethoscope.schemas.xid import xid_catalogue

# Only the address and the code are always there; a MIG instance may stand inside the parentheses.
_XID = re.compile(r"\bXid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\):\s*(\d+)(.*)")
_SXID = re.compile(r"(nvidia-nvswitch\d+): SXid \((?:PCI:)?[^)]*\):\s*(\d+),\s*(.*)")
_PROCESS = re.compile(r"pid='?(\d+)'?(?:, name=([^,]+))?")
_OFF_THE_BUS = re.compile(r"GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]+): GPU has fallen off the bus")
# Without an Xid the driver says it in three records; only the first names the GPU.
_NAMED = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)")
_NOT_RESPONDING = re.compile(r"fallen off the bus and is not responding")
_NONFATAL = re.compile(r"\bNon-?fatal\b", re.IGNORECASE)
_CAUSED_BY = re.compile(r"caused by previous Xid (\d+)")


class XidConfig(DetectorConfig, frozen=True, tag="xid", kw_only=True):
    """Severity and cause come from the catalogue (``stethoscope explain xid CODE``).

    ``ignore``: codes that are recorded as ``info`` whatever the catalogue says.
    """

    ignore: list[int] = field(default_factory=list)


class XidState(Struct):
    """The GPU that the driver named last, by node; repeats fold in correlation.

    Bound: one address a node.
    """

    named: dict[str, str] = field(default_factory=dict)


class Xid:
    """One finding an Xid, SXid or "fallen off the bus" line; the kernel log is the authority.

    Malformed lines are no finding. Source of severities: NVIDIA's Xid catalogue.
    """

    def __init__(self, config: XidConfig) -> None:
        self.config = config
        self.state = XidState()

    def update(self, line: LogEvent, node: NodeContext) -> list[Finding]:
        """The finding of one kernel line, if it is one."""
        text = line.line
        if match := _XID.search(text):
            return [self._xid(line, node, match)]
        if match := _SXID.search(text):
            return self._sxid(line, node, match)
        if match := _OFF_THE_BUS.search(text):
            return [self._lost(line, node, match[1])]
        if match := _NAMED.search(text):
            self.state.named[node.node] = match[1]
        elif _NOT_RESPONDING.search(text) and (pci := self.state.named.pop(node.node, None)):
            return [self._lost(line, node, pci)]
        return []

    def _xid(self, line: LogEvent, node: NodeContext, match: "re.Match[str]") -> Finding:
        code, rest = int(match[2]), match[3]
        entry = xid_catalogue().get(code)
        severity = self._severity(code, entry, rest)
        process = _PROCESS.search(rest)
        after = _CAUSED_BY.search(rest)
        name = entry.name if entry else "not in the catalogue"
        follows = f"; follows Xid {after[1]}" if after else ""
        return self._say(
            line,
            Condition(
                cause=entry.cause if entry else "gpu_xid",
                subject=node.gpu(match[1]),
                onset_unix_ns=line.time_unix_ns,
                value=float(code),
                unit="xid",
                score=None if severity == "info" else 1.0,
                evidence=f"Xid {code} ({name}){follows}{_who(process)}: {quoted(line.line)}",
                moment=True,
                severity=severity,
                raw_events=line.count,
            ),
        )

    def _severity(self, code: int, entry: XidEntry | None, rest: str) -> str:
        if code in self.config.ignore:
            return "info"
        if entry is None:
            return "warning"
        nonfatal = entry.severity == "critical" and _NONFATAL.search(rest)
        return "info" if nonfatal else entry.severity

    def _sxid(self, line: LogEvent, node: NodeContext, match: "re.Match[str]") -> list[Finding]:
        code, rest = int(match[2]), match[3]
        if rest.startswith(("Data", "Severity")):  # follow-up lines of the same event
            return []
        entry = sxid_catalogue().get(code)
        fatal = rest.lower().startswith("fatal") or (
            entry is not None and entry.severity == "critical" and not _NONFATAL.match(rest)
        )
        condition = Condition(
            cause="nvswitch_error",
            subject=node.subject(),
            onset_unix_ns=line.time_unix_ns,
            value=float(code),
            unit="sxid",
            score=1.0 if fatal else None,
            evidence=f"SXid {code} on {match[1]}: {rest[:300]}",
            moment=True,
            severity="critical" if fatal else "info",
            raw_events=line.count,
        )
        return [self._say(line, condition)]

    def _lost(self, line: LogEvent, node: NodeContext, pci: str) -> Finding:
        condition = Condition(
            cause="gpu_lost",
            subject=node.gpu(pci),
            onset_unix_ns=line.time_unix_ns,
            value=79.0,
            unit="xid",
            score=1.0,
            evidence=quoted(line.line),
            moment=True,
            raw_events=line.count,
        )
        return self._say(line, condition)

    def _say(self, line: LogEvent, condition: Condition) -> Finding:
        return to_finding(self.config, condition, line.time_unix_ns)


def _who(process: "re.Match[str] | None") -> str:
    if process is None:
        return ""
    return f" by pid {process[1]}" + (f" {process[2]}" if process[2] else "")
