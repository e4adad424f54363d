"""The metric registry: canonical names, ranges and each source's spelling.

Read once from ``metrics.toml``. ``clean`` is the edge's filter: whatever a source cannot mean
(DCGM's blank sentinels, non-finite numbers, values out of range) becomes ``None``.
"""

import math
import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import msgspec
from msgspec import Struct, field

# DCGM's "no value" families (dcgm_fields.h): INT32 0x7FFFFFF0.., INT64 0x7FFFFFFFFFFFFFF0.., and
# FP64 2^47 with +1 not found, +2 not supported, +3 no permission.
_BLANK_INT32 = range(0x7FFFFFF0, 0x80000000)
_BLANK_INT64 = 0x7FFFFFFFFFFFFFF0
_BLANK_FP64 = range(2**47, 2**47 + 4)


class Metric(Struct, frozen=True, omit_defaults=True):
    """One canonical metric. ``scope``: what carries it; ``bad``: the direction that hurts."""

    scope: Literal["gpu", "ib", "optics", "host"]
    unit: str
    kind: Literal["gauge", "counter", "bitmask", "state"]
    bad: Literal["up", "down", "both", "none"]
    name: str = ""
    min: float | None = None
    max: float | None = None
    nvml: str = ""
    nvml_unit: str = ""
    dcgm: list[str] = field(default_factory=list)
    dcgm_ids: list[int] = field(default_factory=list)
    dcgm_unit: str = ""
    node_exporter: str = ""
    npu_exporter: str = ""


@lru_cache(maxsize=1)
def registry() -> dict[str, Metric]:
    """All metrics by canonical name."""
    text = files("stethoscope.schemas").joinpath("metrics.toml").read_text(encoding="utf-8")
    entries = msgspec.convert(tomllib.loads(text), dict[str, Metric])
    return {name: msgspec.structs.replace(m, name=name) for name, m in entries.items()}


def is_blank(value: float) -> bool:
    """Whether the number is one of DCGM's sentinels for "no value".

    >>> is_blank(140737488355328.0), is_blank(9223372036854775794), is_blank(97)
    (True, True, False)
    """
    return value in _BLANK_INT32 or value in _BLANK_FP64 or value >= _BLANK_INT64


def clean(metric: Metric, value: float | None) -> float | None:
    """The value, or ``None`` where it is blank, not finite or out of the metric's range.

    >>> clean(registry()["gpu_utilization_ratio"], 42949672.95) is None
    True
    """
    if value is None or not math.isfinite(value):
        return None
    if metric.min is not None and value < metric.min:
        return None
    if metric.max is not None:
        return value if value <= metric.max else None
    return None if is_blank(value) else value
