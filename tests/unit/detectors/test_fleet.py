"""Rows and batches."""

import numpy as np
import pytest

from stethoscope.detectors.fleet import Batch, Columns, Table, grown, stack
from stethoscope.schemas.findings import Subject
from stethoscope.schemas.metrics import registry


@pytest.mark.parametrize("scope", ["gpu", "host", "ib"])
def test_columns_are_the_metrics_of_a_scope_with_their_ranges(scope: str) -> None:
    columns = Columns(scope)
    assert len(columns) == len(columns.index) == len(columns.low) == len(columns.high)
    assert sorted(columns.index.values()) == list(range(len(columns)))
    assert (columns.low <= columns.high).all()
    for name, at in columns.index.items():
        known = registry()[name]
        assert columns.low[at] == (-np.inf if known.min is None else known.min)


def test_a_row_is_for_life_and_its_subject_is_refreshed() -> None:
    table = Table("gpu")
    assert table.row("a", Subject(node="n1")) == 0
    assert table.row("b", Subject(node="n2")) == 1
    assert table.row("a", Subject(node="n1", rack="r")) == 0
    assert [s.rack for s in table.subjects] == ["r", None]


def batch(table: Table, rows: list[int], value: float) -> Batch:
    values = np.full((len(rows), len(table.columns)), np.nan)
    values[:, table.columns.index["power_watts"]] = value
    return Batch(table, np.array(rows), np.full(len(rows), 7, dtype=np.int64), values)


def test_batches_stack() -> None:
    table = Table("gpu")
    both = stack([batch(table, [0, 1], 5.0), batch(table, [2], 6.0)])
    assert both.rows.tolist() == [0, 1, 2]
    assert both.column("power_watts").tolist() == [5.0, 5.0, 6.0]
    assert np.isnan(both.column("sm_active_ratio")).all()
    one = batch(table, [0], 1.0)
    assert stack([one]) is one


def test_arrays_grow_by_doubling_and_keep_what_they_held() -> None:
    small = np.arange(20, dtype=np.float64)
    assert grown(small, 20, np.nan) is small
    larger = grown(small, 21, np.nan)
    assert len(larger) == 40
    assert larger[:20].tolist() == small.tolist()
    assert np.isnan(larger[20:].astype(np.float64)).all()
    assert len(grown(np.empty(0), 1, 0.0)) == 16


def test_counters_beyond_single_precision_keep_their_last_digit() -> None:
    table = Table("gpu")
    exact = float(2**53 - 1)
    assert batch(table, [0], exact).column("power_watts")[0] == exact
