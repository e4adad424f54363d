"""The catalogue of causes: severity, audience, meaning, next steps. Read from ``causes.toml``."""

import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from stethoscope.schemas.incidents import Audience, Severity

Plane: TypeAlias = Literal["gpu", "fabric", "node", "job", "self", "bench"]


class Cause(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One cause. ``severity`` is the default; ``actions`` are next steps, in order."""

    name: str = ""
    plane: Plane
    severity: Severity
    audience: Audience
    meaning: str
    actions: list[str]


@lru_cache(maxsize=1)
def cause_catalogue() -> dict[str, Cause]:
    """All causes by name.

    >>> cause_catalogue()["job_hang"].severity
    'critical'
    """
    text = files("stethoscope.schemas").joinpath("causes.toml").read_text(encoding="utf-8")
    entries = msgspec.convert(tomllib.loads(text), dict[str, Cause])
    return {name: msgspec.structs.replace(cause, name=name) for name, cause in entries.items()}
