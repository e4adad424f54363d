"""Rows and batches: the columns that vectorised detectors work on.

A ``Table`` gives every GPU (or host, or port) a row for life; a ``Batch`` is at most one sample a
row, as ``values: float64[rows, metrics]`` with NaN where missing. float64, not float32: counters
and bytes beyond 2**24 must not lose their last digits (docs/decisions/003-float64-columns.md).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stethoscope.schemas.findings import Subject
from stethoscope.schemas.metrics import registry

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Columns:
    """The canonical metrics of one scope, as column numbers with their valid ranges."""

    def __init__(self, scope: str) -> None:
        scopes = ("ib", "optics") if scope == "ib" else (scope,)  # a port carries its optics
        metrics = [m for m in registry().values() if m.scope in scopes]
        self.index: dict[str, int] = {m.name: i for i, m in enumerate(metrics)}
        self.low: Floats = np.array([-np.inf if m.min is None else m.min for m in metrics])
        self.high: Floats = np.array([np.inf if m.max is None else m.max for m in metrics])

    def __len__(self) -> int:
        return len(self.index)


class Table:
    """Rows of one scope: key → row → subject. Rows are never reused within a run."""

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.columns = Columns(scope)
        self.subjects: list[Subject] = []
        self.rows: dict[str, int] = {}

    def row(self, key: str, subject: Subject) -> int:
        """The row of ``key``, made on first sight; a known row's subject is refreshed."""
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = len(self.subjects)
            self.subjects.append(subject)
        elif self.subjects[found] != subject:
            self.subjects[found] = subject
        return found


class Batch:
    """At most one sample of each row: ``rows: int64[n]``, ``times_ns: int64[n]``, ``values``."""

    __slots__ = ("rows", "table", "times_ns", "values")

    def __init__(self, table: Table, rows: Ints, times_ns: Ints, values: Floats) -> None:
        self.table = table
        self.rows = rows
        self.times_ns = times_ns
        self.values = values

    def column(self, metric: str) -> Floats:
        """``float64[n]`` of one metric; NaN where missing."""
        return self.values[:, self.table.columns.index[metric]]


def grown(array: npt.NDArray[np.generic], rows: int, fill: float) -> npt.NDArray[np.generic]:
    """``array`` with at least ``rows`` entries, new ones ``fill``; capacity doubles."""
    if len(array) >= rows:
        return array
    bigger = np.full(max(rows, 2 * len(array), 16), fill, dtype=array.dtype)
    bigger[: len(array)] = array
    return bigger


def stack(batches: Sequence[Batch]) -> Batch:
    """Batches of different rows of one table as one."""
    if len(batches) == 1:
        return batches[0]
    return Batch(
        batches[0].table,
        np.concatenate([b.rows for b in batches]),
        np.concatenate([b.times_ns for b in batches]),
        np.concatenate([b.values for b in batches]),
    )
