"""The Xid catalogue: what a code of the NVIDIA kernel driver means, and how loud it is.

Read once from ``xid.toml``. Severity follows from the catalogue's action word by a table there.
"""

import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from stethoscope.schemas.incidents import Severity

Scope: TypeAlias = Literal[
    "app",
    "board",
    "bus",
    "c2c",
    "driver",
    "firmware",
    "gpu",
    "host",
    "memory",
    "nvlink",
    "test",
    "unused",
]


class Xid(Struct, frozen=True, kw_only=True):
    """One code.

    ``action`` is the catalogue's immediate action word; ``user_code``: usually brought about by
    the program, not by the hardware; ``cause`` is the finding's cause.
    """

    code: int
    name: str
    mnemonic: str
    scope: Scope
    action: str
    severity: Severity
    user_code: bool
    cause: str


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    mnemonic: str
    scope: Scope
    action: str
    user_code: bool = False
    cause: str = "gpu_xid"


class _Exception(Struct, frozen=True, forbid_unknown_fields=True):
    severity: Severity
    reason: str


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    severity_by_action: dict[str, Severity]
    exception: dict[int, _Exception]
    xid: dict[int, _Entry]


@lru_cache(maxsize=1)
def xid_catalogue() -> dict[int, Xid]:
    """All known codes. A code that is missing is unknown: treat it as a warning.

    >>> xid_catalogue()[79].severity, xid_catalogue()[31].user_code
    ('critical', True)
    """
    text = files("stethoscope.schemas").joinpath("xid.toml").read_text(encoding="utf-8")
    table = msgspec.convert(tomllib.loads(text), _File, strict=False)
    return {code: _xid(code, entry, table) for code, entry in table.xid.items()}


def _xid(code: int, entry: _Entry, table: _File) -> Xid:
    exception = table.exception.get(code)
    severity = exception.severity if exception else table.severity_by_action[entry.action]
    return Xid(
        code=code,
        name=entry.name,
        mnemonic=entry.mnemonic,
        scope=entry.scope,
        action=entry.action,
        severity=severity,
        user_code=entry.user_code,
        cause=entry.cause,
    )
