"""Where a training process's memory lies: text as the kernel writes it, made-up nodes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents import host_numa
from stethoscope.agents.clock import FakeClock
from stethoscope.agents.host_numa import NumaShares, parse_cpu_list, parse_numa_maps
from stethoscope.agents.host_processes import last_cpu

# A Python process on a machine with two nodes; huge pages in the third line.
NUMA_MAPS = """\
00400000 default file=/usr/bin/python3.11 mapped=3 active=1 N0=3 kernelpagesize_kB=4
55d0c8a00000 default heap anon=100 dirty=100 N0=60 N1=40 kernelpagesize_kB=4
7f0000000000 bind:1 anon=2 dirty=2 N1=2 kernelpagesize_kB=2048
7f1000000000 default file=/dev/shm/torch_N9\\0751 mapped=7 N1=7 kernelpagesize_kB=4
7f2000000000 default
7ffd1a000000 default stack anon=4 dirty=4 active=0 N0=4 kernelpagesize_kB=4
"""
STAT = f"{{pid}} (python3) R 1 {' '.join(['0'] * 34)} {{cpu}} 0 0"
NEAR_BYTES, FAR_BYTES = 67 * 4096, 47 * 4096 + 2 * 2048 * 1024


class Machine:
    """Nodes and processes in a folder."""

    def __init__(self, root: Path, *cpulists: str) -> None:
        self.proc = root / "proc"
        self.nodes = root / "nodes"
        for node, cpulist in enumerate(cpulists):
            self._write(self.nodes / f"node{node}/cpulist", cpulist + "\n")
        self.clock = FakeClock()
        self.shares = NumaShares(self.proc, 300.0, str(self.nodes))

    def process(self, pid: int, allowed: str, cpu: int, maps: str = NUMA_MAPS) -> None:
        self._write(self.proc / f"{pid}/status", f"Name:\tx\nCpus_allowed_list:\t{allowed}\n")
        self._write(self.proc / f"{pid}/stat", STAT.format(pid=pid, cpu=cpu))
        self._write(self.proc / f"{pid}/numa_maps", maps)

    def read(self, *pids: int, secs: float = 5.0) -> dict[int, float | None]:
        """A read, and the look that it starts brought to its end."""
        self.clock.advance(secs)
        found = self.shares.read(list(pids), self.clock.now().monotonic_ns)
        self.shares.wait(30)
        return found

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(host_numa, "PAUSE", 0)
    return Machine(tmp_path, "0-3", "4-7", "")  # the third is a GPU's memory


def test_bytes_by_node() -> None:
    assert parse_numa_maps(NUMA_MAPS) == {0: NEAR_BYTES, 1: FAR_BYTES}


@pytest.mark.parametrize(
    ("allowed", "cpu", "far_bytes"),
    [
        ("0-3", 7, FAR_BYTES),  # bound to node 0, wherever it ran last
        ("4,5", 0, NEAR_BYTES),
        ("0-7", 2, FAR_BYTES),  # bound to none: where it ran last counts
        ("0-7", 5, NEAR_BYTES),
    ],
)
def test_remote_is_where_the_process_does_not_run(
    machine: Machine, allowed: str, cpu: int, far_bytes: int
) -> None:
    machine.process(7, allowed, cpu)
    assert machine.read(7) == {}
    assert machine.read(7) == {7: far_bytes / (NEAR_BYTES + FAR_BYTES)}


def test_memory_of_a_gpu_counts_neither_way(machine: Machine) -> None:
    maps = "7f00 default anon=9 N0=1 N1=1 N2=90 kernelpagesize_kB=4\n"
    machine.process(7, "0-3", 0, maps)
    machine.read(7)
    assert machine.read(7) == {7: 0.5}


def test_one_process_a_read_and_each_every_five_minutes(machine: Machine) -> None:
    for pid in (7, 8):
        machine.process(pid, "0-3", 0)
    assert list(machine.read(7, 8)) == []
    assert list(machine.read(7, 8)) == [7]
    assert list(machine.read(7, 8)) == [7, 8]
    machine.process(7, "4-7", 4)
    before = machine.read(7, 8, secs=200)
    assert machine.read(7, 8, secs=50) == before
    machine.read(7, 8, secs=100)
    after = machine.read(7, 8)
    assert (after[7], after[8]) == (NEAR_BYTES / (NEAR_BYTES + FAR_BYTES), before[8])
    assert list(machine.read(8)) == [8]


def test_a_look_that_takes_long_is_followed_by_a_long_pause(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_numa, "PAUSE", 1e9)
    for pid in (7, 8):
        machine.process(pid, "0-3", 0)
    machine.read(7, 8)
    for _ in range(5):
        assert list(machine.read(7, 8)) == [7]


def test_what_cannot_be_told_is_missing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.process(7, "0-3", 0, maps="")
    machine.read(7, 9)
    assert machine.read(7, 9) == {7: None}
    assert machine.read(7, 9) == {7: None, 9: None}
    monkeypatch.setattr(host_numa, "MAX_BYTES", 100)
    machine.process(10, "0-3", 0)
    machine.read(10)
    assert machine.read(10) == {10: None}


def test_one_node_is_never_looked_into(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0-7")
    machine.process(7, "0-7", 0)
    machine.read(7)
    assert machine.read(7) == {}


def test_the_last_processor() -> None:
    assert last_cpu(STAT.format(pid=1, cpu=13)) == 13
    assert last_cpu("1 (x) R") is None


@given(st.text(max_size=200))
def test_any_text_is_bytes_or_processors(text: str) -> None:
    assert all(size >= 0 for size in parse_numa_maps(text).values())
    assert all(cpu >= 0 for cpu in parse_cpu_list(text))


WORDS = [*NUMA_MAPS.split(), "N0=", "N=1", "=", "N0=\u0663"]


@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_torn_maps_are_bytes(words: list[str]) -> None:
    assert all(size >= 0 for size in parse_numa_maps(" ".join(words)).values())
