"""The fabric's cables, racks and node names, once per cluster."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import which

from msgspec.structs import replace

from stethoscope.agents import command
from stethoscope.agents.fabric import (
    Fabric,
    parse_csv,
    parse_iblinkinfo,
    parse_ibnetdiscover,
    parse_slurm_topology,
)
from stethoscope.agents.reader import Context, Counters, Now
from stethoscope.schemas.agent_config import Topology
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Event, NodeInfo, TopologyEvent
from stethoscope.schemas.names import NodeNames

PARSERS: dict[str, Callable[[str], Fabric]] = {
    "ibnetdiscover": parse_ibnetdiscover,
    "iblinkinfo": parse_iblinkinfo,
    "slurm": parse_slurm_topology,
    "csv": parse_csv,
}
COMMANDS = ("ibnetdiscover", "iblinkinfo")
SLURM_FILE = "/etc/slurm/topology.conf"
MAX_BYTES = 256 << 20


class TopologyReader:
    """One ``topology`` event a read, with canonical node names.

    ``unmatched_nodes`` counts names, in the last read, that the file of aliases does not know.
    """

    name = "topology"
    hazardous = True

    def __init__(self, context: Context, config: Topology) -> None:
        self.period_secs = config.period_secs
        self.counters = Counters()
        self.unmatched_nodes = 0
        self._context = context
        self._config = config

    def probe(self) -> None:
        """See whether the file or the command is there.

        Raises:
            ReaderUnsupported: neither is.
        """
        path = self._file()
        if path is not None:
            if not path.is_file():
                msg = f"no topology file {path}"
                raise ReaderUnsupported(msg)
        elif self._config.source not in COMMANDS:
            msg = f"no file to read: set topology.file for source {self._config.source}"
            raise ReaderUnsupported(msg)
        elif which(self._config.source) is None:
            msg = f"no command {self._config.source}: install infiniband-diags or set topology.file"
            raise ReaderUnsupported(msg)

    def read(self, now: Now) -> list[Event]:
        """Read the source anew.

        Raises:
            ServiceError: the command fails or takes too long, or its text cannot be read.
            OSError: the file cannot be read.
        """
        try:
            fabric = self._fabric(self._text())
            known = self._known()
        except ValueError as error:
            msg = f"topology ({self._config.source}): {error}"
            raise ServiceError(msg) from error
        return [self._event(now, fabric, known)]

    def close(self) -> None:
        """Nothing is held open."""

    def _fabric(self, text: str) -> Fabric:
        """The text's cables and nodes; a file may turn out to be another source's than told."""
        told = self._config.source
        fabric = PARSERS[told](text)
        if not fabric.is_empty or self._config.file is None:
            return fabric
        for source in (name for name in PARSERS if name != told):
            with suppress(ValueError):  # a CSV without the columns
                if not (other := PARSERS[source](text)).is_empty:
                    return other
        msg = f"no cable, rack or node in {self._config.file}, as {told} or any other source"
        raise ServiceError(msg)

    def _file(self) -> Path | None:
        if self._config.file is not None:
            return Path(self._config.file)
        return Path(SLURM_FILE) if self._config.source == "slurm" else None

    def _text(self) -> str:
        path = self._file()
        if path is not None:
            with path.open("rb") as file:
                return file.read(MAX_BYTES).decode(errors="replace")
        program = which(self._config.source) or self._config.source
        output = command.run([program], self._config.timeout_secs)
        return output[:MAX_BYTES].decode(errors="replace")

    def _known(self) -> Fabric:
        if self._config.aliases_file is None:
            return Fabric()
        return parse_csv(Path(self._config.aliases_file).read_text(encoding="utf-8-sig"))

    def _event(self, now: Now, fabric: Fabric, known: Fabric) -> TopologyEvent:
        infos = {**fabric.nodes, **known.nodes}
        cabled = [link.node for link in fabric.links]
        names = NodeNames(
            infos or cabled,
            {node: _other_names(node, info) for node, info in infos.items()},
        )
        self.unmatched_nodes = sum(names.resolve(node) is None for node in set(cabled))
        racks = {**fabric.racks, **known.racks}
        return TopologyEvent(
            cluster=self._context.cluster,
            time_unix_ns=now.unix_ns,
            links=[replace(link, node=names.canonical(link.node)) for link in fabric.links],
            switch_links=fabric.switch_links,
            racks={names.canonical(node): rack for node, rack in racks.items()},
            nodes={
                names.canonical(node): _with_alias(info, node, names)
                for node, info in infos.items()
            },
        )


def _other_names(node: str, info: NodeInfo) -> list[str]:
    return [*info.aliases, *(name for name in (info.ip,) if name)]


def _with_alias(info: NodeInfo, node: str, names: NodeNames) -> NodeInfo:
    """The name as the source writes it stays known."""
    if node == names.canonical(node) or node in info.aliases:
        return info
    return replace(info, aliases=[*info.aliases, node])
