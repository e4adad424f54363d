"""A counter that may not rise, rising."""

from typing import Literal

import numpy as np
from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, to_finding
from stethoscope.detectors.fleet import Batch, Floats, grown
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding

# A counter that was set to zero does not come back to nine tenths within one sample.
JITTER_RATIO = 0.9


class CounterRiseConfig(DetectorConfig, frozen=True, tag="counter_rise", kw_only=True):
    """``metric`` rising by ``min_rise`` or more between two samples is ``cause``, at once."""

    metric: str
    cause: str
    min_rise: float = 1.0
    scope: Literal["gpu", "host", "ib"] = "gpu"


class CounterRiseState(Struct):
    """One float64 a row: the last value; NaN before the first."""

    last: Floats = field(default_factory=lambda: np.empty(0))


class CounterRise:
    """A rise of an error counter is a moment of its own.

    The first value is history, not a rise. A value smaller than before is a reset: what it shows
    since is the rise, never a wrap; but a dip of less than a tenth is jitter and nobody's reset.
    Missing samples change nothing.
    """

    def __init__(self, config: CounterRiseConfig) -> None:
        self.config = config
        self.scope = config.scope
        self.state = CounterRiseState()

    def update(self, batch: Batch) -> list[Finding]:
        """One finding a row that rose."""
        size = int(batch.rows.max(initial=-1)) + 1
        self.state.last = np.asarray(grown(self.state.last, size, np.nan), dtype=np.float64)
        now, last = batch.column(self.config.metric), self.state.last[batch.rows]
        jitter = (now < last) & (now > JITTER_RATIO * last)
        known = ~np.isnan(now) & ~jitter
        rise = np.where(now < last, now, now - last)
        rose = known & ~np.isnan(last) & (rise >= self.config.min_rise)
        self.state.last[batch.rows[known]] = now[known]
        return [self._finding(batch, i, float(rise[i])) for i in np.flatnonzero(rose).tolist()]

    def _finding(self, batch: Batch, i: int, rise: float) -> Finding:
        config, time_ns = self.config, int(batch.times_ns[i])
        condition = Condition(
            cause=config.cause,
            subject=batch.table.subjects[int(batch.rows[i])],
            onset_unix_ns=time_ns,
            value=rise,
            threshold=config.min_rise,
            unit=config.metric,
            score=rise / config.min_rise,
            evidence=f"{config.metric} rose by {rise:g}",
            moment=True,
        )
        return to_finding(config, condition, time_ns)
