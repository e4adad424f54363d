"""The host reader on a made-up /proc."""

import os
import threading
from pathlib import Path

import pytest

from stethoscope.agents import host, host_mounts
from stethoscope.agents.clock import FakeClock
from stethoscope.agents.host import HostReader
from stethoscope.agents.host_background import Background
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import Host
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import NodeEvent

CONTEXT = Context(cluster="c", node="n1", boot_id="b")


class Proc:
    """A small /proc that a test changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("stat", "cpu  100 0 0 900 0 0 0 0 0 0\nctxt 10\nprocs_blocked 2\n")
        self.write("meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
        self.write("loadavg", "0.5 0.4 0.3 1/2 3\n")
        self.write("uptime", "1234.5 1\n")
        self.write("1/mountstats", "device /dev/vda mounted on / with fstype ext4\n")
        (root / "1/root").mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(self, pid: int, name: str = "python3", ppid: int = 1, **environ: str) -> None:
        rest = " ".join(["0"] * 17)
        self.write(f"{pid}/stat", f"{pid} ({name}) S {ppid} {rest} {pid}00 0 0")
        self.write(f"{pid}/cmdline", f"{name}\0train.py\0")
        self.write(f"{pid}/environ", "\0".join(f"{k}={v}" for k, v in environ.items()))

    def end(self, pid: int) -> None:
        for path in (self.root / str(pid)).iterdir():
            path.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


def make(proc: Proc, **settings: list[str]) -> HostReader:
    reader = HostReader(CONTEXT, Host(proc_root=str(proc.root), **settings))
    reader.probe()
    return reader


def look(reader: HostReader, clock: FakeClock) -> NodeEvent:
    (event,) = reader.read(clock.now())
    assert isinstance(event, NodeEvent)
    clock.advance(5)
    return event


def test_metrics_are_canonical(proc: Proc) -> None:
    reader, clock = make(proc), FakeClock()
    first = look(reader, clock)
    assert "cpu_busy_ratio" not in first.metrics
    proc.write("stat", "cpu  150 0 0 950 0 0 0 0 0 0\nctxt 60\nprocs_blocked 0\n")
    event = look(reader, clock)
    assert event.stream == "host"
    assert event.metrics["cpu_busy_ratio"] == 0.5
    assert event.metrics["context_switches_per_sec"] == 10
    assert event.metrics["memory_available_bytes"] == 409600
    assert event.metrics["uptime_secs"] == 1234.5
    assert event.mounts[0].path == "/"
    assert event.mounts[0].used_ratio is not None


def test_a_file_that_is_missing_is_counted_and_the_rest_is_read(proc: Proc) -> None:
    (proc.root / "meminfo").unlink()
    reader = make(proc)
    event = look(reader, FakeClock())
    assert "memory_available_bytes" not in event.metrics
    assert event.metrics["load1"] == 0.5
    assert reader.counters.collector_errors["meminfo"] == 1


def test_ranks_are_listed_without_launcher_and_data_loaders(proc: Proc) -> None:
    proc.process(100, "bash", SLURM_JOB_ID="7", SLURM_PROCID="0")
    proc.process(101, "torchrun", 100, SLURM_JOB_ID="7", SLURM_PROCID="0")
    proc.process(110, ppid=101, SLURM_JOB_ID="7", RANK="8", LOCAL_RANK="0")
    proc.process(111, ppid=110, SLURM_JOB_ID="7", RANK="8", LOCAL_RANK="0")
    proc.process(120, ppid=101, SLURM_JOB_ID="7", RANK="9", LOCAL_RANK="1")
    proc.process(200, "sshd")
    processes = look(make(proc), FakeClock()).processes
    assert [(p.pid, p.job_id, p.rank, p.alive) for p in processes] == [
        (110, "7", 8, True),
        (120, "7", 9, True),
    ]


def test_a_rank_says_how_much_of_its_memory_is_remote(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shares:
        def __init__(self, root: Path, period_secs: float) -> None:
            assert (root, period_secs) == (proc.root, 300.0)

        def read(self, pids: list[int], _monotonic_ns: int) -> dict[int, float | None]:
            return {pid: pid / 100 for pid in pids}

    monkeypatch.setattr(host, "NumaShares", Shares)
    proc.process(25, RANK="0")
    proc.process(50, RANK="1")
    reader, clock = make(proc), FakeClock()
    assert [p.numa_remote_ratio for p in look(reader, clock).processes] == [0.25, 0.5]
    proc.end(50)
    assert [p.numa_remote_ratio for p in look(reader, clock).processes] == [0.25, None]


def test_a_rank_that_ends_is_said_to_be_dead(proc: Proc) -> None:
    proc.process(110, RANK="0")
    reader, clock = make(proc), FakeClock()
    look(reader, clock)
    proc.end(110)
    said = [[(p.pid, p.alive) for p in look(reader, clock).processes] for _ in range(4)]
    assert said == [[(110, False)]] * 3 + [[]]


def test_a_process_that_starts_later_is_seen(proc: Proc) -> None:
    reader, clock = make(proc), FakeClock()
    assert look(reader, clock).processes == []
    proc.process(300, RANK="1")
    assert [p.pid for p in look(reader, clock).processes] == [300]


def test_a_pid_that_is_used_again_by_a_stranger_is_no_rank(proc: Proc) -> None:
    proc.process(110, RANK="0")
    reader, clock = make(proc), FakeClock()
    look(reader, clock)
    proc.end(110)
    proc.process(110, "sshd")
    proc.write("110/stat", "110 (sshd) S 1 " + " ".join(["0"] * 17) + " 99999 0 0")
    assert [(p.name, p.alive) for p in look(reader, clock).processes] == [("python3", False)]


def test_zombies_are_counted(proc: Proc) -> None:
    proc.process(500, "gone")
    proc.write("500/stat", "500 (gone) Z 1 " + " ".join(["0"] * 18))
    assert look(make(proc), FakeClock()).metrics["zombie_processes"] == 1


def test_a_command_line_can_be_named(proc: Proc) -> None:
    proc.process(400, "mytrainer")
    processes = look(make(proc, process_names=["mytrainer *"]), FakeClock()).processes
    assert [p.name for p in processes] == ["mytrainer"]


def test_checkpoints_are_named_as_the_host_names_them(proc: Proc) -> None:
    folder = proc.root / "1/root/data/run1/checkpoint-5"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text("{}")
    (only,) = look(make(proc, checkpoint_dirs=["/data/*"]), FakeClock()).checkpoints
    assert (only.path, only.newest_step, only.complete) == ("/data/run1", 5, True)


def test_a_checkpoint_folder_whose_name_is_no_text_is_told_all_the_same(proc: Proc) -> None:
    name = os.fsdecode(b"run\xff")
    (proc.root / "1/root/data" / name / "checkpoint-5").mkdir(parents=True)
    event = look(make(proc, checkpoint_dirs=["/data/*"]), FakeClock())
    assert [c.path for c in event.checkpoints] == ["/data/run\ufffd"]


def test_a_mount_that_hangs_shows_for_how_long_and_holds_nothing_up(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(path: str) -> float:
        if path.endswith("/mnt/dead"):
            release.wait(60)
        return 0.5

    monkeypatch.setattr(host_mounts, "used_ratio", hang)
    monkeypatch.setattr("stethoscope.agents.host.FIRST_WAIT_SECS", 0.01)
    monkeypatch.setattr("stethoscope.agents.host.WAIT_SECS", 0.01)
    dead = "device f:/x mounted on /mnt/dead with fstype nfs4 statvers=1.1\n"
    proc.write("1/mountstats", dead + "device /dev/vda mounted on / with fstype ext4\n")
    reader, clock = make(proc), FakeClock()
    first, second = look(reader, clock), look(reader, clock)
    waits = [
        next(m.await_secs or 0 for m in e.mounts if m.path == "/mnt/dead") for e in (first, second)
    ]
    assert 0 < waits[0] < waits[1]
    assert first.metrics["load1"] == 0.5
    assert reader.counters.collector_errors["statvfs /mnt/dead"] == 2
    release.set()


def test_nfs_latency_is_that_of_its_operations(proc: Proc) -> None:
    line = "device f:/x mounted on /mnt/nfs with fstype nfs4 statvers=1.1\n"
    line += "\t READ: {} 0 0 0 0 0 0 {} 0\n"
    (proc.root / "1/root/mnt/nfs").mkdir(parents=True)
    reader, clock = make(proc), FakeClock()
    proc.write("1/mountstats", line.format(100, 1000))
    look(reader, clock)
    proc.write("1/mountstats", line.format(110, 3000))
    assert look(reader, clock).mounts[0].await_secs == 0.2


def test_no_proc_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(ReaderUnsupported, match="no /proc"):
        HostReader(CONTEXT, Host(proc_root=str(tmp_path))).probe()


def test_background_runs_one_call_at_a_time() -> None:
    release, calls = threading.Event(), []

    def work() -> int:
        calls.append(1)
        release.wait(60)
        return len(calls)

    background = Background(work)
    background.start()
    background.start()
    assert background.pending_secs is not None
    release.set()
    background.wait(60)
    assert (background.result, calls, background.pending_secs) == (1, [1], None)


def test_background_keeps_the_error_of_a_call() -> None:
    def fail() -> int:
        raise FileNotFoundError("gone")

    background = Background(fail)
    background.start()
    background.wait(60)
    assert isinstance(background.error, FileNotFoundError)
