"""InfiniBand and RoCE ports by sysfs: state, rate, every counter; optics where a tool exists."""

import os
import re
from pathlib import Path
from shutil import which

from msgspec import Struct, field

from stethoscope.agents.optics import (
    Answer,
    Ask,
    ToolQueue,
    parse_ethtool_module,
    parse_ethtool_statistics,
    parse_mlxlink,
)
from stethoscope.agents.reader import Context, Counters, Now
from stethoscope.schemas.agent_config import IbSysfs
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import Event, IbEvent, NodeEvent, Port, Value

RESCAN_SECS = 30
RETRY_SECS = 60  # how often a file that does not read is tried again
FIRST_OPTICS_WAIT_SECS = 2.0  # so that a single read shows them
MAX_COUNTER_BYTES = 64
COUNTER_FOLDERS = ("counters", "hw_counters")
_STATE = re.compile(r"^\d+:\s*(\S.*)$")
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*Gb/sec")


def parse_state(text: str) -> str:
    r"""``4: ACTIVE`` is ``ACTIVE``, ``5: LinkUp`` is ``LinkUp``.

    >>> parse_state("4: ACTIVE\n")
    'ACTIVE'
    """
    match = _STATE.match(text.strip())
    return match[1] if match else ""


def parse_rate_gbps(text: str) -> float | None:
    """Gigabits a second of all lanes.

    >>> parse_rate_gbps("400 Gb/sec (4X NDR)")
    400.0
    """
    match = _RATE.match(text.strip())
    return float(match[1]) if match else None


def parse_counter(data: bytes) -> int | None:
    r"""A counter file's number; ``None`` for ``N/A (no PMA)`` and whatever else is none.

    >>> parse_counter(b"17\n"), parse_counter(b"N/A (no PMA)")
    (17, None)
    """
    digits = data.strip()
    if not digits.isdigit() or len(digits) > 20:
        return None
    value = int(digits)
    return value if value < 2**64 else None


def parse_gid(text: str) -> str:
    """The port GUID: the lower half of GID 0; empty for a RoCE port's address.

    >>> parse_gid("fe80:0000:0000:0000:0002:c903:00ab:cdef")
    '0x0002c90300abcdef'
    """
    groups = text.strip().split(":")
    if len(groups) != 8 or not all(re.fullmatch(r"[0-9a-f]{4}", g) for g in groups):
        return ""
    guid = "".join(groups[4:])
    return "" if not int(guid, 16) else f"0x{guid}"


class _File:
    """A sysfs file kept open: reading at offset 0 makes the kernel fill it anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.retry_ns = 0
        self._descriptor = -1

    def read(self) -> bytes:
        """Its present content.

        Raises:
            OSError: the kernel refuses (EINVAL, ENODEV, ..); the next read opens anew.
        """
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(self._descriptor, MAX_COUNTER_BYTES, 0)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _PortFiles(Struct):
    """A port's folder, its counters by name and what does not change."""

    path: Path
    device: str
    number: int
    guid: str
    link_layer: str
    netdev: str
    state: _File
    phys_state: _File
    rate: _File
    counters: dict[str, _File] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        return self.device, self.number

    def close(self) -> None:
        for file in (self.state, self.phys_state, self.rate, *self.counters.values()):
            file.close()


