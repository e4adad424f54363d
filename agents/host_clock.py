"""Whether the kernel's clock is synchronised, by ``adjtimex`` read only."""

import ctypes
from collections.abc import Callable
from functools import lru_cache

from stethoscope.schemas.events import Value

_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """``struct timex`` of Linux (sys/timex.h); ``modes`` 0 changes nothing."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_sec", ctypes.c_long),
        ("time_usec", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("rest", ctypes.c_long * 16),
    )


@lru_cache(maxsize=1)
def _adjtimex() -> "Callable[..., int] | None":
    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), "adjtimex", None)
    return found


def clock_state() -> dict[str, Value]:
    """``clock_synced`` (0 or 1) and ``clock_offset_secs``; empty where the call is not there."""
    adjtimex = _adjtimex()
    if adjtimex is None:
        return {}
    timex = _Timex()
    state: int = adjtimex(ctypes.byref(timex))
    if state < 0:
        return {}
    per_sec = 1e9 if timex.status & _STA_NANO else 1e6
    synced = state != _TIME_ERROR and not timex.status & _STA_UNSYNC
    return {"clock_synced": float(synced), "clock_offset_secs": timex.offset / per_sec}
