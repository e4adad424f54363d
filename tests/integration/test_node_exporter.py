"""A real node_exporter: every metric that our mapping reads of it arrives under its own name."""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.prometheus import PrometheusReader
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import Prometheus, Target
from stethoscope.schemas.events import Event, IbEvent, NodeEvent
from stethoscope.schemas.metrics import registry

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("prometheus-node-exporter") is None, reason="node_exporter is not installed"
    ),
]
# What this machine need not have: a BMC, an IB port, a swap of its own.
NOT_EVERYWHERE = {"inlet_temp_celsius", "ib_port_count"}
IB_NAMES = {
    "symbol_error": 1,
    "link_error_recovery": 2,
    "link_downed": 3,
    "port_rcv_errors": 4,
    "port_rcv_remote_physical_errors": 5,
    "port_rcv_switch_relay_errors": 6,
    "port_xmit_discards": 7,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 9,
    "local_link_integrity_errors": 10,
    "excessive_buffer_overrun_errors": 11,
    "VL15_dropped": 12,
    "port_xmit_data": 13,
    "port_rcv_data": 14,
    "port_xmit_packets": 15,
    "port_rcv_packets": 16,
    "unicast_xmit_packets": 17,
    "unicast_rcv_packets": 18,
    "multicast_xmit_packets": 19,
    "multicast_rcv_packets": 20,
    "port_xmit_wait": 21,
}


@contextmanager
def node_exporter(*arguments: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/metrics"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(url, timeout=30).close()
                break
            except urllib.error.URLError:
                assert process.poll() is None, "node_exporter ended"
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def scrape_twice(url: str, work: Callable[[], None] = lambda: None) -> list[Event]:
    target = Target(url=url, timeout_secs=60)
    reader = PrometheusReader(Context(node="n1"), Prometheus(targets=[target]))
    reader.probe()
    clock = FakeClock()
    reader.read(clock.now())
    work()
    clock.advance(1)
    return reader.read(clock.now())


def test_every_mapped_host_metric_arrives(tmp_path: Path) -> None:
    zombie = subprocess.Popen(["true"])
    arguments = (
        "--collector.meminfo_numa",
        "--collector.processes",
        "--collector.mountstats",
        "--collector.filesystem.mount-points-exclude=^/(proc|sys|run)($|/)",
        "--collector.filesystem.fs-types-exclude=^(proc|sysfs|nsfs)$",
    )
    with node_exporter(*arguments) as url:
        (node,) = scrape_twice(url, lambda: write_to_disk(tmp_path / "file"))
        zombie.wait()
    assert isinstance(node, NodeEvent)
    mapped = {n for n, m in registry().items() if m.scope == "host" and m.node_exporter}
    missing = mapped - node.metrics.keys() - NOT_EVERYWHERE
    assert not missing
    assert node.metrics["host_memory_total_bytes"] == pytest.approx(total_memory_bytes(), rel=0.01)
    assert 0 <= (node.metrics["cpu_busy_ratio"] or 0) <= 1
    assert any(m.path == "/" and m.used_ratio is not None for m in node.mounts)


def test_every_infiniband_counter_arrives_as_sysfs_has_it(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port.parents[1] / "board_id").write_text("MT_1\n")
    (port.parents[1] / "fw_ver").write_text("28.41.1000\n")
    (port.parents[1] / "hca_type").write_text("MT4129\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port / "phys_state").write_text("5: LinkUp\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    for name, value in IB_NAMES.items():
        (port / "counters" / name).write_text(f"{value}\n")
    arguments = ("--collector.disable-defaults", "--collector.infiniband")
    with node_exporter(*arguments, f"--path.sysfs={tmp_path}") as url:
        ib, node = scrape_twice(url)
    assert isinstance(ib, IbEvent)
    assert isinstance(node, NodeEvent)
    (only,) = ib.ports
    assert (only.device, only.state, only.phys_state) == ("mlx5_0", "ACTIVE", "LinkUp")
    assert only.rate_gbps == 400
    assert {name: column[0] for name, column in ib.counters.items()} == IB_NAMES
    assert node.metrics["ib_port_count"] == 1


def write_to_disk(path: Path) -> None:
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())


def total_memory_bytes() -> int:
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemTotal:")[1].split()[0]) * 1024
