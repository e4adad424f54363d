import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.stdin import StreamTail
from stethoscope.agents.tail import MAX_LINE_BYTES, FileTail, Tailed

NS = 10**9


class Tail:
    """A tail under test: its own seconds, all lines read, each with its (stream, offset)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secs = 0
        self.tail = FileTail(str(path))
        self.tail.open_at([])
        self.lines: list[bytes] = []
        self.ids: list[tuple[str, int]] = []
        self.cut = 0

    def read(self, secs: int = 1) -> list[bytes]:
        self.secs += secs
        new: list[bytes] = []
        for tailed in self.tail.read(self.secs * NS):
            self.cut += tailed.cut
            new += [raw.body for raw in tailed.lines]
            self.ids += [(tailed.stream, raw.offset) for raw in tailed.lines]
        self.lines += new
        return new

    def restart(self) -> None:
        positions = self.tail.positions()
        self.tail.close()
        self.tail = FileTail(str(self.path))
        self.tail.open_at(positions)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_bytes(b"")
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_whole_lines_as_they_come_and_a_half_one_when_it_is_whole(log: Path) -> None:
    tail = Tail(log)
    append(log, b"one\ntw")
    assert tail.read() == [b"one"]
    append(log, b"o\r\nthree\n\n")
    assert tail.read() == [b"two", b"three"]
    assert [offset for _, offset in tail.ids] == [0, 4, 9]


def test_a_progress_bars_frames_are_lines(log: Path) -> None:
    append(log, b"1/3\r2/3\r3/3")
    tail = Tail(log)
    assert tail.read() == [b"1/3", b"2/3"]


def test_a_half_line_that_nobody_finishes_is_taken_at_last(log: Path) -> None:
    append(log, b"RuntimeError: it died in mid-")
    tail = Tail(log)
    assert tail.read() == []
    assert tail.read(secs=10) == [b"RuntimeError: it died in mid-"]
    assert tail.read(secs=20) == []


def test_the_half_line_of_a_log_long_finished_is_taken_at_once(log: Path) -> None:
    append(log, b"one\nthe end")
    os.utime(log, (0, 0))
    assert Tail(log).read() == [b"one", b"the end"]


def test_a_rotated_log_is_read_to_its_end_however_long_that_takes(log: Path) -> None:
    append(log, b"".join(b"line %d\n" % i for i in range(50_000)))
    tail = FileTail(str(log))
    tail.open_at([])
    log.rename(log.with_suffix(".1"))
    append(log, b"new\n")
    lines: list[bytes] = []
    for tick in range(10):
        for tailed in tail.read(tick * 60 * NS, max_bytes=1):
            lines += [raw.body for raw in tailed.lines]
    assert len(lines) == 50_001
    tail.close()


def test_a_long_line_is_cut_and_counted_and_the_next_is_whole(log: Path) -> None:
    tail = Tail(log)
    append(log, b"x" * 1_000_000)
    assert [len(line) for line in tail.read()] == [MAX_LINE_BYTES]
    append(log, b"y" * 1_000_000 + b"\nnext\n")
    assert tail.read() == [b"next"]
    assert tail.cut == 1


def test_a_log_rotated_in_mid_line_loses_nothing(log: Path) -> None:
    tail = Tail(log)
    writer = log.open("ab", buffering=0)
    writer.write(b"one\nhalf a ")
    assert tail.read() == [b"one"]
    log.rename(log.with_suffix(".1"))
    append(log, b"new\n")
    assert tail.read() == [b"new"]
    writer.write(b"line\nlast\n")
    assert tail.read() == [b"half a line", b"last"]
    writer.close()
    append(log, b"newer\n")
    assert tail.read(secs=30) == [b"newer"]
    assert len(set(tail.ids)) == len(tail.ids)


def test_a_log_that_is_gone_and_comes_back(log: Path) -> None:
    append(log, b"one\n")
    tail = Tail(log)
    tail.read()
    log.unlink()
    assert tail.read() == []
    assert tail.read(secs=20) == []
    with pytest.raises(FileNotFoundError):
        tail.read()
    assert tail.tail.is_gone()


@pytest.mark.parametrize("refill", [b"a\n", b"now longer than before\nand more\n"])
def test_a_log_copied_and_truncated_begins_anew(log: Path, refill: bytes) -> None:
    append(log, b"first line\nsecond\n")
    tail = Tail(log)
    tail.read()
    log.write_bytes(refill)  # truncates the same file
    assert tail.read() == refill.splitlines()
    assert len({stream for stream, _ in tail.ids}) == 2


def test_a_log_replaced_by_a_directory(log: Path) -> None:
    append(log, b"one\n")
    tail = Tail(log)
    tail.read()
    log.unlink()
    log.mkdir()
    assert tail.read(secs=1) == []
    assert tail.read(secs=20) == []
    with pytest.raises(OSError, match="not a regular file"):
        tail.read()
    log.rmdir()
    append(log, b"back\n")
    assert tail.read() == [b"back"]


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        FileTail(str(tmp_path / "pipe")).open_at([])


def test_a_restart_neither_loses_nor_doubles_though_the_log_was_rotated(log: Path) -> None:
    append(log, b"one\ntwo\n")
    tail = Tail(log)
    tail.read()
    append(log, b"three\n")
    log.rename(log.with_suffix(".1"))
    append(log, b"four\n")
    tail.restart()
    assert tail.read() == [b"three", b"four"]
    tail.restart()
    assert tail.read() == []
    assert len(set(tail.ids)) == 4


def test_a_restart_after_a_truncation_begins_anew(log: Path) -> None:
    append(log, b"one\ntwo\n")
    tail = Tail(log)
    tail.read()
    log.write_bytes(b"uno\ndos\ntres\n")
    tail.restart()
    assert tail.read() == [b"uno", b"dos", b"tres"]
    assert len(set(tail.ids)) == 5


def test_the_end_is_where_one_may_begin(log: Path) -> None:
    append(log, b"old\nunder w")
    tail = Tail(log)
    tail.tail.skip_to_end()
    append(log, b"ay\nnew\n")
    assert tail.read() == [b"new"]


def test_random_bytes_are_lines_too(log: Path) -> None:
    noise = random.Random(7).randbytes(300_000)  # noqa: S311 - not for secrets
    append(log, noise + b"\n")
    tail = Tail(log)
    tail.read()
    expected = [part for part in noise.replace(b"\r", b"\n").split(b"\n") if part]
    assert tail.lines == expected


operations = st.lists(
    st.sampled_from(["line", "half", "read", "rotate", "truncate", "restart"]), max_size=40
)


@given(operations)
def test_every_line_once_whatever_befalls_the_log(
    tmp_path_factory: pytest.TempPathFactory, done: list[str]
) -> None:
    log = tmp_path_factory.mktemp("tail") / "job.log"
    log.write_bytes(b"")
    tail = Tail(log)
    written: list[bytes] = []
    for index, operation in enumerate(done):
        if operation == "line":
            append(log, f"line {index}\n".encode())
            written.append(f"line {index}".encode())
        elif operation == "half":
            append(log, f"half {index} ".encode())
            append(log, b"end\n")
            written.append(f"half {index} end".encode())
        elif operation == "rotate":
            tail.read()
            log.rename(log.with_suffix(f".{index}"))
            log.write_bytes(b"")
        elif operation == "truncate":
            tail.read()  # what is truncated unread is lost to anybody
            log.write_bytes(b"")
            tail.read()
        elif operation == "restart":
            tail.restart()
        else:
            tail.read()
    tail.read()
    tail.tail.close()
    assert tail.lines == written
    assert len(set(tail.ids)) == len(tail.ids)


@given(st.binary(max_size=400), st.integers(1, 50))
def test_a_pipes_lines_do_not_depend_on_how_it_is_cut(data: bytes, size: int) -> None:
    whole, pieces = Tailed("a"), Tailed("a")
    tail = StreamTail()
    tail.feed(data, whole)
    tail.end(whole)
    tail = StreamTail()
    for start in range(0, len(data), size):
        tail.feed(data[start : start + size], pieces)
    tail.end(pieces)
    assert pieces == whole
    for raw in whole.lines:
        assert data[raw.offset : raw.offset + len(raw.body)] == raw.body
