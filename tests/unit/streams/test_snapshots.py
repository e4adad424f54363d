"""Snapshots survive the wire, torn writes and strangers in the partition."""

import random

from stethoscope.streams.snapshots import CHUNK_BYTES, Snapshot, newest, to_messages


def _snapshot(offset: int, state: bytes = b"state", stage: str = "node/1") -> Snapshot:
    return Snapshot(stage=stage, offsets={"telemetry/1": offset}, state=state)


def _noise(size: int) -> bytes:
    """Bytes that do not compress."""
    return random.Random(7).randbytes(size)  # noqa: S311 - repeatable, not secret


def test_a_snapshot_of_many_chunks_comes_back_whole() -> None:
    snapshot = _snapshot(5, _noise(3 * CHUNK_BYTES))
    messages = to_messages(snapshot, 3)
    assert len(messages) == 4
    assert newest(messages, "node/1") == (snapshot, 3)


def test_every_chunk_stays_below_the_limit_of_a_message() -> None:
    messages = to_messages(_snapshot(5, _noise(2 * CHUNK_BYTES)), 0)
    assert max(len(value) for _, value in messages) < CHUNK_BYTES + 100


def test_the_one_that_read_further_is_the_newest() -> None:
    older, newer = _snapshot(5), _snapshot(9)
    messages = to_messages(newer, 1) + to_messages(older, 2)
    assert newest(messages, "node/1") == (newer, 1)


def test_two_in_a_row_use_different_slots() -> None:
    first, second = to_messages(_snapshot(5), 0), to_messages(_snapshot(6), 1)
    assert {key for key, _ in first}.isdisjoint(key for key, _ in second)
    assert {key for key, _ in first} == {key for key, _ in to_messages(_snapshot(7), 2)}


def test_a_torn_write_leaves_the_one_before_it() -> None:
    before = _snapshot(5, _noise(2 * CHUNK_BYTES))
    torn = to_messages(_snapshot(9, _noise(2 * CHUNK_BYTES)[::-1]), 1)[:-1]
    assert newest([*to_messages(before, 0), *torn], "node/1") == (before, 0)


def test_a_write_torn_over_an_older_one_in_its_slot_is_not_taken() -> None:
    old = dict(to_messages(_snapshot(1, _noise(2 * CHUNK_BYTES)), 0))
    good = _snapshot(5)
    torn = dict(to_messages(_snapshot(9, _noise(2 * CHUNK_BYTES)[::-1]), 2)[:1])
    messages = old | dict(to_messages(good, 1)) | torn
    assert newest(messages.items(), "node/1") == (good, 1)


def test_longer_ones_of_before_do_not_disturb() -> None:
    long = dict(to_messages(_snapshot(1, _noise(3 * CHUNK_BYTES)), 0))
    short = _snapshot(9)
    assert newest((long | dict(to_messages(short, 2))).items(), "node/1") == (short, 2)


def test_other_stages_and_rubbish_are_passed_over() -> None:
    mine = _snapshot(1)
    others = to_messages(_snapshot(9, stage="job/1"), 0)
    assert newest([*others, (b"node/1|B|0", b"\xff{"), *to_messages(mine, 0)], "node/1") == (
        mine,
        0,
    )
    assert newest(others, "node/1") is None
