"""Event files: formats, order, and everything that can be wrong with a file."""

import gzip
import random
from pathlib import Path

import pytest
import zstandard

from stethoscope.replay.files import find_files, read_events
from stethoscope.schemas.codec import MAX_EVENT_BYTES, encode_line
from stethoscope.schemas.errors import BadEvent, InputError
from stethoscope.schemas.events import ClockEvent, Event


def clock(
    time_unix_ns: int, received_unix_ns: int | None = None, cluster: str = "default"
) -> Event:
    return ClockEvent(time_unix_ns=time_unix_ns, received_unix_ns=received_unix_ns, cluster=cluster)


def jsonl(*events: Event) -> bytes:
    return b"".join(encode_line(event) + b"\n" for event in events)


def read(*paths: Path) -> tuple[list[Event], list[tuple[str, str]]]:
    bad: list[tuple[str, str]] = []

    def on_bad(error: BadEvent, where: str) -> None:
        bad.append((error.reason, where.rsplit("/", 1)[-1]))

    return list(read_events(paths, on_bad)), bad


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.jsonl", bytes),
        ("a.jsonl.gz", gzip.compress),
        ("a.jsonl.zst", zstandard.ZstdCompressor().compress),
        ("b.jsonl.gz", lambda data: gzip.compress(data[:60]) + gzip.compress(data[60:])),
    ],
)
def test_formats_hold_the_same_events(tmp_path: Path, name: str, pack) -> None:  # type: ignore[no-untyped-def]
    events = [clock(t) for t in range(100)]
    path = tmp_path / name
    path.write_bytes(pack(jsonl(*events)))
    assert read(path) == (events, [])


def test_files_merge_in_time_order(tmp_path: Path) -> None:
    rng = random.Random(7)  # noqa: S311 - test data
    for number in range(5):
        times = sorted(rng.sample(range(1000), 40))
        (tmp_path / f"{number}.jsonl").write_bytes(
            jsonl(*(clock(t, cluster=str(number)) for t in times))
        )
    events, bad = read(tmp_path)
    assert len(events) == 200
    assert [e.time_unix_ns for e in events] == sorted(e.time_unix_ns for e in events)
    assert not bad


def test_arrival_time_orders_where_it_is_known(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(clock(5, 50)))
    (tmp_path / "b.jsonl").write_bytes(jsonl(clock(9, 10)))
    assert [e.time_unix_ns for e in read(tmp_path)[0]] == [9, 5]


def test_inside_a_file_the_order_is_as_written(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(clock(5), clock(3)))
    assert [e.time_unix_ns for e in read(tmp_path / "a.jsonl")[0]] == [5, 3]


def test_folders_are_searched_deep_and_empty_files_in_them_passed_over(tmp_path: Path) -> None:
    deep = tmp_path / "2026" / "11"
    deep.mkdir(parents=True)
    (deep / "x.jsonl").write_bytes(jsonl(clock(1)))
    (deep / "empty.jsonl").write_bytes(b"")
    (deep / "notes.txt").write_text("not ours")
    assert read(tmp_path) == ([clock(1)], [])


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(jsonl(clock(1)))
    assert find_files([path, tmp_path]) == [path]


def test_bad_lines_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        jsonl(clock(1))
        + b'{"kind":"clock","time_unix_ns":"now"}\n'
        + b'{"kind":"weather","time_unix_ns":1}\n'
        + b"\xff\xfe{\n"
        + b"\n"
        + jsonl(clock(2))
        + b'{"kind":"clock","time_un'
    )
    events, bad = read(path)
    assert events == [clock(1), clock(2)]
    assert bad == [
        ("wrong_type", "x.jsonl:2"),
        ("unknown_kind", "x.jsonl:3"),
        ("not_json", "x.jsonl:4"),
        ("truncated", "x.jsonl:7"),
    ]


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + encode_line(clock(1)) + b"\r\n" + encode_line(clock(2)))
    assert read(path) == ([clock(1), clock(2)], [])


def test_an_overlong_line_is_one_refusal(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    long = b'{"kind":"clock","pad":"' + b"x" * (MAX_EVENT_BYTES + 1_000_000) + b'"}\n'
    path.write_bytes(jsonl(clock(1)) + long + jsonl(clock(2)))
    assert read(path) == ([clock(1), clock(2)], [("too_large", "x.jsonl:2")])


@pytest.mark.parametrize(
    ("name", "pack"),
    [("x.jsonl.gz", gzip.compress), ("x.jsonl.zst", zstandard.ZstdCompressor().compress)],
)
def test_a_packed_file_cut_short_gives_what_was_readable(tmp_path: Path, name: str, pack) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(1)  # noqa: S311 - test data
    events = [clock(rng.getrandbits(60)) for _ in range(60_000)]
    path = tmp_path / name
    packed = pack(jsonl(*events))
    path.write_bytes(packed[: len(packed) * 3 // 4])
    seen, bad = read(path)
    assert len(seen) > 20_000
    assert seen == events[: len(seen)]
    assert bad == [("truncated", f"{name}:{len(seen) + 1}")]


def test_a_damaged_packed_file_gives_what_stands_before_the_damage(tmp_path: Path) -> None:
    rng = random.Random(1)  # noqa: S311 - test data
    events = [clock(rng.getrandbits(60)) for _ in range(60_000)]
    path = tmp_path / "x.jsonl.gz"
    packed = bytearray(gzip.compress(jsonl(*events)))
    packed[-6] ^= 0xFF  # the checksum
    path.write_bytes(packed)
    seen, bad = read(path)
    assert len(seen) > 50_000
    assert seen == events[: len(seen)]
    assert [reason for reason, _ in bad] == ["truncated"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.jsonl", b"", "the file is empty"),
        ("x.csv", b"a,b\n", "expected a name ending in .jsonl"),
        ("x.jsonl", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a binary file"),
        ("x.jsonl.gz", b"{}\n", "does not hold what its name says"),
        ("x.jsonl", gzip.compress(b"{}"), "rename it to end in .jsonl.gz"),
        ("x.jsonl", b"hello\nworld\n", "no readable event (2 lines refused"),
        ("x.jsonl.gz", gzip.compress(b""), "no readable event"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match="no event files in this folder"):
        read(tmp_path)


def test_bytes_read_are_told_for_the_progress_bar(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(jsonl(*(clock(t) for t in range(1000))))
    told: list[int] = []
    assert list(read_events([path], lambda *_: None, told.append))
    assert sum(told) == path.stat().st_size


def test_a_bad_file_in_a_folder_does_not_spoil_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\x00\x01\x02" * 50)
    (tmp_path / "b.jsonl").write_bytes(jsonl(clock(1), clock(2)))
    (tmp_path / "c.jsonl.gz").write_bytes(jsonl(clock(3)))
    events, bad = read(tmp_path)
    assert [e.time_unix_ns for e in events] == [1, 2]
    assert sorted(bad) == [("not_json", "a.jsonl"), ("not_json", "c.jsonl.gz")]
