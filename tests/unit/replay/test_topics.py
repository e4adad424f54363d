"""Addresses of topics."""

import pytest

from stethoscope.replay.topics import Address, parse_address
from stethoscope.schemas.errors import InputError


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("kafka://k1:9092/a", Address(["k1:9092"], ["a"])),
        ("kafka://k1:9092,k2:9093/a,b", Address(["k1:9092", "k2:9093"], ["a", "b"])),
        ("kafka://[::1]:9092/a", Address(["[::1]:9092"], ["a"])),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize("url", ["kafka://k1:9092", "kafka://k1:9092/"])
def test_without_topics_those_of_events_are_read(url: str) -> None:
    assert parse_address(url).topics == ["steth.telemetry.v1", "steth.logs.v1", "steth.jobs.v1"]


@pytest.mark.parametrize("url", ["kafka://", "kafka:///a", "kafka://k1/a", "kafka://k1:x/a"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InputError, match="no broker; write kafka://HOST:PORT"):
        parse_address(url)
