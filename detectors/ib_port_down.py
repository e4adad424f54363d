"""InfiniBand and RoCE ports that were up and are not."""

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.events import IbEvent, Port
from stethoscope.schemas.findings import Finding, Subject


class IbPortDownConfig(DetectorConfig, frozen=True, tag="ib_port_down", kw_only=True):
    """A port that was active and is not for ``for_secs``: longer than a link takes to retrain."""

    for_secs: float = 5.0
    keep_firing_secs: float = 30.0


class IbPortDownState(Struct):
    """Ports ever active, and levels, by node. Bound: ports of the fleet."""

    active: dict[str, list[str]] = field(default_factory=dict)
    nodes: dict[str, LatchState] = field(default_factory=dict)


class IbPortDown:
    """A port that was never active is not cabled, and nobody's business."""

    def __init__(self, config: IbPortDownConfig) -> None:
        self.config = config
        self.state = IbPortDownState()
        self._latch = Latch(config)

    def update(self, event: IbEvent, node: NodeContext) -> list[Finding]:
        """Look at one node's ports."""
        known = self.state.active.setdefault(node.node, [])
        conditions = []
        for port in event.ports:
            name = f"{port.device}/{port.port}"
            if is_active(port):
                if name not in known:
                    known.append(name)
            elif name in known and port.state:
                conditions.append(_condition(event, node, port))
        state = self.state.nodes.setdefault(node.node, LatchState())
        return self._latch.update(state, conditions, event.time_unix_ns)


def is_active(port: Port) -> bool:
    """Whether the port carries traffic. sysfs writes ``4: ACTIVE``."""
    return port.state.upper().endswith("ACTIVE") and not port.state.upper().endswith("INACTIVE")


def _condition(event: IbEvent, node: NodeContext, port: Port) -> Condition:
    subject = Subject(
        cluster=event.cluster,
        rack=node.rack,
        node=event.node,
        ib_device=port.device,
        ib_port=port.port,
    )
    return Condition(
        cause="ib_port_down",
        subject=subject,
        onset_unix_ns=event.time_unix_ns,
        score=1.0,
        evidence=f"port {port.device}/{port.port} of {event.node} is {port.state}"
        + (f" ({port.phys_state})" if port.phys_state else ""),
    )
