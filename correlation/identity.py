"""Node names as jobs, topology and telemetry spell them, brought to one spelling."""

from msgspec import Struct, field, structs

from stethoscope.schemas.events import Event, JobEvent, TopologyEvent
from stethoscope.schemas.names import NodeNames, folded


class NamesState(Struct):
    """Names that the jobs topic gave, and aliases. Bound: nodes of the cluster."""

    nodes: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, list[str]] = field(default_factory=dict)


class Names:
    """Learns nodes from ``topology`` and ``job`` events only: every worker reads those whole.

    So every stage of every worker resolves a name alike. A name that fits no node is its own.
    """

    def __init__(self) -> None:
        self.state = NamesState()
        self._resolver: NodeNames | None = None

    def learn(self, event: Event) -> None:
        """Take over the names in one event."""
        if isinstance(event, TopologyEvent):
            for name, info in event.nodes.items():
                self._add(name)
                if info.aliases and self.state.aliases.get(name) != info.aliases:
                    self.state.aliases[name] = info.aliases
                    self._resolver = None
        elif isinstance(event, JobEvent):
            for name in event.nodes or []:
                self._add(name)

    def node(self, name: str) -> str:
        """The canonical name."""
        if self._resolver is None:
            self._resolver = NodeNames(self.state.nodes, self.state.aliases)
        return self._resolver.canonical(name)

    def job(self, event: JobEvent) -> JobEvent:
        """The event with canonical node names."""
        nodes = [self.node(n) for n in event.nodes] if event.nodes is not None else None
        return structs.replace(
            event,
            nodes=nodes,
            gpus={self.node(n): devices for n, devices in event.gpus.items()},
            ranks={self.node(n): ranks for n, ranks in event.ranks.items()},
        )

    def load(self, state: NamesState) -> None:
        """Take over a snapshot."""
        self.state, self._resolver = state, None

    def _add(self, name: str) -> None:
        if folded(name) and name not in self.state.nodes:
            self.state.nodes[name] = len(self.state.nodes)
            self._resolver = None
