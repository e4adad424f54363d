"""GPUs that the hardware slows down: heat and power brake."""

import numpy as np
from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, Latch, LatchState
from stethoscope.detectors.fleet import Batch
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding

# nvml.h, nvmlClocksEventReason*: 0x08 hardware slowdown, 0x20 software thermal, 0x40 hardware
# thermal, 0x80 hardware power brake. 0x1 idle, 0x2 application clocks, 0x4 software power cap and
# 0x100 display say nothing bad of a GPU under load.
_BITS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_MASK = sum(_BITS)


class GpuThrottledConfig(DetectorConfig, frozen=True, tag="gpu_throttled", kw_only=True):
    """One of the four bad reasons set in every scrape for ``for_secs``."""

    for_secs: float = 30.0
    keep_firing_secs: float = 60.0


class GpuThrottledState(Struct):
    """Levels of each row that is or was throttled lately."""

    rows: dict[int, LatchState] = field(default_factory=dict)


class GpuThrottled:
    """Thermal or power-brake bits of ``throttle_reasons_bitmask``; the power cap is healthy."""

    scope = "gpu"

    def __init__(self, config: GpuThrottledConfig) -> None:
        self.config = config
        self.state = GpuThrottledState()
        self._latch = Latch(config)

    def update(self, batch: Batch) -> list[Finding]:
        """Findings that begin or end with this batch."""
        reasons = batch.column("throttle_reasons_bitmask")
        bad = np.nan_to_num(reasons).astype(np.int64) & _MASK
        if not self.state.rows and not bad.any():
            return []
        findings: list[Finding] = []
        for i, row in enumerate(batch.rows.tolist()):
            if np.isnan(reasons[i]) or not (bad[i] or row in self.state.rows):
                continue
            state = self.state.rows.setdefault(row, LatchState())
            conditions = [self._condition(batch, i, int(bad[i]))] if bad[i] else []
            findings += self._latch.update(state, conditions, int(batch.times_ns[i]))
            if not state.held:
                del self.state.rows[row]
        return findings

    def _condition(self, batch: Batch, i: int, bits: int) -> Condition:
        names = ", ".join(name for bit, name in _BITS.items() if bits & bit)
        return Condition(
            cause="gpu_throttled",
            subject=batch.table.subjects[int(batch.rows[i])],
            onset_unix_ns=int(batch.times_ns[i]),
            value=float(bits),
            unit="bitmask",
            score=1.0,
            evidence=f"clocks held down: {names}",
        )
