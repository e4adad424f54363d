"""GPU telemetry that went missing while the node goes on reporting."""

import numpy as np
from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.fleet import Floats
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding


class TelemetryDegradedConfig(DetectorConfig, frozen=True, tag="telemetry_degraded", kw_only=True):
    """Half of the metrics that a node's GPUs gave before are missing, or whole scrapes are.

    ``missing_ratio`` for ``for_secs``: exporters lose single fields for a scrape or two, profiling
    fields stay blank until somebody resumes them. ``gap_secs`` without a scrape while other events
    of the node come: six periods of a slow exporter.
    """

    for_secs: float = 60.0
    keep_firing_secs: float = 30.0
    missing_ratio: float = 0.5
    gap_secs: float = 90.0


class TelemetryDegradedState(Struct):
    """Metrics ever seen and missing now, by node; levels by node. Bound: nodes."""

    seen: dict[str, Floats] = field(default_factory=dict)
    missing: dict[str, tuple[int, int]] = field(default_factory=dict)
    nodes: dict[str, LatchState] = field(default_factory=dict)


class TelemetryDegraded:
    """Blindness of the source, not a fault of the GPU; one level a node."""

    def __init__(self, config: TelemetryDegradedConfig) -> None:
        self.config = config
        self.state = TelemetryDegradedState()
        self._latch = Latch(config)

    def scrape(self, node: str, values: Floats) -> list[Finding]:
        """Note what one node's scrape (``float64[gpus, metrics]``) lacks of what it gave before."""
        present: Floats = np.where(np.isnan(values).all(axis=0), 0.0, 1.0)
        before = self.state.seen.get(node)
        seen: Floats = present if before is None else np.maximum(before, present)
        self.state.seen[node] = seen
        known = int(seen.sum())
        self.state.missing[node] = (known - int((seen * present).sum()), known)
        return []

    def update(self, node: NodeContext, scraped_ns: int, now_ns: int) -> list[Finding]:
        """Look at one node after its scrape of ``scraped_ns``."""
        missing, known = self.state.missing.get(node.node, (0, 0))
        gap_secs = (node.heard_ns - scraped_ns) / NS  # a node that says nothing is another fault
        conditions = []
        if gap_secs >= self.config.gap_secs:
            conditions.append(self._condition(node, scraped_ns, f"no scrape for {gap_secs:.0f} s"))
        elif known and missing / known >= self.config.missing_ratio:
            what = f"{missing} of {known} metrics are missing"
            conditions.append(self._condition(node, now_ns, what))
        state = self.state.nodes.get(node.node)
        if state is None and not conditions:
            return []
        state = self.state.nodes.setdefault(node.node, LatchState())
        findings = self._latch.update(state, conditions, now_ns)
        if not state.held:
            del self.state.nodes[node.node]
        return findings

    def _condition(self, node: NodeContext, onset_ns: int, what: str) -> Condition:
        return Condition(
            cause="telemetry_degraded",
            subject=node.subject(),
            onset_unix_ns=onset_ns,
            score=1.0,
            evidence=f"GPU telemetry of {node.node}: {what}",
        )
