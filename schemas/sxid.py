"""The SXid catalogue: what an error code of an NVSwitch means. Read once from ``sxid.toml``."""

import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from stethoscope.schemas.incidents import Severity

SxidClass: TypeAlias = Literal[
    "nonfatal", "fatal", "fatal_partition", "fatal_fabric", "mixed", "unreported"
]


class Sxid(Struct, frozen=True, kw_only=True):
    """One code. ``fatal_class`` as written in ``sxid.toml``; ``action`` is one word."""

    code: int
    name: str
    mnemonic: str
    fatal_class: SxidClass
    action: str
    severity: Severity


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    mnemonic: str
    fatal_class: SxidClass = field(name="class")
    action: str


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    severity_by_class: dict[SxidClass, Severity]
    sxid: dict[int, _Entry]


@lru_cache(maxsize=1)
def sxid_catalogue() -> dict[int, Sxid]:
    """All known codes. The kernel line's own word ("Fatal") goes before this severity.

    >>> sxid_catalogue()[12028].name
    'nport egress privrsperr'
    """
    text = files("stethoscope.schemas").joinpath("sxid.toml").read_text(encoding="utf-8")
    table = msgspec.convert(tomllib.loads(text), _File, strict=False)
    return {
        code: Sxid(
            code=code,
            name=entry.mnemonic.removeprefix("HW_").lower().replace("_", " "),
            mnemonic=entry.mnemonic,
            fatal_class=entry.fatal_class,
            action=entry.action,
            severity=table.severity_by_class[entry.fatal_class],
        )
        for code, entry in table.sxid.items()
    }
