"""Parsers of /proc and what they are used for."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents import host_proc
from stethoscope.agents.host_checkpoints import newest_checkpoint, step_of
from stethoscope.agents.host_metrics import Rates, cpu_metrics, disk_metrics, vm_metrics
from stethoscope.agents.host_processes import (
    container_of,
    job_of,
    parse_environ,
    parse_stat,
    read_passwd,
)
from stethoscope.agents.host_versions import nccl_version, parse_cuda, parse_driver, parse_nccl_path

MOUNTSTATS = """device proc mounted on /proc with fstype proc
device filer:/export/data mounted on /mnt/my\\040data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576
\tage:\t5000
\tbytes:\t1 2 3 4 5 6 7 8
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 1 0 25 100 100 0 100 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 2 2 0
\t        READ: 100 100 0 1000 2000 30 400 500 0
\t       WRITE: 50 50 0 1000 2000 30 400 250 0
device tmpfs mounted on /tmp with fstype tmpfs
"""


def test_mountstats_sum_the_operations_of_a_mount() -> None:
    mounts = host_proc.parse_mountstats(MOUNTSTATS)
    assert [m.path for m in mounts] == ["/proc", "/mnt/my data", "/tmp"]  # noqa: S108
    assert mounts[1].nfs == host_proc.NfsOps(operations=151, execute_ms=752)
    assert mounts[0].nfs is None


def test_diskstats_leave_partitions_and_loops_out() -> None:
    text = """   7 0 loop0 9 0 9 9 9 0 9 9 0 0 0
 259 0 nvme0n1 10 0 100 20 30 0 300 40 0 50 60
 259 1 nvme0n1p1 10 0 100 20 30 0 300 40 0 50 60