class IbSysfsReader:
    """All ports below ``root`` as one ``ib`` event a read, names as in sysfs.

    A file that cannot be read, or holds no number, is null in that port's column, is counted by
    its path, and is tried again a minute later. A counter that no port has has no column. The
    ``node`` event (stream ``ib_sysfs``) holds ``ib_port_count`` and the firmware version.
    """

    name = "ib_sysfs"
    hazardous = True  # a counter of a device whose firmware hangs blocks for a minute

    def __init__(self, context: Context, config: IbSysfs) -> None:
        self.period_secs = config.period_secs
        self.counters = Counters()
        self._context = context
        self._config = config
        self._root = Path(config.root)
        self._ports: list[_PortFiles] = []
        self._rescan_ns = 0
        self._firmware: str | None = None
        self._tools = ToolQueue(config.tool_timeout_secs)
        self._optics: dict[tuple[str, int], dict[str, Value]] = {}
        self._statistics: dict[tuple[str, int], dict[str, int]] = {}
        self._optics_due_ns: int | None = None

    def probe(self) -> None:
        """Find the ports.

        Raises:
            ReaderUnsupported: no such folder, or no port in it.
        """
        self._scan()
        if not self._ports:
            msg = f"no InfiniBand or RoCE port in {self._root}"
            raise ReaderUnsupported(msg)

    def read(self, now: Now) -> list[Event]:
        """One scrape of all ports."""
        if now.monotonic_ns >= self._rescan_ns:
            self._scan()
            self._rescan_ns = now.monotonic_ns + RESCAN_SECS * 1_000_000_000
        if self._config.optics:
            self._ask_tools(now)
        ports = [self._port(files) for files in self._ports]
        return [
            IbEvent(
                **self._context.stamp(now, self.period_secs),
                ports=ports,
                counters=self._counter_columns(now),
                metrics=self._optics_columns(),
            ),
            self._node_event(now),
        ]

    def close(self) -> None:
        """Close files, end tools."""
        for port in self._ports:
            port.close()
        self._ports = []
        self._rescan_ns = 0
        self._tools.close()

    def _scan(self) -> None:
        """Open ports that are new, forget those that are gone."""
        paths = sorted(self._root.glob("*/ports/*"), key=_port_order)
        old = {port.path: port for port in self._ports}
        self._ports = []
        for path in paths:
            if not path.name.isdigit():
                continue
            port = old.pop(path, None) or self._open_port(path)
            port.counters = _counter_files(path, port.counters)
            self._ports.append(port)
        for gone in old.values():
            gone.close()
        versions = {self._text(p.parents[1] / "fw_ver") for p in (f.path for f in self._ports)}
        self._firmware = ", ".join(sorted(versions - {""})) or None

    def _open_port(self, path: Path) -> _PortFiles:
        netdev = self._text(path / "gid_attrs" / "ndevs" / "0", expected=False)
        return _PortFiles(
            path=path,
            device=path.parents[1].name,
            number=int(path.name),
            guid=parse_gid(self._text(path / "gids" / "0", expected=False)),
            link_layer=self._text(path / "link_layer"),
            netdev=netdev or _first_netdev(path.parents[1]),
            state=_File(path / "state"),
            phys_state=_File(path / "phys_state"),
            rate=_File(path / "rate"),
        )

    def _text(self, path: Path, expected: bool = True) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            if expected:
                self.counters.error(self._label(path))
            return ""

    def _label(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    def _attribute(self, file: _File) -> str:
        try:
            return file.read().decode(errors="replace")
        except OSError:
            self.counters.error(self._label(file.path))
            return ""

    def _port(self, files: _PortFiles) -> Port:
        return Port(
            device=files.device,
            port=files.number,
            guid=files.guid,
            state=parse_state(self._attribute(files.state)),
            phys_state=parse_state(self._attribute(files.phys_state)),
            rate_gbps=parse_rate_gbps(self._attribute(files.rate)),
            link_layer=files.link_layer,
            netdev=files.netdev,
        )

    def _counter_columns(self, now: Now) -> dict[str, list[int | None]]:
        rows: list[dict[str, int | None]] = []
        for port in self._ports:
            row = {name: self._counter(file, now) for name, file in port.counters.items()}
            row.update(self._statistics.get(port.key, {}))
            rows.append(row)
        names = sorted({name for row in rows for name, value in row.items() if value is not None})
        return {name: [row.get(name) for row in rows] for name in names}

    def _counter(self, file: _File, now: Now) -> int | None:
        if now.monotonic_ns < file.retry_ns:
            return None
        try:
            value = parse_counter(file.read())
        except OSError:
            value = None
        if value is None:
            self.counters.error(self._label(file.path))
            file.retry_ns = now.monotonic_ns + RETRY_SECS * 1_000_000_000
        return value

    def _optics_columns(self) -> dict[str, list[Value]]:
        rows = [self._optics.get(port.key, {}) for port in self._ports]
        names = sorted({name for row in rows for name in row})
        return {name: [row.get(name) for row in rows] for name in names}

    def _ask_tools(self, now: Now) -> None:
        first = self._optics_due_ns is None
        if (first or now.monotonic_ns >= (self._optics_due_ns or 0)) and self._tools.idle:
            self._optics_due_ns = now.monotonic_ns + int(self._config.optics_period_secs * 1e9)
            self._tools.put(_asks(self._ports))
        wait_secs = FIRST_OPTICS_WAIT_SECS if first else 0.0
        for answer in self._tools.poll(now.monotonic_ns, wait_secs):
            self._take(answer)

    def _take(self, answer: Answer) -> None:
        port = answer.ask.port
        if answer.text is None:
            self.counters.error(f"{Path(answer.ask.command[0]).name} {port[0]}")
            self._optics.pop(port, None)
        elif answer.ask.parser == "statistics":
            self._statistics[port] = parse_ethtool_statistics(answer.text)
        else:
            parse = parse_mlxlink if answer.ask.parser == "mlxlink" else parse_ethtool_module
            values = parse(answer.text).items()
            self._optics[port] = {name: self.counters.clean(name, value) for name, value in values}

    def _node_event(self, now: Now) -> NodeEvent:
        return NodeEvent(
            **self._context.stamp(now, self.period_secs, self.name),
            metrics={"ib_port_count": float(len(self._ports))},
            versions={"ib_firmware": self._firmware} if self._firmware else {},
        )


def _port_order(path: Path) -> tuple[str, int, str, int]:
    """``mlx5_10`` after ``mlx5_9``."""
    device = path.parents[1].name
    stem = device.rstrip("0123456789")
    number = device[len(stem) :]
    return stem, int(number or 0), device, int(path.name) if path.name.isdigit() else 0


def _counter_files(port: Path, old: dict[str, _File]) -> dict[str, _File]:
    """The port's counter files by name, those already open kept."""
    found: dict[str, _File] = {}
    for folder in COUNTER_FOLDERS:
        for path in sorted((port / folder).glob("*")):
            if path.name not in found and path.is_file():
                known = old.get(path.name)
                found[path.name] = known if known and known.path == path else _File(path)
    for name, file in old.items():
        if found.get(name) is not file:
            file.close()
    return found


def _first_netdev(device: Path) -> str:
    names = sorted(path.name for path in (device / "device" / "net").glob("*"))
    return names[0] if names else ""


def _asks(ports: list[_PortFiles]) -> list[Ask]:
    """The tools that exist here, for each port: ``mlxlink``, else ``ethtool`` by its netdev."""
    mlxlink, ethtool = which("mlxlink"), which("ethtool")
    asks: list[Ask] = []
    for port in ports:
        if mlxlink and port.device.startswith("mlx"):
            command = (mlxlink, "-d", port.device, "-p", str(port.number), "-m", "-c")
            asks.append(Ask(port.key, "mlxlink", command))
        elif ethtool and port.netdev:
            asks.append(Ask(port.key, "module", (ethtool, "-m", port.netdev)))
        if ethtool and port.netdev and port.link_layer == "Ethernet":
            asks.append(Ask(port.key, "statistics", (ethtool, "-S", port.netdev)))
    return asks
