import time
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.line_time import LineTime, line_time, load_zone, secs_since_boot_ns
from stethoscope.agents.train_time import settle, times_of
from stethoscope.schemas.errors import ConfigError

NS = 10**9
NOW_NS = 1795975200 * NS  # 2026-11-29 18:00:00 UTC


def utc(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(unix_ns // NS))


@pytest.mark.parametrize(
    ("line", "expected", "fraction_ns"),
    [
        ("[Sun Nov 29 16:00:44 2026] NVRM: x", "2026-11-29 16:00:44", 0),
        (" [2026-11-29 18:03:07.762982] iteration", "2026-11-29 18:03:07", 762_982_000),
        ("[2023-11-07 01:55:23,711] [INFO] step=10", "2023-11-07 01:55:23", 711_000_000),
        ("2026-11-29T16:01:51.701+00:00 iteration", "2026-11-29 16:01:51", 701_000_000),
        ("2026-11-29T16:01:51+02:00 x", "2026-11-29 14:01:51", 0),
        ("2026-11-29T16:01:51-0530 x", "2026-11-29 21:31:51", 0),
        ("kern  :err   : 2025-01-25T10:34:54,859532+00:00 x", "2025-01-25 10:34:54", 859_532_000),
        ("[titan] 2026-02-24 19:46:17,508 - root", "2026-02-24 19:46:17", 508_000_000),
        ("E0325 20:57:27.620000 2606 site-packages", "2026-03-25 20:57:27", 620_000_000),
        ("[rank0]:[E321 02:07:08.408271257 Pro", "2026-03-21 02:07:08", 408_271_257),
        ("[rank0]:[E1206 18:44:12.715298746 Pro", "2025-12-06 18:44:12", 715_298_746),
        ("Feb  6 23:59:58 host kernel: x", "2026-02-06 23:59:58", 0),
        ("Feb 06 23:59:58 host kernel: x", "2026-02-06 23:59:58", 0),
        ("<6>Dec 31 23:59:58 host kernel: x", "2025-12-31 23:59:58", 0),
        ("Feb 29 12:00:00 host kernel: x", "2024-02-29 12:00:00", 0),
    ],
)
def test_stamps(line: str, expected: str, fraction_ns: int) -> None:
    found = line_time(line, NOW_NS, UTC)
    assert found is not None
    assert (utc(found.unix_ns), found.unix_ns % NS) == (expected, fraction_ns)
    assert found.exact == (fraction_ns > 0)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "iteration 5/10 | 12:34:56",
        "2026-13-45 99:99:99 x",
        "Xyz 12 10:00:00 host",
        "Feb 31 10:00:00 host",
        "x" * 200 + "2026-11-29 18:03:07",
    ],
)
def test_no_stamp(line: str) -> None:
    assert line_time(line, NOW_NS, UTC) is None


def test_new_year_does_not_jump() -> None:
    just_after_ns = 1798761602 * NS  # 2027-01-01 00:00:02 UTC
    before = line_time("Dec 31 23:59:58 host kernel: x", just_after_ns, UTC)
    after = line_time("Jan  1 00:00:01 host kernel: x", just_after_ns, UTC)
    assert before is not None
    assert after is not None
    assert after.unix_ns - before.unix_ns == 3 * NS
    # A sender slightly ahead, on New Year's Eve, is not a year behind.
    ahead = line_time("Jan  1 00:00:01 host kernel: x", just_after_ns - 10 * NS, UTC)
    assert ahead == after


def test_a_stamp_without_a_zone_is_in_the_configured_one() -> None:
    found = line_time("2026-07-01 12:00:00.5 x", NOW_NS, load_zone("Asia/Shanghai"))
    assert found is not None
    assert utc(found.unix_ns) == "2026-07-01 04:00:00"


def test_an_unknown_zone_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigError, match="Middle/Earth"):
        load_zone("Middle/Earth")


def test_seconds_since_boot() -> None:
    assert secs_since_boot_ns("[430954.509105] NVRM: x") == 430954_509_105_000
    assert secs_since_boot_ns("[ 1843.308145] x") == 1843_308_145_000
    assert secs_since_boot_ns("NVRM: [1.5] x") is None


def test_a_live_line_from_another_zone_is_put_right() -> None:
    read_ns = NOW_NS
    assert settle(LineTime(read_ns - 8 * 3600 * NS - NS, True), read_ns, live=True) == read_ns - NS
    assert settle(LineTime(read_ns - NS, True), read_ns, live=True) == read_ns - NS
    # A date that the line speaks of is no stamp of its own.
    assert settle(LineTime(read_ns - 5_000_123 * NS, True), read_ns, live=True) == read_ns
    # Whole seconds say less than the moment of reading, unless that was long after.
    assert settle(LineTime(read_ns - 3 * NS, False), read_ns, live=True) == read_ns
    assert settle(LineTime(read_ns - 300 * NS, False), read_ns, live=True) == read_ns - 300 * NS


def test_lines_without_a_stamp_are_spread_over_the_read() -> None:
    found = times_of(
        ["a", "b", "c", "d"],
        UTC,
        now_unix_ns=NOW_NS,
        modified_unix_ns=NOW_NS,
        last_read_unix_ns=NOW_NS - NS,
    )
    assert [at - NOW_NS for at in found] == [-750_000_000, -500_000_000, -250_000_000, 0]


def test_lines_of_an_old_file_take_their_neighbours_stamp() -> None:
    found = times_of(
        ["banner", "[2026-11-29 17:00:00.5] iteration 1", "note", "[2026-11-29 17:00:02.5] it"],
        UTC,
        now_unix_ns=NOW_NS,
        modified_unix_ns=NOW_NS - NS,
        last_read_unix_ns=None,
    )
    hour_before = NOW_NS - 3600 * NS
    assert [at - hour_before for at in found] == [NS // 2, NS // 2, NS // 2, 5 * NS // 2]
    plain = {"now_unix_ns": NOW_NS, "modified_unix_ns": NOW_NS - NS}
    assert times_of(["x", "y"], UTC, last_read_unix_ns=None, **plain) == [NOW_NS - NS] * 2


@given(st.text(max_size=100), st.integers(0, 2 * 10**18))
def test_any_text_has_a_time_or_none(line: str, now_ns: int) -> None:
    found = line_time(line, now_ns, UTC)
    assert found is None or isinstance(found.unix_ns, int)


@given(st.text("0123456789:-.,T [ENovDec", max_size=60))
def test_text_that_looks_like_stamps_has_a_time_or_none(line: str) -> None:
    found = line_time(line, NOW_NS, UTC)
    assert found is None or isinstance(found.unix_ns, int)
