"""Feed every parser mutated input for a while; print what it should not have raised.

Usage: ``python tests/fuzz/fuzz_parsers.py [--minutes 10] [--seed 1] [--only NAME..]``. Exit code 1
when something was found; the input is printed as a Python literal.
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).parent))
    from targets import TARGETS, FuzzTarget
else:
    from .targets import TARGETS, FuzzTarget

MAX_BYTES = 20_000
MAX_MEMORY_BYTES = 4 << 30
SLOW_SECS = 5.0
TOKENS = (
    *(b"\n", b"\r", b"\0", b"\t", b" ", b",", b":", b"=", b"[", b"]", b"(", b")", b"{", b"}", b'"'),
    *(b"-", b"--", b"\x1b[31m", b"\xff\xfe", b"\xe2\x80\xa8", b"\xd9\xa3", "\u00b2".encode()),
    *(b"-1", b"0", b"1e999", b"nan", b"NaN", b"inf", b"-inf", b"N/A", b"null", b"0x7fffffff"),
    *(b"9223372036854775808", b"18446744073709551616", b"9" * 400, b"0000-00-00T99:99:99Z"),
    *(b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"[0-99999999999]"),
)


class Failure(NamedTuple):
    """What a parser raised, or how long it took, on an input."""

    target: str
    data: bytes
    what: str


def mutated(rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """One of the seeds, changed in one to eight places."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 8)):
        rng.choice(MUTATIONS)(rng, data, seeds)
    return bytes(data[:MAX_BYTES])


def _flip(rng: random.Random, data: bytearray, _: tuple[bytes, ...]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _insert(rng: random.Random, data: bytearray, _: tuple[bytes, ...]) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.choice(TOKENS)


def _replace(rng: random.Random, data: bytearray, _: tuple[bytes, ...]) -> None:
    low = rng.randint(0, len(data))
    data[low : low + rng.randint(1, 12)] = rng.choice(TOKENS)


def _delete(rng: random.Random, data: bytearray, _: tuple[bytes, ...]) -> None:
    low = rng.randint(0, len(data))
    del data[low : low + rng.randint(1, 40)]


def _repeat(rng: random.Random, data: bytearray, _: tuple[bytes, ...]) -> None:
    low = rng.randint(0, len(data))
    part = data[low : low + rng.randint(1, 60)]
    data[low:low] = part * rng.choice((2, 3, 50))


def _splice(rng: random.Random, data: bytearray, seeds: tuple[bytes, ...]) -> None:
    other = rng.choice(seeds)
    data[rng.randint(0, len(data)) :] = other[rng.randint(0, len(other)) :]


def _cut(rng: random.Random, data: bytearray, _: tuple[bytes, ...]) -> None:
    del data[rng.randint(0, len(data)) :]


MUTATIONS: tuple[Callable[[random.Random, bytearray, tuple[bytes, ...]], None], ...] = (
    _flip,
    _insert,
    _replace,
    _delete,
    _repeat,
    _splice,
    _cut,
)


def try_one(target: FuzzTarget, data: bytes) -> Failure | None:
    """Parse; ``None`` when it went as it should."""
    started = time.monotonic()
    try:
        target.parse(data)
    except target.may_raise:
        return None
    except Exception as error:  # noqa: BLE001  # any other is what we look for
        return Failure(target.name, data, f"{type(error).__name__}: {error}")
    took = time.monotonic() - started
    return Failure(target.name, data, f"took {took:.1f} s") if took > SLOW_SECS else None


def rounds(seed: int, targets: tuple[FuzzTarget, ...] = TARGETS) -> Iterator[Failure | None]:
    """Endless: each target in turn on an input of its own."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    while True:
        for target in targets:
            yield try_one(target, mutated(rng, target.seeds))


def main() -> int:
    """Fuzz until the time is up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    targets = tuple(t for t in TARGETS if not options.only or t.name in options.only)
    end = time.monotonic() + options.minutes * 60
    found: dict[tuple[str, str], Failure] = {}
    tries = rounds(options.seed, targets)
    tried = 0
    while time.monotonic() < end:
        tried += 1
        failure = next(tries)
        if failure is not None:
            found.setdefault((failure.target, failure.what[:40]), failure)
    for one in found.values():
        sys.stdout.write(f"{one.target}: {one.what}\n  {one.data[:2000]!r}\n")
    sys.stdout.write(f"{tried} inputs to {len(targets)} parsers, {len(found)} failures\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
