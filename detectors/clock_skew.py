"""Nodes whose clock is ahead of everybody's."""

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding


class ClockSkewConfig(DetectorConfig, frozen=True, tag="clock_skew", kw_only=True):
    """Events dated more than ``timing.max_skew_secs`` ahead, second after second.

    A single one is a glitch of its source. Its events get the time that has been reached, so
    nothing is lost; what they say of *when* is not to be trusted.
    """

    for_secs: float = 5.0
    keep_firing_secs: float = 60.0


class ClockSkewState(Struct):
    """Levels of each node that is ahead."""

    nodes: dict[str, LatchState] = field(default_factory=dict)


class ClockSkew:
    """One level a node whose events had to be dated back."""

    def __init__(self, config: ClockSkewConfig) -> None:
        self.config = config
        self.state = ClockSkewState()
        self._latch = Latch(config)

    def update(self, node: NodeContext, ahead_secs: float, now_ns: int) -> list[Finding]:
        """Look at one node's second; ``ahead_secs`` is 0 where nothing had to be dated back."""
        if not ahead_secs and node.node not in self.state.nodes:
            return []
        conditions = []
        if ahead_secs:
            conditions = [
                Condition(
                    cause="clock_skew",
                    subject=node.subject(),
                    onset_unix_ns=now_ns,
                    value=ahead_secs,
                    unit="seconds ahead",
                    score=1.0,
                    evidence=f"events of {node.node} are dated {ahead_secs:.0f} s ahead",
                )
            ]
        state = self.state.nodes.setdefault(node.node, LatchState())
        findings = self._latch.update(state, conditions, now_ns)
        if not state.held:
            del self.state.nodes[node.node]
        return findings
