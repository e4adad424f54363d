"""Parsers of what says how a cluster is cabled: text in, links out. Pure."""

import csv
import io
import re
from collections import Counter

from msgspec import Struct, field

from stethoscope.schemas.events import Link, NodeInfo, SwitchLink
from stethoscope.schemas.nodelist import expand

MAX_LINES = 1_000_000


class Fabric(Struct):
    """Cables, racks and nodes, as one source tells them; names as it writes them."""

    links: list[Link] = field(default_factory=list)
    switch_links: list[SwitchLink] = field(default_factory=list)
    racks: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, NodeInfo] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Nothing was told."""
        return not (self.links or self.switch_links or self.racks or self.nodes)


class _Chassis(Struct):
    """A switch or an adapter: its GUID, and its description."""

    kind: str
    guid: str
    description: str


_HEADER = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-f]+)"\s*#\s*"([^"]*)"')
_CABLE = re.compile(
    r'^\[(\d+)\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]+)"\[(\d+)\]'
    r"(?:\[ext \d+\])?(?:\([0-9a-f]+\))?"
)
_MANAGED_SWITCH = re.compile(r"^MF0;([^:;]+)[:;]")
_HOST_AND_DEVICE = re.compile(
    r"^(?P<host>\S+)\s+(?P<device>(?:mlx\d_\S+|HCA-\d+|ibp\S+|hfi1_\d+))$"
)


def switch_name(description: str) -> str:
    """A switch's own name within what it says of itself.

    >>> switch_name("MF0;leaf01:MQM8700/U1"), switch_name("S1")
    ('leaf01', 'S1')
    """
    match = _MANAGED_SWITCH.match(description)
    return match[1] if match else description.strip()


def host_and_device(description: str) -> tuple[str, str]:
    """The node and the adapter within an adapter's description.

    >>> host_and_device("node001 mlx5_0"), host_and_device("H1")
    (('node001', 'mlx5_0'), ('H1', ''))
    """
    match = _HOST_AND_DEVICE.match(description.strip())
    return (match["host"], match["device"]) if match else (description.strip(), "")


def parse_ibnetdiscover(text: str) -> Fabric:
    """Output of ``ibnetdiscover``. Devices that share a description are told apart by GUID."""
    chassis: dict[str, _Chassis] = {}
    cables: list[tuple[str, int, str, int]] = []
    current: str | None = None
    for line in text.splitlines()[:MAX_LINES]:
        if header := _HEADER.match(line):
            key: str = header[2]
            current = key
            chassis[key] = _Chassis(header[1], key.partition("-")[2], header[3])
        elif current is not None and (cable := _CABLE.match(line)):
            cables.append((current, int(cable[1]), cable[2], int(cable[3])))
    names = _switch_names(chassis)
    fabric = Fabric()
    for here, port, there, peer_port in cables:
        if there not in chassis or here not in names:  # seen from its switch's end
            continue
        if there in names:
            _add_switch_link(fabric, names[here], port, names[there], peer_port)
        elif chassis[there].kind == "Ca":
            node, device = _node_and_device(chassis[there])
            fabric.links.append(Link(node, device, peer_port, names[here], port))
    return fabric


def _switch_names(chassis: dict[str, _Chassis]) -> dict[str, str]:
    switches = {key: c for key, c in chassis.items() if c.kind == "Switch"}
    uses = Counter(switch_name(c.description) for c in switches.values())
    return {
        key: name if (name := switch_name(c.description)) and uses[name] == 1 else f"0x{c.guid}"
        for key, c in switches.items()
    }


def _node_and_device(adapter: _Chassis) -> tuple[str, str]:
    node, device = host_and_device(adapter.description)
    # "MT4129 ConnectX7 Mellanox Technologies": an adapter whose node gave it no name
    return (node, device) if node and " " not in node else (f"0x{adapter.guid}", "")


def _add_switch_link(fabric: Fabric, here: str, port: int, there: str, peer_port: int) -> None:
    """Each cable is listed at both of its ends and kept once."""
    if (here, port) < (there, peer_port):
        fabric.switch_links.append(SwitchLink(here, port, there, peer_port))


_LINK_HEADER = re.compile(r"^(?P<kind>CA|Switch|Router):\s+(?:0x[0-9a-f]+\s+)?(?P<name>.*):$")
_LINK_LINE = re.compile(
    r'^\s*(?:0x[0-9a-f]+\s+)?(?:"\s*(?P<name>[^"]*?)\s*"\s+)?\d+\s+(?P<port>\d+)\[[^\]]*\]'
    r"\s+==\(.*\)==>\s+(?:0x[0-9a-f]+\s+)?\d+\s+(?P<peer_port>\d+)\[[^\]]*\]"
    r'\s+"\s*(?P<peer>[^"]*?)\s*"'
)
_ANY_LINK_LINE = re.compile(r'^\s*0x[0-9a-f]+\s+"\s*(?P<name>[^"]*?)\s*"\s+\d+\s+\d+\[')


def parse_iblinkinfo(text: str) -> Fabric:
    """Output of ``iblinkinfo``, with or without ``-l``; ports that are down have no cable.

    With ``-l`` nothing says what is a switch: what has more than two ports is.
    """
    lines = text.splitlines()[:MAX_LINES]
    switches = _switches_of(lines)
    fabric = Fabric()
    current = ""
    for line in lines:
        if header := _LINK_HEADER.match(line):
            current = header["name"]
            continue
        match = _LINK_LINE.match(line)
        here = (match["name"] or current) if match else ""
        if match is None or here not in switches or not match["peer"]:
            continue
        port, peer, peer_port = int(match["port"]), match["peer"], int(match["peer_port"])
        if peer in switches:
            _add_switch_link(fabric, switch_name(here), port, switch_name(peer), peer_port)
        else:
            node, device = host_and_device(peer)
            fabric.links.append(Link(node, device, peer_port, switch_name(here), port))
    return fabric


def _switches_of(lines: list[str]) -> set[str]:
    headers = [header for line in lines if (header := _LINK_HEADER.match(line))]
    if headers:
        return {header["name"] for header in headers if header["kind"] == "Switch"}
    ports = Counter(match["name"] for line in lines if (match := _ANY_LINK_LINE.match(line)))
    return {name for name, count in ports.items() if count > 2}


_PAIR = re.compile(r"(\w+)=(\S+)")


def parse_slurm_topology(text: str) -> Fabric:
    """Slurm's ``topology.conf`` (tree plugin). It knows no ports: they are 0, devices empty.

    Raises:
        ValueError: a node list that cannot be expanded.
    """
    fabric = Fabric()
    joined = re.sub(r"\\\s*\n", " ", text)
    for line in joined.splitlines()[:MAX_LINES]:
        pairs = {k.lower(): v for k, v in _PAIR.findall(line.partition("#")[0])}
        switch = pairs.get("switchname")
        if switch is None:
            continue
        for node in expand(pairs.get("nodes", "")):
            fabric.links.append(Link(node, "", 0, switch))
        for below in expand(pairs.get("switches", "")):
            fabric.switch_links.append(SwitchLink(switch, 0, below))
    return fabric


CSV_COLUMNS = (
    "node",
    "device",
    "port",
    "switch",
    "switch_port",
    "peer",
    "peer_port",
    "rack",
    "ip",
    "bmc",
    "aliases",
    "gpu_count",
)


def parse_csv(text: str) -> Fabric:
    """A table with a header line; columns of ``CSV_COLUMNS`` in any order, others ignored.

    A row with ``node`` and ``switch`` is a cable to a node, one with ``switch`` and ``peer`` a
    cable between switches; ``rack``, ``ip``, ``bmc``, ``aliases`` (by blanks or semicolons) and
    ``gpu_count`` belong to ``node``.

    Raises:
        ValueError: no header line with a column that we know, or not a table.
    """
    try:
        table = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    columns = [name.strip().lower() for name in table[0]] if table else []
    if not set(columns) & set(CSV_COLUMNS):
        msg = f"no header line with columns of: {', '.join(CSV_COLUMNS)}"
        raise ValueError(msg)
    fabric = Fabric()
    for cells in table[1:MAX_LINES]:
        _add_row(fabric, {name: cell.strip() for name, cell in zip(columns, cells, strict=False)})
    return fabric


def _add_row(fabric: Fabric, row: dict[str, str]) -> None:
    node, switch, peer = row.get("node", ""), row.get("switch", ""), row.get("peer", "")
    if node and switch:
        port, switch_port = _number(row.get("port")), _number(row.get("switch_port"))
        fabric.links.append(Link(node, row.get("device", ""), port or 0, switch, switch_port))
    elif switch and peer:
        port, peer_port = _number(row.get("port")), _number(row.get("peer_port"))
        fabric.switch_links.append(SwitchLink(switch, port or 0, peer, peer_port))
    if not node:
        return
    if rack := row.get("rack"):
        fabric.racks[node] = rack
    old = fabric.nodes.get(node, NodeInfo())
    aliases = re.split(r"[;\s]+", row.get("aliases", "").strip())
    fabric.nodes[node] = NodeInfo(
        ip=row.get("ip") or old.ip,
        bmc=row.get("bmc") or old.bmc,
        aliases=list(dict.fromkeys([*old.aliases, *(a for a in aliases if a)])),
        gpu_count=_number(row.get("gpu_count")) or old.gpu_count,
    )


def _number(text: str | None) -> int | None:
    if text and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    return None
