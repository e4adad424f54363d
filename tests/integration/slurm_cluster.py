"""A real Slurm on loopback: munged, slurmctld and two slurmd with eight made-up GPUs each."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "squeue", "scontrol", "sbatch", "scancel")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=1
MinJobAge=300
SlurmdParameters=config_overrides
NodeName=gpu[01-02] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] \
CPUs=8 RealMemory=1000 Gres=gpu:h100:8 State=UNKNOWN
PartitionName=train Nodes=gpu[01-02] Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """What of Slurm is not installed here."""
    return [name for name in PROGRAMS if _where(name) is None]


class SlurmCluster:
    """Started by ``start``, ended by ``stop``; ``conf`` is what clients need as ``SLURM_CONF``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in ("munge", "state", "spool.gpu01", "spool.gpu02", "devices"):
            (self.folder / name).mkdir(mode=0o700)
        for index in range(8):
            (self.folder / "devices" / f"gpu{index}").touch()
        ports, host = _free_ports(3), socket.gethostname().split(".")[0]
        self.conf.write_text(CONFIGURATION.format(folder=self.folder, ports=ports, host=host))
        files = f"{self.folder}/devices/gpu[0-7]"
        (self.folder / "gres.conf").write_text(
            f"NodeName=gpu[01-02] Name=gpu Type=h100 File={files}\n"
        )
        self._start_munge()
        self._spawn("controller", "slurmctld", "-D", "-f", str(self.conf))
        self.start_node("gpu01")
        self.start_node("gpu02")
        self._wait_for_nodes(2)

    def start_node(self, name: str) -> None:
        self._spawn(name, "slurmd", "-D", "-N", name, "-f", str(self.conf))

    def kill_node(self, name: str) -> None:
        """End its daemon, and have the controller notice at once."""
        self._end(name)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=lost power")

    def run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [_where(program) or program, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "SLURM_CONF": str(self.conf)},
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stderr}"
        return done.stdout

    def submit(self, *options: str, script: str = "sleep 300") -> str:
        text = f"#!/bin/sh\n{script}\n"
        path = self.folder / "job.sh"
        path.write_text(text)
        output = f"--output={self.folder}/job-%j.out"
        return self.run("sbatch", "--parsable", output, *options, str(path)).strip()

    def stop(self) -> None:
        if "controller" in self._daemons:
            self._cancel_all()
        for name in reversed(list(self._daemons)):
            self._end(name)

    def _cancel_all(self) -> None:
        """What still runs would outlive its daemons."""
        running = self.run("squeue", "-h", "-o", "%A").split()
        if running:
            self.run("scancel", "--signal=KILL", *running)
            self.run("scancel", *running)
            _wait(lambda: not self.run("squeue", "-h"), "empty queue", self.folder)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        folder.chmod(0o711)
        options = [f"--{name}={folder / name.replace('-file', '')}" for name in MUNGE_FILES]
        self._spawn("munge", "munged", "--foreground", "--force", *options)
        _wait(lambda: (folder / "socket").exists(), "munged's socket", self.folder)

    def _wait_for_nodes(self, count: int) -> None:
        def ready() -> bool:
            try:
                return self.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * count
            except AssertionError:
                return False

        _wait(ready, "idle nodes", self.folder)

    def _spawn(self, name: str, program: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.stderr").open("wb")
        with log:
            self._daemons[name] = subprocess.Popen(
                [_where(program) or program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "SLURM_CONF": str(self.conf)},
            )

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(timeout=10)


MUNGE_FILES = ("key-file", "socket", "pid-file", "seed-file", "log-file")


def _where(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    """Free ports in a row, as the range of the nodes' ports must be."""
    for first in range(20_000 + os.getpid() % 5000, 32_000, count):
        if all(_is_free(first + index) for index in range(count)):
            return [first + index for index in range(count)]
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait(condition: object, what: str, folder: Path, timeout_secs: float = 30.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_secs
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
                for path in sorted(folder.iterdir())
                if path.suffix in {".log", ".stderr"}
            )
            raise AssertionError(f"no {what} within {timeout_secs:g} s\n{logs}")
        time.sleep(0.1)
