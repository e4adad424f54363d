"""How closely to look at this node now: calm, busy or alert."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from stethoscope.agents.clock import Now
from stethoscope.schemas.agent_config import Control, Loop
from stethoscope.schemas.control import ControlMessage
from stethoscope.schemas.events import Event, GpuEvent, LogEvent, NodeEvent

Level: TypeAlias = Literal["calm", "busy", "alert"]
# Readers of samples; the others follow logs and schedulers, whose lines must not wait.
ADAPTIVE = frozenset({"gpu_nvml", "prometheus", "ib_sysfs", "host"})
# A GPU is in use above this; idle ones report 0, and a stray query stays below (own readings).
BUSY_UTILIZATION_RATIO = 0.05
# A pause between two steps or two epochs does not make a node calm.
BUSY_HOLD_SECS = 120.0
_NS = 1_000_000_000


class Activity:
    """What was seen lately, on the monotonic clock; forgets by itself.

    A node is *busy* while a GPU works, a process holds one or a training log moves; *alert* for
    ``alert_hold_secs`` after a kernel-log event, a lost GPU or a reader that began to fail, and
    while a control message names it.
    """

    def __init__(self, node: str, loop: Loop, control: Control, now: Now) -> None:
        """At first the node counts as busy, until it was looked at for a while."""
        self._node = node
        self._loop = loop
        self._control = control
        self._busy_until_ns = now.monotonic_ns + round(BUSY_HOLD_SECS * _NS)
        self._alert_until_ns = 0
        self._wish_until_ns = 0
        self._wish_period_secs = loop.alert_period_secs
        self._gpus = 0

    def observe(self, events: Iterable[Event], now: Now) -> None:
        """Learn from what the readers returned."""
        for event in events:
            if _is_work(event):
                self._busy_until_ns = now.monotonic_ns + round(BUSY_HOLD_SECS * _NS)
            if isinstance(event, LogEvent) and event.source == "kernel":
                self.trouble(now)
            elif isinstance(event, GpuEvent):
                if len(event.devices) < self._gpus:
                    self.trouble(now)
                self._gpus = len(event.devices)

    def trouble(self, now: Now) -> None:
        """Something is wrong here: look closely for a while."""
        self._alert_until_ns = now.monotonic_ns + round(self._loop.alert_hold_secs * _NS)

    def wish(self, message: ControlMessage, now: Now) -> bool:
        """Grant a control message within the configured bounds; whether it was for this node."""
        if message.node != self._node:
            return False
        left_ns = message.until_unix_ns - now.unix_ns
        hold_ns = min(left_ns, round(self._control.max_hold_secs * _NS))
        self._wish_until_ns = now.monotonic_ns + hold_ns
        self._wish_period_secs = max(message.period_secs, self._control.min_period_secs)
        return True

    def level(self, now: Now) -> Level:
        """How closely to look."""
        if now.monotonic_ns < max(self._alert_until_ns, self._wish_until_ns):
            return "alert"
        return "busy" if now.monotonic_ns < self._busy_until_ns else "calm"

    def period_secs(self, reader: str, own_secs: float, now: Now) -> float:
        """The time between two reads of the reader whose configured period is ``own_secs``."""
        if not self._loop.adaptive or reader not in ADAPTIVE:
            return own_secs
        level = self.level(now)
        if level == "calm":
            return max(own_secs, self._loop.calm_period_secs)
        if level == "busy":
            return own_secs
        wished = now.monotonic_ns < self._wish_until_ns
        period = self._loop.alert_period_secs
        return min(own_secs, period, self._wish_period_secs if wished else period)


def _is_work(event: Event) -> bool:
    if isinstance(event, GpuEvent):
        values = event.metrics.get("gpu_utilization_ratio", [])
        return any(v is not None and v > BUSY_UTILIZATION_RATIO for v in values)
    if isinstance(event, NodeEvent):
        return any(process.alive for process in event.processes)
    return isinstance(event, LogEvent) and event.source in ("train", "nccl")
