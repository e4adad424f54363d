"""A short, repeatable piece of the fuzz run, so that it does not rot."""

from itertools import islice

import pytest

from .fuzz_parsers import Failure, rounds, try_one
from .targets import TARGETS, FuzzTarget

ROUNDS = 300


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_parser_raises_what_it_should_not(target: FuzzTarget) -> None:
    failures = [f for f in islice(rounds(7, (target,)), ROUNDS) if f is not None]
    assert not [f for f in failures if not f.what.startswith("took ")]


def test_the_fuzzer_notices() -> None:
    target = FuzzTarget("int", int, (b"1",))
    assert isinstance(try_one(target, b"x"), Failure)
    assert try_one(target._replace(may_raise=(ValueError,)), b"x") is None