"""
    disks = host_proc.parse_diskstats(text)
    assert (disks.read_bytes, disks.written_bytes) == (51200, 153600)
    assert disks.busy == {"nvme0n1": (40, 60)}


def test_net_dev_leaves_loopback_and_bridges_out() -> None:
    row = " ".join(str(n) for n in range(1, 17))
    text = f"Inter-| Receive\n face |bytes\n    lo: {row}\n  eth0: {row}\ndocker0: {row}\n"
    assert host_proc.parse_net_dev(text) == host_proc.Network(1, 9, 3)


def test_rates_need_two_reads_and_survive_a_reset() -> None:
    rates = Rates()
    rates.begin(0)
    assert cpu_metrics(host_proc.Cpu(100, 50, 5, 0), rates).get("cpu_busy_ratio") is None
    rates.begin(1_000_000_000)
    metrics = cpu_metrics(host_proc.Cpu(200, 100, 30, 0), rates)
    assert metrics["cpu_busy_ratio"] == pytest.approx(0.25)
    assert metrics["cpu_iowait_ratio"] == 0.25
    rates.begin(2_000_000_000)
    assert "cpu_busy_ratio" not in cpu_metrics(host_proc.Cpu(10, 5, 0, 0), rates)


def test_the_slowest_disk_counts() -> None:
    rates = Rates()
    for second, busy in enumerate([{"a": (0, 0), "b": (0, 0)}, {"a": (10, 10), "b": (10, 500)}]):
        rates.begin(second * 1_000_000_000)
        metrics = disk_metrics(host_proc.Disks(0, 0, busy), rates)
    assert metrics["disk_await_secs"] == 0.05


def test_numa_misses_are_a_share_of_pages() -> None:
    rates = Rates()
    rates.begin(0)
    vm_metrics({"numa_hit": 0, "numa_miss": 0}, rates)
    rates.begin(1_000_000_000)
    assert vm_metrics({"numa_hit": 75, "numa_miss": 25}, rates)["numa_miss_ratio"] == 0.25


@pytest.mark.parametrize(
    ("environ", "cgroup", "job"),
    [
        ({"SLURM_JOB_ID": "4711"}, "", "4711"),
        ({}, "1:freezer:/slurm/uid_1000/job_4711/step_0/task_1", "4711"),
        ({}, "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0", "12"),
        ({"MASTER_ADDR": "gpt-master-0"}, "", "gpt"),
        ({"MASTER_ADDR": "10.0.0.1", "TORCHELASTIC_RUN_ID": "none"}, "", None),
        ({"TORCHELASTIC_RUN_ID": "run7"}, "", "run7"),
        ({}, "0::/user.slice", None),
    ],
)
def test_the_job_of_a_process(environ: dict[str, str], cgroup: str, job: str | None) -> None:
    assert job_of(environ, cgroup) == job


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/system.slice/docker-{'a1' * 32}.scope",
        f"4:memory:/docker/{'a1' * 32}",
        f"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{'a1' * 32}.scope\n",
        f"0::/kubepods/besteffort/pod1234/{'a1' * 32}/init",
    ],
)
def test_the_container_of_a_process(cgroup: str) -> None:
    assert container_of(cgroup) == "a1" * 6


def test_passwd_is_read_without_a_directory_service(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0::/root:/bin/sh\nbroken\nalice:x:1000:1000::/:/bin/sh\n")
    assert read_passwd(str(path)) == {0: "root", 1000: "alice"}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("iter_0001000", 1000),
        ("global_step100", 100),
        ("checkpoint-500", 500),
        ("step=7.ckpt", 7),
        ("epoch=1-step=250.ckpt", 250),
        ("model_300.pt", 300),
        ("model_300", None),
        ("runs", None),
    ],
)
def test_steps_in_names(name: str, step: int | None) -> None:
    assert step_of(name) == step


def checkpoint(root: Path, name: str, *files: str) -> None:
    (root / name).mkdir(parents=True)
    for file in files:
        (root / name / file).write_text("12345")


def test_the_newest_complete_checkpoint_by_the_framework_s_note(tmp_path: Path) -> None:
    checkpoint(tmp_path, "iter_0000100", "a.pt", "b.pt")
    checkpoint(tmp_path, "iter_0000200", "a.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100\n")
    found = newest_checkpoint(tmp_path)
    assert (found.newest_step, found.complete, found.bytes) == (100, True, 10)


def test_a_distributed_checkpoint_is_complete_with_its_metadata(tmp_path: Path) -> None:
    checkpoint(tmp_path, "step-100", "__0_0.distcp", ".metadata")
    checkpoint(tmp_path, "step-200", "__0_0.distcp")
    assert newest_checkpoint(tmp_path).newest_step == 100


def test_only_unfinished_checkpoints_are_not_complete(tmp_path: Path) -> None:
    checkpoint(tmp_path, "tmp-checkpoint-500", "trainer_state.json")
    found = newest_checkpoint(tmp_path)
    assert (found.newest_step, found.complete) == (500, False)


def test_no_checkpoint_is_unknown(tmp_path: Path) -> None:
    found = newest_checkpoint(tmp_path)
    assert (found.newest_step, found.complete, found.bytes) == (None, None, None)


def test_the_version_of_nccl_a_process_has_loaded(tmp_path: Path) -> None:
    site = tmp_path / "7" / "root" / "venv" / "site-packages"
    (site / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir(parents=True)
    line = "7f00-7f01 r-xp 0 08:01 5    /venv/site-packages/nvidia/nccl/lib/libnccl.so.2\n"
    (tmp_path / "7" / "maps").write_text(line)
    assert nccl_version(tmp_path, 7) == "2.28.9"


def test_a_process_without_nccl(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text("7f00-7f01 r-xp 0 08:01 5    /lib/libc.so.6\n")
    assert nccl_version(tmp_path, 7) is None


TEXT_PARSERS = (
    host_proc.parse_stat,
    host_proc.parse_meminfo,
    host_proc.parse_vmstat,
    host_proc.parse_loadavg,
    host_proc.parse_uptime,
    host_proc.parse_file_nr,
    host_proc.parse_diskstats,
    host_proc.parse_net_dev,
    host_proc.parse_mountstats,
    parse_stat,
    parse_driver,
    parse_cuda,
    parse_nccl_path,
    container_of,
    step_of,
)


@given(st.text() | st.text(alphabet="0123456789 :/\n\tcpu()kB."))
def test_any_text_is_survived(text: str) -> None:
    for parse in TEXT_PARSERS:
        parse(text)


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text("abc=1", max_size=9)))
def test_an_environment_is_read_back(environ: dict[str, str]) -> None:
    data = b"\0".join(f"{name}={value}".encode() for name, value in environ.items())
    assert parse_environ(data) == environ


@given(st.binary())
def test_any_environment_is_survived(data: bytes) -> None:
    assert isinstance(parse_environ(data), dict)
