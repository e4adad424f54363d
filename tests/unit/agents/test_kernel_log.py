import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.journal import parse_entry
from stethoscope.agents.kernel_log import KernelLogReader
from stethoscope.agents.kernel_text import matters, message_of
from stethoscope.agents.kmsg import Kmsg, Record, parse_record
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import KernelLog
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import LogEvent, event_id

NS = 10**9
BOOT_NS = 1_700_000_000 * NS
XID = "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SHARED = Path(__file__).parents[4] / "shared"
FAULT_KINDS = [
    "xid",
    "sxid",
    "gpu_lost_no_xid",
    "gsp",
    "peermem",
    "pcie_aer",
    "mlx5",
    "nccl_segv",
    "kernel",
]


def clock_at(secs: float) -> FakeClock:
    return FakeClock(unix_ns=BOOT_NS + round(secs * NS), boottime_ns=round(secs * NS))


def reader(**settings: object) -> KernelLogReader:
    section = KernelLog(timezone="UTC", **settings)  # type: ignore[arg-type]  # by name
    return KernelLogReader(Context("c", "node01", "boot-a"), section)


def logs(events: object) -> list[LogEvent]:
    assert isinstance(events, list)
    assert all(isinstance(event, LogEvent) for event in events)
    return events


class Device:
    """A made-up ``/dev/kmsg``: a ring of records, each read handle with its place in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        path.touch()
        self.path = path
        self.records: dict[int, bytes] = {}
        self._places: dict[int, int] = {}
        self._next = 0
        monkeypatch.setattr("stethoscope.agents.kmsg.os.read", self._read)

    def write(self, text: str, secs: float) -> None:
        data = f"3,{self._next},{round(secs * 1e6)},-;{text}\n".encode()
        self.records[self._next] = data
        self._next += 1

    def open_anew(self) -> None:
        """The next handle begins at the oldest record, whatever its number."""
        self._places.clear()

    def overwrite(self, count: int) -> None:
        for seq in sorted(self.records)[:count]:
            del self.records[seq]

    def _read(self, handle: int, size: int) -> bytes:
        place = self._places.get(handle, 0)
        if place >= self._next:
            raise BlockingIOError
        oldest = min(self.records, default=self._next)
        if place < oldest:
            self._places[handle] = oldest
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        self._places[handle] = place + 1
        return self.records[place]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    return Device(monkeypatch, tmp_path / "kmsg")


def test_a_record_becomes_an_event_with_its_sequence_and_time(device: Device) -> None:
    device.write("usb 1-1: new device", 90)
    device.write(XID, 95.5)
    read = reader(device=str(device.path))
    read.probe()
    (event,) = logs(read.read(clock_at(100).now()))
    assert (event.seq, event.stream, event.line) == (1, "kernel", XID)
    assert event.time_unix_ns == BOOT_NS + 95_500_000_000
    assert (event.node, event.boot_id, event.source, event.count) == (
        "node01",
        "boot-a",
        "kernel",
        1,
    )
    assert read.counters.skipped == {"no_rule": 1}
    read.close()
    read.close()


def test_a_restart_reads_on_and_keeps_the_counts(device: Device) -> None:
    for index in range(6):
        device.write(XID, 10 + index)
    first = reader(device=str(device.path))
    before = logs(first.read(clock_at(20).now()))
    kept = first.checkpoint()
    first.read(clock_at(21).now())  # what it did after the checkpoint is lost with it
    first.close()
    device.open_anew()
    device.write(XID, 21)
    second = reader(device=str(device.path))
    second.restore(kept)
    after = logs(second.read(clock_at(22).now()))
    after += logs(second.read(clock_at(40).now()))
    assert [(event.seq, event.count) for event in before] == [(0, 1), (1, 1), (3, 2)]
    assert [(event.seq, event.count) for event in after] == [(6, 3)]
    second.close()


def test_reading_again_gives_the_very_same_events(device: Device) -> None:
    device.write("Linux version 6", 0)
    once, again = reader(device=str(device.path)), reader(device=str(device.path))
    once.read(clock_at(1).now())
    kept = once.checkpoint()
    for index in range(40):
        device.write(XID if index % 3 else "mlx5_core 0000:53:00.0 mlx5_3: Link DOWN", index)
    first = once.read(clock_at(60).now())
    again.restore(kept)
    slewed = clock_at(60)
    slewed.step_wall(0.2)  # a little drift of the wall clock moves no event
    assert again.read(slewed.now()) == first
    assert len(first) > 4
    once.close()
    again.close()


def test_the_first_lines_read_again_after_a_crash_are_the_same(device: Device) -> None:
    device.write(XID, 5)
    once, again = reader(device=str(device.path)), reader(device=str(device.path))
    first = once.read(clock_at(6).now())
    slewed = clock_at(7)
    slewed.step_wall(0.2)
    again.expect([once.checkpoint(), "no json"])
    assert again.read(slewed.now()) == first
    assert len(first) == 1
    assert again.counters.collector_errors == {"checkpoint": 1}
    once.close()
    again.close()


@pytest.mark.parametrize("line", [f"[   12.500000] {XID}", f"{XID}"])
def test_lines_of_a_file_without_a_date_are_the_same_when_read_again(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_text(f"{line}\n")
    os.utime(path, ns=(0, BOOT_NS + 50 * NS))
    once, again = reader(file=str(path)), reader(file=str(path))
    (first,) = logs(once.read(clock_at(60).now()))
    assert first.time_unix_ns - BOOT_NS == (NS * 25 // 2 if line[0] == "[" else 50 * NS)
    with path.open("a") as file:
        file.write(f"{line.replace('79', '31')}\n")
    os.utime(path, ns=(0, BOOT_NS + 70 * NS))
    again.expect([once.checkpoint()])
    slewed = clock_at(80)
    slewed.step_wall(0.2)
    assert logs(again.read(slewed.now()))[0] == first
    once.close()
    again.close()


def test_another_boot_begins_anew(device: Device) -> None:
    device.write(XID, 5)
    old = reader(device=str(device.path))
    old.read(clock_at(6).now())
    state = json.loads(old.checkpoint()) | {"boot_id": "boot-before"}
    old.close()
    device.open_anew()
    new = reader(device=str(device.path))
    new.restore(json.dumps(state))
    events = logs(new.read(clock_at(7).now()))
    assert [event.seq for event in events] == [0]
    new.close()


def test_overwritten_records_are_counted(device: Device) -> None:
    device.write(XID, 1)
    read = reader(device=str(device.path))
    read.read(clock_at(2).now())
    for index in range(10):
        device.write(f"{XID} {index}", 3)
    device.overwrite(5)
    events = logs(read.read(clock_at(4).now()))
    assert [event.seq for event in events] == [5, 6, 7, 8, 9, 10]
    assert read.counters.skipped == {"overrun": 4}
    read.close()


def test_the_very_first_read_leaves_old_lines_out(device: Device) -> None:
    device.write(XID, 10)
    device.write(XID.replace("79", "48"), 5000)
    read = reader(device=str(device.path), history_secs=600)
    assert [event.seq for event in logs(read.read(clock_at(5100).now()))] == [1]
    assert read.counters.skipped == {"old": 1}
    read.close()


def test_a_bad_checkpoint_is_counted_and_ignored(device: Device) -> None:
    device.write(XID, 1)
    read = reader(device=str(device.path))
    read.restore("{")
    assert len(read.read(clock_at(2).now())) == 1
    assert read.counters.collector_errors == {"checkpoint": 1}
    read.close()


def test_a_file_by_dmesg_is_followed_by_its_text(tmp_path: Path) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_text(f"[Wed Nov 15 00:00:01 2023] {XID}\n[Wed Nov 15 00:00:02 2023] usb 1-1: new\n")
    read = reader(file=str(path))
    read.probe()
    now = FakeClock(unix_ns=BOOT_NS + 86_400 * NS).now()
    (event,) = logs(read.read(now))
    assert (event.line, event.seq, event.time_unix_ns) == (XID, 0, 1_700_006_401 * NS)
    with path.open("a") as file:
        file.write(f"[Wed Nov 15 00:00:03 2023] {XID}\n")
    (again,) = logs(read.read(now))
    assert again.seq > event.seq
    assert event_id(again) != event_id(event)
    state = read.checkpoint()
    read.close()
    other = reader(file=str(path))
    other.restore(state)
    assert other.read(now) == []
    other.close()


def test_a_files_whole_count_comes_out_of_one_read(tmp_path: Path) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_text(f"[Wed Nov 15 00:00:01 2023] {XID}\n" * 100)
    read = reader(file=str(path))
    events = logs(read.read(FakeClock(unix_ns=BOOT_NS + 86_400 * NS).now()))
    assert sum(event.count for event in events) == 100
    assert len(events) == 8
    read.close()


def test_nothing_to_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stethoscope.agents.kernel_log.shutil.which", lambda _: None)
    with pytest.raises(ReaderUnsupported, match=r"No such file.*CAP_SYSLOG.*no journald"):
        reader(device=str(tmp_path / "none")).probe()
    with pytest.raises(ReaderUnsupported, match="does not exist"):
        reader(file=str(tmp_path / "none")).probe()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"[430954.509105] {XID}", XID),
        (f"[Sun Nov 29 16:00:44 2026] {XID}", XID),
        (f"kern  :err   : 2025-01-25T10:34:54,859532+00:00 {XID}", XID),
        (f"Jan 14 22:15:17 node01 kernel: [2437042.862382] {XID}", XID),
        (f"2025-01-25T10:34:54.859532+00:00 node01 kernel: {XID}", XID),
        (f"<3>[  +0.000844] {XID}", XID),
        (f"kernel: {XID}", XID),
        (XID, XID),
        ("Jan 14 22:15:17 node01 sshd[77]: NVRM: Xid", None),
        ("2025-01-25T10:34:54+00:00 node01 app: NVRM: Xid", None),
    ],
)
def test_the_message_of_a_line(line: str, message: str | None) -> None:
    assert message_of(line) == message


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:00:02.0: PCIe Bus Error: severity=Corrected",
        "mce: [Hardware Error]: Machine check events logged",
        "EDAC MC0: 1 CE memory read error",
        "Out of memory: Killed process 4711 (python3)",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
        "nfs: server 10.0.0.9 not responding, still trying",
        "LustreError: 11-0: scratch-OST0001: operation ost_write failed",
        "python3[77]: segfault at 7f79 ip 00007f sp 00007f error 4 in libnccl.so.2",
        "INFO: task python3:88 blocked for more than 120 seconds.",
        "watchdog: BUG: soft lockup - CPU#18 stuck for 27s!",
        "nvme nvme0: I/O 5 QID 3 timeout, aborting",
    ],
)
def test_faults_matter(line: str) -> None:
    assert matters(line)


@pytest.mark.parametrize(
    "line",
    [
        "usb 1-1: new high-speed USB device number 2",
        "systemd[1]: Started Session 5 of user root.",
        "audit: type=1400 apparmor=STATUS",
        "docker0: port 1(veth) entered blocking state",
    ],
)
def test_other_lines_do_not(line: str) -> None:
    assert not matters(line)


def test_every_kernel_line_of_the_collection_matters() -> None:
    path = SHARED / "data" / "log_lines.jsonl"
    if not path.exists():
        pytest.skip("the collection of log lines is not here")
    for text in path.read_text().splitlines():
        sample = json.loads(text)
        if sample["kind"] in FAULT_KINDS:
            message = message_of(sample["line"])
            assert message is not None
            assert matters(message), sample["line"]


def test_records_as_the_device_writes_them() -> None:
    assert parse_record(b"6,2,17,-;a\\x0ab \\xc3\\xa9\n DEVICE=+pci:0\n") == Record(2, 17, "a b é")
    assert parse_record(b"6,2,17,-,caller=T1;text;more\n") == Record(2, 17, "text;more")
    assert parse_record(b"") is None
    assert parse_record(b"no record") is None


def test_a_journal_entry() -> None:
    entry = {
        "__CURSOR": "s=ab12;i=4c;b=00;m=1;t=2;x=3",
        "__REALTIME_TIMESTAMP": "1700000000000001",
        "MESSAGE": [78, 86, 255],
    }
    parsed = parse_entry(json.dumps(entry).encode())
    assert parsed is not None
    assert (parsed.stream, parsed.seq, parsed.unix_ns) == ("ab12", 0x4C, 1_700_000_000_000_001_000)
    assert parsed.text == "NV\ufffd"
    assert parse_entry(b"{}") is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    parse_record(data)
    parse_entry(data)


@given(st.text(max_size=200))
def test_any_text_has_a_message_or_none(line: str) -> None:
    message = message_of(line)
    assert message is None or message in line


def test_the_real_device_of_this_machine() -> None:
    try:
        device = Kmsg("/dev/kmsg")
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read here: {error}")
    records = list(device.read())
    device.close()
    seqs = [record.seq for record in records]
    assert seqs == sorted(set(seqs))
