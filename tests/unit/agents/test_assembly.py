"""Which readers run where."""

from importlib import import_module

import pytest

from stethoscope.agents import registry
from stethoscope.agents.assembly import GROUPS, build_loop, canonical_node, groups_of, in_use
from stethoscope.agents.clock import FakeClock
from stethoscope.agents.outbox import Outbox
from stethoscope.agents.reader import Context
from stethoscope.agents.workers import MAX_PROCESSES
from stethoscope.schemas.agent_config import (
    AgentConfig,
    Host,
    KernelLog,
    Prometheus,
    Target,
    Topology,
    TrainLog,
)


def test_at_most_three_processes() -> None:
    assert len(set(GROUPS.values())) <= MAX_PROCESSES
    assert set(GROUPS) < set(registry.READERS)


@pytest.mark.parametrize("name", registry.READERS)
def test_readers_say_the_same_of_their_hazard(name: str) -> None:
    module, _, attribute = registry.READERS[name].partition(":")
    hazardous = getattr(getattr(import_module(module), attribute), "hazardous", None)
    if hazardous is not None and hazardous:
        assert name in GROUPS


def test_a_plain_node_needs_two_processes() -> None:
    assert set(groups_of(AgentConfig()).values()) == {"devices", "files"}


def test_readers_without_a_source_are_not_run() -> None:
    assert "prometheus" not in in_use(AgentConfig())
    told = AgentConfig(
        prometheus=Prometheus(targets=[Target(url="http://127.0.0.1:9400/metrics")]),
        train_log=TrainLog(globs=["/logs/*.out"]),
    )
    assert {"prometheus", "train_log"} <= set(in_use(told))


def test_standard_input_is_read_here() -> None:
    assert "train_log" not in groups_of(AgentConfig(train_log=TrainLog(stdin=True)))


def test_a_loop_has_a_task_for_each_reader_at_its_position() -> None:
    config = AgentConfig(
        host=Host(enabled=False),
        kernel_log=KernelLog(period_secs=2.0),
        topology=Topology(enabled=True, timeout_secs=60.0),
    )
    positions = {"kernel_log": "7", "slurm": "of a reader that is off"}
    ahead = {"kernel_log": ["8"]}
    loop, pool = build_loop(Context(node="n"), config, FakeClock(), Outbox(100), positions, ahead)
    assert set(loop.tasks) == {"gpu_nvml", "ib_sysfs", "kernel_log", "topology"}
    assert loop.tasks["kernel_log"].position == "7"
    assert loop.tasks["kernel_log"].ahead == ["8"]
    assert loop.tasks["kernel_log"].own_period_secs == 2.0
    assert loop.tasks["topology"].deadline_secs == config.loop.deadline_secs + 180
    assert pool.pids() == []
    assert loop.close() == {"kernel_log": "7"}


@pytest.mark.parametrize(
    ("hostname", "node"), [("GPU-Node01.hpc.example.edu", "gpu-node01"), ("n1", "n1")]
)
def test_a_hostname_becomes_a_canonical_name(hostname: str, node: str) -> None:
    assert canonical_node(hostname) == node
