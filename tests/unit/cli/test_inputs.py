"""Times on the command line."""

import pytest

from stethoscope.cli.inputs import parse_time
from stethoscope.schemas.errors import UsageError


@pytest.mark.parametrize(
    ("text", "unix_ns"),
    [
        ("1795968070", 1795968070_000000000),
        ("1795968070.5", 1795968070_500000000),
        ("1795968070800233001", 1795968070800233001),
        ("2026-11-29T16:01:10Z", 1795968070_000000000),
        ("2026-11-29T17:01:10.25+01:00", 1795968070_250000000),
        ("2026-11-29 16:01:10", 1795968070_000000000),
        ("2026-11-29", 1795910400_000000000),
    ],
)
def test_forms_of_a_time(text: str, unix_ns: int) -> None:
    assert parse_time(text) == unix_ns


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "2026-13-01", "1e400"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_time(text)
