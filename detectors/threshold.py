"""Any metric beyond a limit for a while."""

from typing import Literal

import numpy as np
from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, cleared, to_finding
from stethoscope.detectors.fleet import Batch, Floats, grown
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding


class ThresholdConfig(DetectorConfig, frozen=True, tag="threshold", kw_only=True):
    """``metric`` beyond ``limit`` for ``for_secs`` is ``cause``; ends when past ``clear_limit``.

    ``direction`` says which side is bad. The gap between the limits is the hysteresis.
    """

    metric: str
    cause: str
    limit: float
    clear_limit: float | None = None
    direction: Literal["above", "below"] = "above"
    scope: Literal["gpu", "host", "ib"] = "gpu"
    note: str = ""


class ThresholdState(Struct):
    """Four float64 a row: since when bad, since when good, onset of what was said, said or not.

    Times are nanoseconds as float64 offsets from ``epoch_ns`` so that they stay exact.
    """

    bad_since: Floats = field(default_factory=lambda: np.empty(0))
    good_since: Floats = field(default_factory=lambda: np.empty(0))
    said: dict[int, Finding] = field(default_factory=dict)
    epoch_ns: int = 0


class Threshold:
    """A metric beyond its limit for ``for_secs``; clears beyond ``clear_limit`` (hysteresis).

    A missing sample changes nothing. Cost: a dozen array operations a batch.
    """

    def __init__(self, config: ThresholdConfig) -> None:
        self.config = config
        self.scope = config.scope
        self.state = ThresholdState()
        self._sign = 1.0 if config.direction == "above" else -1.0
        self._limit = config.limit * self._sign
        clear = config.limit if config.clear_limit is None else config.clear_limit
        self._clear = clear * self._sign

    def update(self, batch: Batch) -> list[Finding]:
        """Findings that begin or end with this batch."""
        state = self.state
        values = batch.column(self.config.metric) * self._sign
        if not len(values) or (not state.said and not (values > self._limit).any()):
            calm = batch.rows[values <= self._clear]
            state.bad_since[calm[calm < len(state.bad_since)]] = np.nan
            return []
        if not state.epoch_ns:
            state.epoch_ns = int(batch.times_ns[0])
        size = int(batch.rows.max()) + 1
        state.bad_since = np.asarray(grown(state.bad_since, size, np.nan), dtype=np.float64)
        state.good_since = np.asarray(grown(state.good_since, size, np.nan), dtype=np.float64)
        return self._step(batch, values)

    def _step(self, batch: Batch, values: Floats) -> list[Finding]:
        state, rows = self.state, batch.rows
        times = (batch.times_ns - state.epoch_ns).astype(np.float64)
        over, under = values > self._limit, values <= self._clear
        since = state.bad_since[rows]
        since = np.where(over & np.isnan(since), times, since)
        begins = over & (times - since >= self.config.for_secs * NS)
        good = np.where(under | np.isnan(values), state.good_since[rows], np.nan)
        good = np.where(under & np.isnan(good), times, good)
        ends = under & (times - good >= self.config.keep_firing_secs * NS)
        said = np.array([int(row) in state.said for row in rows], dtype=bool)
        state.bad_since[rows] = np.where(under & ~said, np.nan, since)
        state.good_since[rows] = good
        findings = [self._begin(batch, i) for i in np.flatnonzero(begins & ~said).tolist()]
        findings += [self._end(batch, i) for i in np.flatnonzero(ends & said).tolist()]
        return findings

    def _begin(self, batch: Batch, i: int) -> Finding:
        row, config = int(batch.rows[i]), self.config
        onset_ns = self.state.epoch_ns + int(self.state.bad_since[row])
        value = float(batch.column(config.metric)[i])
        condition = Condition(
            cause=config.cause,
            subject=batch.table.subjects[row],
            onset_unix_ns=onset_ns,
            value=value,
            threshold=config.limit,
            unit=config.metric,
            score=value / config.limit if config.limit > 0 and self._sign > 0 else 1.0,
            evidence=f"{config.metric} {value:.6g} {config.direction} {config.limit:g}"
            f" for {config.for_secs:g} s",
        )
        finding = to_finding(config, condition, int(batch.times_ns[i]))
        self.state.said[row] = finding
        return finding

    def _end(self, batch: Batch, i: int) -> Finding:
        row = int(batch.rows[i])
        said = self.state.said.pop(row)
        ended_ns = self.state.epoch_ns + int(self.state.good_since[row])
        self.state.bad_since[row] = np.nan
        return cleared(said, int(batch.times_ns[i]), ended_ns)
