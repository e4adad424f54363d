"""Every parser that reads what others wrote, with seeds and the errors it may raise."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from stethoscope.agents import (
    bench_formats,
    fabric,
    host_checkpoints,
    host_numa,
    host_proc,
    host_processes,
    host_versions,
    ib_sysfs,
    journal,
    kernel_text,
    kmsg,
    kube_pods,
    line_time,
    optics,
    prometheus_page,
    prometheus_rules,
    redact,
    segment,
    slurm_json,
    slurm_text,
    train_lines,
    train_rules,
)
from stethoscope.agents.clock import FakeClock
from stethoscope.agents.prometheus import PrometheusReader
from stethoscope.agents.reader import Context
from stethoscope.schemas import codec, line_rank, names, nodelist
from stethoscope.schemas.agent_config import Prometheus, Target
from stethoscope.schemas.errors import BadEvent, ConfigError

NUMA_MAPS = """55d0c8a00000 default heap anon=100 dirty=100 N0=60 N1=40 kernelpagesize_kB=4
7f0000000000 bind:1 file=/dev/shm/a\\040b anon=2 dirty=2 N1=2 kernelpagesize_kB=2048
"""
DATA = Path(__file__).parents[1] / "data"
NOW_NS = 1_795_968_000_000_000_000


class FuzzTarget(NamedTuple):
    """A parser of bytes, inputs to start from, and what it says of bad input."""

    name: str
    parse: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    may_raise: tuple[type[Exception], ...] = ()


def text(
    name: str,
    parse: Callable[[str], object],
    *seeds: str,
    may_raise: tuple[type[Exception], ...] = (),
) -> FuzzTarget:
    """A parser of text: bytes reach it as a reader decodes them."""
    return FuzzTarget(
        name,
        lambda data: parse(data.decode("utf-8", errors="replace")),
        tuple(seed.encode() for seed in seeds),
        may_raise,
    )


def _data(name: str) -> str:
    return (DATA / name).read_text()


def _prometheus() -> Callable[[str], object]:
    target = Target(url="http://127.0.0.1:1/metrics")
    reader = PrometheusReader(Context(), Prometheus(targets=[target]))
    reader.probe()
    clock = FakeClock()

    def parse(page: str) -> object:
        clock.advance(1)
        return reader.events(target, page, clock.now())

    return parse


def _pod_time(pod: bytes) -> object:
    decoded = msgspec.json.decode(pod, type=kube_pods.Pod)
    return kube_pods.pod_state(decoded), kube_pods.job_name(decoded), kube_pods.started_ns(decoded)


def _line_filter() -> Callable[[str], object]:
    rules = train_rules.RULES
    return partial(train_rules.rule_of, rules=rules)


XID = "[430954.509105] NVRM: Xid (PCI:0000:52:00): 48, pid='<unknown>', name=<unknown>, An error"
STEP = "[2026-11-29 16:00:00] iteration 100/ 2000 | lm loss: 2.1E+00 | grad norm: 1.5 |"
SQUEUE = json.dumps(
    {
        "jobs": [
            {
                "job_id": 7,
                "job_state": ["RUNNING"],
                "nodes": "gpu[01-02]",
                "gres_detail": ["gpu:h100:3(IDX:0-1,6)"],
                "time_limit": {"set": True, "number": 60},
            }
        ]
    }
)
POD = json.dumps(
    {
        "metadata": {"name": "p", "labels": {"job-name": "j"}},
        "status": {"phase": "Running", "startTime": "2026-11-29T16:00:00Z"},
    }
)
MOUNTSTATS = "device f:/x mounted on /a\\040b with fstype nfs4\n\tREAD: 1 2 3 4 5 6 7 8 9\n"
BURN = "100.0%  proc'd: 2 (420 Gflop/s) - 1 (3 Gflop/s)   errors: 0 - 7   temps: 61 C - -- \n"
DCGM = json.dumps({"DCGM Diagnostic": {"tests": [{"name": "a", "results": [{"status": "Pass"}]}]}})
FIO = json.dumps({"fio version": "3", "jobs": [{"read": {"io_bytes": 1, "bw_bytes": 5}}]})
CABLES = 'Switch\t8 "S-1"\t# "S1"\n[1]\t"H-2"[1](2) # "H1"\nCa\t1 "H-2"\t# "H1"\n[1](2) "S-1"[1]\n'
LINKS = '0x1 "H1" 0 1[ ] ==( 4X 2.5 Gbps Active/ LinkUp)==> 0x2 0 2[ ] "S2" ( )\n'
EVENT = '{"kind":"gpu","time_unix_ns":1,"node":"n","devices":[],"metrics":{"power_watts":[1]}}'

TARGETS: tuple[FuzzTarget, ...] = (
    text("bench.nccl_tests", bench_formats.parse_nccl_tests, _data("nccl_tests.txt")),
    text("bench.ib_write_bw", bench_formats.parse_ib_write_bw, _data("ib_write_bw.txt")),
    text("bench.dcgm_diag", bench_formats.parse_dcgm_diag, DCGM),
    text("bench.fio", bench_formats.parse_fio, FIO),
    text("bench.gpu_burn", bench_formats.parse_gpu_burn, BURN),
    text("fabric.ibnetdiscover", fabric.parse_ibnetdiscover, CABLES),
    text("fabric.iblinkinfo", fabric.parse_iblinkinfo, LINKS),
    text(
        "fabric.slurm",
        fabric.parse_slurm_topology,
        "SwitchName=s1 Nodes=n[1-3]\n",
        may_raise=(ValueError,),
    ),
    text("fabric.csv", fabric.parse_csv, "node,rack\nn1,r1\n", may_raise=(ValueError,)),
    text("names", lambda t: names.NodeNames(t.split()).resolve(t), "n1.a n1.b N2."),
    text("nodelist", nodelist.expand, "b04-[09-10],rack[0-1]_blade[0-1]", may_raise=(ValueError,)),
    text("host.stat", host_proc.parse_stat, "cpu  1 0 1 6 2 0 0 0 0 0\nctxt 5\n"),
    text("host.meminfo", host_proc.parse_meminfo, "MemTotal:  16 kB\n"),
    text("host.vmstat", host_proc.parse_vmstat, "oom_kill 3\n"),
    text("host.loadavg", host_proc.parse_loadavg, "0.52 0.58 0.59 1/1028 12345"),
    text("host.uptime", host_proc.parse_uptime, "1234.5 9.9"),
    text("host.file_nr", host_proc.parse_file_nr, "1000 0 4000"),
    text("host.diskstats", host_proc.parse_diskstats, "259 0 nvme0n1 1 0 1 2 3 0 3 4 0 5 6\n"),
    text("host.net_dev", host_proc.parse_net_dev, "eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"),
    text("host.mountstats", host_proc.parse_mountstats, MOUNTSTATS),
    text("host.process_stat", host_processes.parse_stat, "7 (a) b) S 1 " + "0 " * 20),
    text("host.last_cpu", host_processes.last_cpu, "7 (a) b) S 1 " + "3 " * 40),
    text("host.cpu_list", host_numa.parse_cpu_list, "0-3,8,64-127\n"),
    text("host.numa_maps", host_numa.parse_numa_maps, NUMA_MAPS),
    FuzzTarget("host.environ", host_processes.parse_environ, (b"RANK=1\0SLURM_JOB_ID=7\0",)),
    text("host.container", host_processes.container_of, f"0::/docker-{'a1' * 32}.scope"),
    text("host.step", host_checkpoints.step_of, "epoch=1-step=250.ckpt"),
    text("host.driver", host_versions.parse_driver, "NVRM Kernel Module  580.159.04  R"),
    text("host.cuda", host_versions.parse_cuda, '{"cuda":{"version":"13.0.1"}}'),
    text("host.nccl", host_versions.parse_nccl_path, "7f r-xp 0 /usr/lib/libnccl.so.2.28.9\n"),
    text("ib.state", ib_sysfs.parse_state, "4: ACTIVE\n"),
    text("ib.rate", ib_sysfs.parse_rate_gbps, "400 Gb/sec (4X NDR)\n"),
    text("ib.gid", ib_sysfs.parse_gid, "fe80:0000:0000:0000:0002:c903:00ab:cdef"),
    FuzzTarget("ib.counter", ib_sysfs.parse_counter, (b"17\n", b"N/A (no PMA)")),
    text(
        "optics.mlxlink",
        optics.parse_mlxlink,
        "Rx Power Current [dBm] : 1.39,-2.5 [-10..6]\n",
        "Rx Power Current [dBm] :\x1f1.39,-2.5 [-10..6]\n",  # once found by this fuzzer
    ),
    text("optics.module", optics.parse_ethtool_module, "Module temperature : 45.31 degrees C\n"),
    text("optics.statistics", optics.parse_ethtool_statistics, "     rx_prio3_pause: 17\n"),
    text("prometheus.page", _prometheus(), _data("dcgm_exporter_pods.txt"), "node_load1 1\n"),
    text(
        "prometheus.lines",
        lambda t: prometheus_page.parse_page(t, frozenset({"a", "b"})),
        'a{x="1"} 5\nb 6 17\n',
    ),
    text(
        "prometheus.selector",
        prometheus_rules.parse_selector,
        'a{x=~"1|2",y!="3"}',
        may_raise=(ConfigError,),
    ),
    FuzzTarget("journal", journal.parse_entry, (b'{"MESSAGE":"x","__CURSOR":"c"}',)),
    FuzzTarget("kmsg", kmsg.parse_record, (b"4,376,29770414,c;NVRM: Xid (PCI:0): 13, x\n",)),
    text("kernel.message", kernel_text.message_of, XID, "<4>" + XID),
    text("kernel.matters", kernel_text.matters, XID),
    text("line_time", lambda t: line_time.line_time(t, NOW_NS), STEP, "Feb  6 23:59:58 host x"),
    text("line_time.boot", line_time.secs_since_boot_ns, XID),
    text("redact", redact.redact, "token=abcdef password: hunter2 Bearer abc.def.ghi"),
    FuzzTarget("segment", lambda d: list(segment.parse_segment(d)), (b"\0" * 64,)),
    FuzzTarget("train.clean", train_lines.clean, (b"\x1b[32mstep 1\x1b[0m loss \xff",)),
    text("line_rank", line_rank.rank_of, "3: [default1]:[rank9]: loss"),
    text("train.rule", _line_filter(), STEP, "Traceback (most recent call last):"),
    FuzzTarget("slurm.queue", slurm_json.parse_queue, (SQUEUE.encode(),), (ValueError,)),
    text("slurm.gpus", slurm_json.gpu_indices, "gpu:h100:3(IDX:0-1,6)"),
    text("slurm.jobs", slurm_text.parse_jobs, "JobId=7 JobState=RUNNING NodeList=n[1-2]\n"),
    text("slurm.squeue", slurm_text.parse_squeue, "7|RUNNING|n[1-2]|1:00:00\n"),
    text("slurm.sacct", slurm_text.parse_sacct, "FAILED|1:0|2026-11-29T16:00:00\n"),
    text("slurm.nodes", slurm_text.parse_nodes, "NodeName=n1 State=IDLE+DRAIN Reason=x\n"),
    text("slurm.time", slurm_text.parse_time, "2026-11-29T16:00:00"),
    text("slurm.duration", slurm_text.parse_duration, "1-02:03:04"),
    FuzzTarget("kubernetes.pod", _pod_time, (POD.encode(),), (msgspec.DecodeError,)),
    text("kubernetes.time", kube_pods.parse_time, "2026-11-29T16:00:00Z"),
    FuzzTarget("event.line", codec.decode_line, (EVENT.encode(),), (BadEvent,)),
    FuzzTarget("event.message", codec.decode_message, (b"\x82\xa4kind",), (BadEvent,)),
)
