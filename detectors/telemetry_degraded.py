"""GPU telemetry that went missing while the node goes on reporting."""

import numpy as np
from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.fleet import Floats
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding

# A pause longer than this is an outage, not a pace.
MAX_PAUSE_SECS = 600.0


class TelemetryDegradedConfig(DetectorConfig, frozen=True, tag="telemetry_degraded", kw_only=True):
    """Half of the metrics that a node's GPUs gave before are missing, or whole scrapes are.

    A metric is missing after ``missing_secs`` and three times its own longest pause: costly fields
    are read rarely, exporters lose single fields for a scrape or two, profiling fields stay blank
    until somebody resumes them. ``gap_secs`` without a scrape while other events of the node come:
    six periods of a slow exporter.
    """

    keep_firing_secs: float = 30.0
    missing_ratio: float = 0.5
    missing_secs: float = 60.0
    gap_secs: float = 90.0


class Sightings(Struct):
    """When each metric of one node was last seen (seconds), and its longest pause; NaN: never."""

    last_secs: Floats
    pause_secs: Floats


class TelemetryDegradedState(Struct):
    """Sightings and levels by node. Bound: nodes times metrics."""

    seen: dict[str, Sightings] = field(default_factory=dict)
    nodes: dict[str, LatchState] = field(default_factory=dict)


class TelemetryDegraded:
    """Blindness of the source, not a fault of the GPU; one level a node."""

    def __init__(self, config: TelemetryDegradedConfig) -> None:
        self.config = config
        self.state = TelemetryDegradedState()
        self._latch = Latch(config)

    def scrape(self, node: str, time_ns: int, values: Floats) -> list[Finding]:
        """Note which metrics one node's scrape (``float64[gpus, metrics]``) gave."""
        now_secs = time_ns / NS
        present = np.logical_not(np.isnan(values).all(axis=0))
        known = self.state.seen.get(node)
        if known is None:
            metrics = values.shape[1]
            known = Sightings(np.full(metrics, np.nan), np.zeros(metrics))
            self.state.seen[node] = known
        pause_secs = np.minimum(now_secs - known.last_secs, MAX_PAUSE_SECS)
        longer = present & (pause_secs > known.pause_secs)
        known.pause_secs = np.where(longer, pause_secs, known.pause_secs)
        known.last_secs = np.where(present, now_secs, known.last_secs)
        return []

    def update(self, node: NodeContext, scraped_ns: int, now_ns: int) -> list[Finding]:
        """Look at one node after its scrape of ``scraped_ns``."""
        gap_secs = (node.heard_ns - scraped_ns) / NS  # a node that says nothing is another fault
        conditions = []
        if gap_secs >= self.config.gap_secs:
            conditions = [self._condition(node, scraped_ns, f"no scrape for {gap_secs:.0f} s")]
        elif node.node in self.state.seen:
            conditions = self._missing(node, self.state.seen[node.node], scraped_ns)
        state = self.state.nodes.get(node.node)
        if state is None and not conditions:
            return []
        state = self.state.nodes.setdefault(node.node, LatchState())
        findings = self._latch.update(state, conditions, now_ns)
        if not state.held:
            del self.state.nodes[node.node]
        return findings

    def _missing(self, node: NodeContext, seen: Sightings, scraped_ns: int) -> list[Condition]:
        known = seen.pause_secs > 0.0  # seen twice: its pace is known
        allowed_secs = np.maximum(self.config.missing_secs, 3.0 * seen.pause_secs)
        missing = known & (scraped_ns / NS - seen.last_secs > allowed_secs)
        if not missing.any() or missing.sum() < self.config.missing_ratio * known.sum():
            return []
        what = f"{int(missing.sum())} of {int(known.sum())} metrics are missing"
        onset_ns = int(float(seen.last_secs[missing].max()) * NS)
        return [self._condition(node, onset_ns, what)]

    def _condition(self, node: NodeContext, onset_ns: int, what: str) -> Condition:
        return Condition(
            cause="telemetry_degraded",
            subject=node.subject(),
            onset_unix_ns=onset_ns,
            score=1.0,
            evidence=f"GPU telemetry of {node.node}: {what}",
        )
