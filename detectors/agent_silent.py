"""Nodes that stopped reporting while others go on."""

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding, Subject


class AgentSilentConfig(DetectorConfig, frozen=True, tag="agent_silent", kw_only=True):
    """Nothing at all from a node for ``silent_secs``: six heartbeats of 10 s missed.

    ``forget_secs``: after that the node was taken away.
    """

    keep_firing_secs: float = 5.0
    silent_secs: float = 60.0
    forget_secs: float = 86400.0


class AgentSilentState(Struct):
    """Levels of each node, and the end of the last time in which nobody was heard."""

    nodes: dict[str, LatchState] = field(default_factory=dict)
    blind_ns: int = 0


class AgentSilent:
    """Absence of every event of a node, while others go on.

    Where nobody at all was heard, the listener was deaf (a gap in a recording, a cut ingest): that
    says nothing of one node, and each is known again once it speaks.
    """

    def __init__(self, config: AgentSilentConfig) -> None:
        self.config = config
        self.state = AgentSilentState()
        self._latch = Latch(config)

    def update(self, last_ns: dict[str, int], now_ns: int) -> list[Finding]:
        """Look at the newest event time of each ``cluster/node``."""
        findings: list[Finding] = []
        newest_ns = max(last_ns.values(), default=now_ns)
        if now_ns - newest_ns >= self.config.silent_secs * NS:
            self.state.blind_ns = now_ns
        for node, seen_ns in last_ns.items():
            quiet_secs = (now_ns - seen_ns) / NS
            silent = self.config.silent_secs <= quiet_secs < self.config.forget_secs
            silent = silent and seen_ns > self.state.blind_ns
            if not silent and node not in self.state.nodes:
                continue
            state = self.state.nodes.setdefault(node, LatchState())
            conditions = [self._condition(node, seen_ns, quiet_secs)] if silent else []
            findings += self._latch.update(state, conditions, now_ns)
            if not state.held:
                del self.state.nodes[node]
        return findings

    def _condition(self, node: str, seen_ns: int, secs: float) -> Condition:
        cluster, name = node.split("/", 1)
        return Condition(
            cause="agent_silent",
            subject=Subject(cluster=cluster, node=name),
            onset_unix_ns=seen_ns,
            value=secs,
            threshold=self.config.silent_secs,
            unit="seconds",
            score=secs / self.config.silent_secs,
            evidence=f"nothing from {name} for {secs:.0f} s",
        )
