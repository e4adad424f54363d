"""A simulated fabric of two switches and four nodes, read by the real tools."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.reader import Context
from stethoscope.agents.topology import TopologyReader
from stethoscope.schemas.agent_config import Topology
from stethoscope.schemas.events import SwitchLink, TopologyEvent

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so")
NETLIST = """Switch\t8 "leaf1"
[1]\t"node01"[1]
[2]\t"node02"[1]
[3]\t"leaf2"[3]
[4]\t"leaf2"[4]

Switch\t8 "leaf2"
[1]\t"Node03"[1]
[2]\t"node04"[1]
[3]\t"leaf1"[3]
[4]\t"leaf1"[4]

Hca\t2 "node01"
[1]\t"leaf1"[1]

Hca\t2 "node02"
[1]\t"leaf1"[2]

Hca\t2 "Node03"
[1]\t"leaf2"[1]

Hca\t2 "node04"
[1]\t"leaf2"[2]
"""
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("ibsim") is None
        or shutil.which("ibnetdiscover") is None
        or not LIBRARY.exists(),
        reason="ibsim-utils and infiniband-diags are not installed",
    ),
]


@pytest.fixture
def fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    (tmp_path / "net").write_text(NETLIST)
    simulator = subprocess.Popen(
        ["ibsim", "-s", "net"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    monkeypatch.chdir(tmp_path)  # the tools find the simulator by a socket named after the folder
    monkeypatch.setenv("LD_PRELOAD", str(LIBRARY))
    monkeypatch.setenv("SIM_HOST", "node01")
    try:
        wait_until_it_answers()
        yield simulator
    finally:
        simulator.kill()
        simulator.communicate()


def wait_until_it_answers() -> None:
    for _ in range(100):
        done = subprocess.run(
            ["ibnetdiscover"], capture_output=True, check=False, env={**os.environ}, timeout=60
        )
        if done.returncode == 0:
            return
        time.sleep(0.1)
    pytest.fail("ibsim does not answer")


def read(source: str) -> TopologyEvent:
    config = Topology(source=source)  # type: ignore[arg-type]  # the parameter is one of them
    reader = TopologyReader(Context(cluster="c"), config)
    reader.probe()
    (event,) = reader.read(FakeClock().now())
    assert isinstance(event, TopologyEvent)
    return event


@pytest.mark.parametrize("source", ["ibnetdiscover", "iblinkinfo"])
def test_cables_are_found_by_each_tool(source: str, fabric: "subprocess.Popen[bytes]") -> None:
    event = read(source)
    assert {(x.node, x.port, x.switch, x.switch_port) for x in event.links} == {
        ("node01", 1, "leaf1", 1),
        ("node02", 1, "leaf1", 2),
        ("node03", 1, "leaf2", 1),
        ("node04", 1, "leaf2", 2),
    }
    assert sorted(event.switch_links, key=str) == [
        SwitchLink("leaf1", 3, "leaf2", 3),
        SwitchLink("leaf1", 4, "leaf2", 4),
    ]


def test_a_pulled_cable_is_gone(fabric: "subprocess.Popen[bytes]") -> None:
    assert fabric.stdin is not None
    fabric.stdin.write(b'Unlink "node02"[1]\n')
    for _ in range(100):
        nodes = {link.node for link in read("ibnetdiscover").links}
        if "node02" not in nodes:
            break
        time.sleep(0.1)
    assert nodes == {"node01", "node03", "node04"}
