"""Fewer GPUs than before, while the node goes on reporting."""

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding


class GpuLostConfig(DetectorConfig, frozen=True, tag="gpu_lost", kw_only=True):
    """A GPU missing from ``for_secs`` of scrapes (at least two at 1 Hz) is lost."""

    for_secs: float = 2.0
    keep_firing_secs: float = 10.0
    forget_secs: float = 86400.0


class GpuLostState(Struct):
    """Levels of each node; what was seen when is the node context's."""

    nodes: dict[str, LatchState] = field(default_factory=dict)


class GpuLost:
    """A GPU that was in the node's scrapes and is not any more: absence is an event.

    Works on the scrape's device list, so it needs no numeric precursor. A node that sends no
    scrape at all is not this (``agent_silent``). A GPU absent for ``forget_secs`` was taken out.
    """

    def __init__(self, config: GpuLostConfig) -> None:
        self.config = config
        self._latch = Latch(config)
        self.state = GpuLostState()

    def update(self, node: NodeContext, scraped_ns: int, now_ns: int) -> list[Finding]:
        """Look at one node after its scrape of ``scraped_ns``."""
        forget_ns = self.config.forget_secs * NS
        conditions = []
        for pci, seen_ns in list(node.devices.items()):
            if now_ns - seen_ns > forget_ns:
                del node.devices[pci]
            elif seen_ns < scraped_ns:
                conditions.append(self._missing(node, pci, seen_ns))
        state = self.state.nodes.setdefault(node.node, LatchState())
        return self._latch.update(state, conditions, now_ns)

    def _missing(self, node: NodeContext, pci: str, seen_ns: int) -> Condition:
        left = sum(1 for seen in node.devices.values() if seen > seen_ns)
        return Condition(
            cause="gpu_lost",
            subject=node.gpus[pci],
            onset_unix_ns=seen_ns,
            value=float(left),
            threshold=float(len(node.devices)),
            unit="gpus",
            score=1.0,
            evidence=f"{left} of {len(node.devices)} GPUs in the scrape, {pci} is missing",
        )
