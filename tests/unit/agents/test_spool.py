"""The spool: order, acks, bounds, and crashes at any byte."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stethoscope.agents.segment import MAGIC, Record, encode_record, parse_segment
from stethoscope.agents.spool import PRIORITIES, Priority, Spool

BIG = 1 << 20
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
payloads = st.lists(st.binary(max_size=40) | st.just(MAGIC * 3), max_size=12)
steps = st.lists(st.tuples(st.sampled_from(PRIORITIES), payloads), max_size=8)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut is not tested, and many small segments would wait for the disk."""
    monkeypatch.setattr("stethoscope.agents.spool.os.fsync", lambda _handle: None)


def open_spool(folder: Path, max_bytes: int = BIG, segment_bytes: int = 200) -> Spool:
    return Spool(folder, max_bytes=max_bytes, segment_bytes=segment_bytes)


def drain(spool: Spool, max_records: int = 3) -> list[bytes]:
    found: list[bytes] = []
    while records := spool.peek(max_records, 1000):
        found += [record.payload for record in records]
        spool.ack(records[-1].seq)
    return found


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spool")


@given(steps=steps, batch=st.integers(1, 5))
@quick
def test_everything_comes_out_once_in_the_order_of_appending(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Priority, list[bytes]]], batch: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = open_spool(folder)
    for priority, bodies in steps:
        spool.append(priority, bodies)
    expected = [body for _, bodies in steps for body in bodies]
    assert spool.pending == len(expected)
    assert drain(spool, batch) == expected
    assert spool.pending == 0
    assert spool.dropped_total == 0


@given(steps=steps, acked=st.integers(0, 40), lost_tail=st.integers(0, 300), which=st.integers(0))
@quick
def test_a_crash_at_any_byte_costs_only_the_records_that_were_cut(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[Priority, list[bytes]]],
    acked: int,
    lost_tail: int,
    which: int,
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = open_spool(folder)
    for priority, bodies in steps:
        spool.append(priority, bodies)
    everything = list(spool.peek(1000, BIG))
    if acked and everything:
        seq = everything[min(acked, len(everything)) - 1].seq
        spool.peek(1000, BIG)
        spool.ack(seq)
        everything = [r for r in everything if r.seq > seq]
    segments = sorted(folder.glob("*/*.seg"))
    cut: list[Record] = []
    if segments:
        path = segments[which % len(segments)]
        before = [p.record for p in parse_segment(path.read_bytes()) if p]
        path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - lost_tail)])
        after = [p.record for p in parse_segment(path.read_bytes()) if p]
        assert after == before[: len(after)]
        cut = before[len(after) :]
    again = open_spool(folder)
    again.append("high", [b"later"])
    kept = [r.payload for r in everything if r not in cut]
    assert again.pending == len(kept) + 1
    assert drain(again) == [*kept, b"later"]


@given(bodies=st.lists(st.binary(max_size=30), min_size=3, max_size=9), at=st.integers(0))
@quick
def test_a_flipped_byte_costs_one_record(bodies: list[bytes], at: int) -> None:
    records = [Record(i, body) for i, body in enumerate(bodies)]
    encoded = [encode_record(record) for record in records]
    data = bytearray(b"".join(encoded))
    at %= len(data)
    data[at] ^= 0x55
    hit, end = 0, len(encoded[0])
    while end <= at:
        hit, end = hit + 1, end + len(encoded[hit + 1])
    found = [p.record for p in parse_segment(bytes(data)) if p]
    assert found == records[:hit] + records[hit + 1 :]


@given(data=st.binary(max_size=300))
@quick
def test_random_bytes_are_no_records(data: bytes) -> None:
    assert [p for p in parse_segment(data) if p] == []


def test_low_goes_first_over_the_bound_and_is_counted(fresh: Path) -> None:
    spool = open_spool(fresh, max_bytes=2000)
    for i in range(20):
        spool.append("high", [b"log %03d" % i])
    for i in range(100):
        spool.append("low", [b"sample %03d" % i])
    assert spool.size_bytes <= 2000
    left = drain(spool)
    logs = [body for body in left if body.startswith(b"log")]
    samples = [body for body in left if body.startswith(b"sample")]
    assert logs == [b"log %03d" % i for i in range(20)]
    assert samples == [b"sample %03d" % i for i in range(100 - len(samples), 100)]
    assert spool.dropped_total == 100 - len(samples) > 0


def test_high_is_dropped_only_when_no_sample_is_left(fresh: Path) -> None:
    spool = open_spool(fresh, max_bytes=2000)
    spool.append("low", [b"sample"] * 50)
    spool.append("high", [b"log %03d" % i for i in range(200)])
    left = drain(spool)
    assert all(body.startswith(b"log") for body in left)
    assert left[-1] == b"log 199"
    assert spool.dropped_total == 250 - len(left)


def test_acks_and_drops_survive_a_restart(fresh: Path) -> None:
    spool = open_spool(fresh, max_bytes=1000)
    spool.append("low", [b"x" * 20] * 60)
    dropped = spool.dropped_total
    first = spool.peek(5, BIG)
    spool.ack(first[-1].seq)
    again = open_spool(fresh, max_bytes=1000)
    assert again.dropped_total == dropped > 0
    assert again.pending == spool.pending
    assert again.peek(1, BIG)[0].seq == first[-1].seq + 1


def test_sequence_numbers_are_never_used_again(fresh: Path) -> None:
    spool = open_spool(fresh)
    spool.append("high", [b"a", b"b"])
    drain(spool)
    again = open_spool(fresh)
    again.append("high", [b"c"])
    assert drain(again) == [b"c"]


def test_a_lost_ack_file_only_sends_again(fresh: Path) -> None:
    spool = open_spool(fresh)
    spool.append("high", [b"a", b"b", b"c"])
    spool.ack(spool.peek(1, BIG)[0].seq)
    (fresh / "ack.json").write_bytes(b"\x00\x00")
    assert drain(open_spool(fresh)) == [b"a", b"b", b"c"]


def test_a_full_disk_drops_counts_and_goes_on(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = open_spool(fresh)
    spool.append("high", [b"before"])

    def refuse(_handle: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("stethoscope.agents.spool.os.write", refuse)
        assert spool.append("high", [b"lost"]) == 0
    assert "No space left" in spool.last_error
    spool.append("high", [b"after"])
    assert spool.dropped_total == 1
    assert drain(spool) == [b"before", b"after"]


def test_segments_removed_by_a_stranger_are_counted(fresh: Path) -> None:
    spool = open_spool(fresh)
    spool.append("low", [b"x"] * 7)
    for path in fresh.glob("*/*.seg"):
        path.unlink()
    assert spool.peek(10, BIG) == []
    assert (spool.pending, spool.dropped_total) == (0, 7)


def test_segments_fall_away_when_acked(fresh: Path) -> None:
    spool = open_spool(fresh)
    spool.append("high", [b"x" * 50] * 20)
    drain(spool)
    assert list(fresh.glob("*/*.seg")) == []
    assert spool.size_bytes == 0


def test_counts_that_cannot_be_written_stop_nothing(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    spool = open_spool(fresh)
    spool.append("high", [b"a", b"b"])
    monkeypatch.setattr("stethoscope.agents.spool.write_atomically", refuse)
    assert drain(spool) == [b"a", b"b"]
    assert "No space left" in spool.last_error
