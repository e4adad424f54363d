"""The time that a log line carries itself.

Known are dmesg's (seconds since boot, ``-T``, ISO), syslog's with and without a year, ISO 8601,
glog's and PyTorch's (month and day only). A stamp without a zone is in the given zone, else in the
machine's own; one without a year is in the latest year that does not put it in the future.
"""

import re
import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from stethoscope.schemas.errors import ConfigError

SEARCH_CHARS = 64
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)"
_MONTH = r"(?P<month_name>[A-Z][a-z]{2})"
_STAMPS = (
    # 2025-01-25T10:34:54,859532+00:00 and 2026-11-29 18:03:07.762982
    re.compile(
        r"(?<!\d)(?P<year>(?:19|20)\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]"
        + _CLOCK
        + r"(?:[.,](?P<fraction>\d{1,9}))?(?:\s?(?P<zone>Z|[+-]\d\d:?\d\d)\b)?"
    ),
    # [Sun Nov 29 16:00:44 2026]
    re.compile(rf"\[[A-Z][a-z]{{2}} {_MONTH} +(?P<day>\d{{1,2}}) {_CLOCK} (?P<year>\d{{4}})\]"),
    # Feb  6 23:59:58 host
    re.compile(rf"^(?:<\d+>)?{_MONTH} +(?P<day>\d{{1,2}}) {_CLOCK}(?:\.(?P<fraction>\d{{1,9}}))?"),
    # E0325 20:57:27.620000 (glog) and [E321 02:07:08.408271257 (PyTorch; the month is not padded)
    re.compile(
        rf"(?:^|[\[\s])[DIWEF](?P<month>1[0-2]|0?[1-9])(?P<day>\d\d) {_CLOCK}"
        r"(?:\.(?P<fraction>\d{1,9}))?"
    ),
)
_QUICK = re.compile(r"\d\d:\d\d:\d\d")
_SINCE_BOOT = re.compile(r"^(?:<\d+>)?\[\s*(\d+)\.(\d{3,9})\]")


class LineTime(NamedTuple):
    """A line's own time. ``exact``: it has a fraction of a second."""

    unix_ns: int
    exact: bool


def load_zone(name: str | None) -> tzinfo | None:
    """The zone of that IANA name; ``None`` stands for the machine's own.

    Raises:
        ConfigError: no such zone on this machine.
    """
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"timezone: {name!r} is not known here; use a name as Europe/Berlin or UTC"
        raise ConfigError(message) from error


def line_time(line: str, now_unix_ns: int, zone: tzinfo | None = UTC) -> LineTime | None:
    """The first stamp near the line's start; ``None`` where it has none.

    >>> line_time("2026-11-29 17:58:07 | INFO | step=3", 0)
    LineTime(unix_ns=1795975087000000000, exact=False)
    """
    head = line[:SEARCH_CHARS]
    if not _QUICK.search(head):
        return None
    for pattern in _STAMPS:
        if (match := pattern.search(head)) and (found := _resolve(match, now_unix_ns, zone)):
            return found
    return None


def secs_since_boot_ns(line: str) -> int | None:
    """Nanoseconds since boot of a ``dmesg`` line such as ``[430954.509105] NVRM: ..``."""
    match = _SINCE_BOOT.match(line)
    return int(match[1]) * 10**9 + _fraction_ns(match[2]) if match else None


def _resolve(match: "re.Match[str]", now_unix_ns: int, zone: tzinfo | None) -> LineTime | None:
    parts = match.groupdict()
    if parts.get("month_name"):
        name = parts["month_name"].lower()
        if name not in _MONTHS:
            return None
        month = _MONTHS.index(name) + 1
    else:
        month = int(parts["month"])
    clock = (int(parts["hour"]), int(parts["minute"]), int(parts["second"]))
    if given := parts.get("zone"):
        zone = _offset(given)
    day, fraction = int(parts["day"]), parts.get("fraction")
    secs = (
        _epoch_secs((int(parts["year"]), month, day, *clock), zone)
        if parts.get("year")
        else _latest_past((month, day, *clock), now_unix_ns, zone)
    )
    if secs is None:
        return None
    return LineTime(secs * 10**9 + _fraction_ns(fraction or ""), bool(fraction))


def _latest_past(
    moment: tuple[int, int, int, int, int], now_unix_ns: int, zone: tzinfo | None
) -> int | None:
    this_year = time.gmtime(now_unix_ns // 10**9).tm_year + 1  # zones may be a day ahead
    for year in range(this_year, this_year - 9, -1):  # nine years hold a 29 February
        secs = _epoch_secs((year, *moment), zone)
        # An hour of grace: the sender's clock or a daylight-saving change may be ahead.
        if secs is not None and secs <= now_unix_ns // 10**9 + 3600:
            return secs
    return None


def _epoch_secs(moment: tuple[int, int, int, int, int, int], zone: tzinfo | None) -> int | None:
    try:
        aware = datetime(*moment, tzinfo=zone or UTC)
        if zone is None:
            return int(time.mktime((*moment, 0, 0, -1)))
        return int(aware.timestamp())
    except (ValueError, OverflowError):
        return None


def _offset(text: str) -> tzinfo:
    if text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    minutes = min(int(digits[:2]), 23) * 60 + min(int(digits[2:]), 59)
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _fraction_ns(digits: str) -> int:
    return int(digits[:9].ljust(9, "0")) if digits else 0
