"""A loop built from a configuration: which readers run where, and with what deadlines."""

import os

from stethoscope.agents import registry
from stethoscope.agents.calls import Setup
from stethoscope.agents.clock import Clock, read_boot_id
from stethoscope.agents.loop import Loop
from stethoscope.agents.outbox import Outbox
from stethoscope.agents.reader import Context
from stethoscope.agents.schedule import Task, first_base_ns
from stethoscope.agents.workers import WorkerPool
from stethoscope.schemas.agent_config import AgentConfig

# What can hang together shares a process: a driver; file systems; devices, commands and networks.
GROUPS: dict[str, str] = {
    "gpu_nvml": "gpu",
    "host": "files",
    "train_log": "files",
    "ib_sysfs": "tools",
    "prometheus": "tools",
    "slurm": "tools",
    "kubernetes": "tools",
    "jobs_command": "tools",
    "topology": "tools",
}
# A reader that runs commands may wait for several of them, each with its own limit.
COMMANDS_A_READ = 3


def context_of(config: AgentConfig) -> Context:
    """Who this agent says it is."""
    node = config.node or canonical_node(os.uname().nodename)
    return Context(cluster=config.cluster, node=node, boot_id=read_boot_id())


def canonical_node(hostname: str) -> str:
    """Lower case, without the domain.

    >>> canonical_node("GPU-Node01.hpc.example.edu")
    'gpu-node01'
    """
    return hostname.split(".")[0].lower()


def groups_of(config: AgentConfig) -> dict[str, str]:
    """Readers that run in worker processes, and which share one."""
    names = registry.enabled(config)
    return {name: GROUPS[name] for name in names if name in GROUPS and not _needs_us(name, config)}


def build_loop(
    context: Context, config: AgentConfig, clock: Clock, outbox: Outbox, positions: dict[str, str]
) -> Loop:
    """A loop of the readers that the configuration switches on, each at its position."""
    now_ns = clock.now().monotonic_ns
    remote = groups_of(config)
    tasks = [_task(name, context, config, now_ns) for name in registry.enabled(config)]
    for task in tasks:
        task.position = positions.get(task.name)
    local = {
        task.name: registry.build(task.name, context, config)
        for task in tasks
        if task.name not in remote
    }
    setup = Setup(context, config, {name: registry.READERS[name] for name in remote})
    return Loop(context, config, clock, outbox, local, WorkerPool(setup, remote), tasks)


def _task(name: str, context: Context, config: AgentConfig, now_ns: int) -> Task:
    section = getattr(config, name)
    period_secs = float(section.period_secs)
    command_secs = float(
        getattr(section, "timeout_secs", 0.0) or getattr(section, "tool_timeout_secs", 0.0)
    )
    return Task(
        name=name,
        own_period_secs=period_secs,
        deadline_secs=config.loop.deadline_secs + COMMANDS_A_READ * command_secs,
        base_ns=first_base_ns(f"{context.node}/{name}", now_ns, period_secs),
    )


def _needs_us(name: str, config: AgentConfig) -> bool:
    """Standard input belongs to this process."""
    return name == "train_log" and config.train_log.stdin
