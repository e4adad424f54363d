"""Log lines that people reported in public, where the data folder beside the checkout has them."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FILE = Path(__file__).parents[4] / "shared/data/log_lines.jsonl"


class SharedLine(NamedTuple):
    """One line, its kind and what it means."""

    kind: str
    line: str
    meaning: str


def shared_lines(*kinds: str) -> list[Any]:
    """The lines of these kinds as parameters; one skipped parameter where the file is absent."""
    if not FILE.exists():
        missing = SharedLine("", "", "")
        return [pytest.param(missing, marks=pytest.mark.skip(reason="no log_lines.jsonl here"))]
    rows = [json.loads(row) for row in FILE.read_text(encoding="utf-8").splitlines()]
    return [
        pytest.param(SharedLine(r["kind"], r["line"], r["meaning"]), id=f"{r['kind']}-{i}")
        for i, r in enumerate(rows)
        if r["kind"] in kinds
    ]
