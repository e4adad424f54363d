"""A loop built from a configuration: which readers run where, and with what deadlines."""

import os

from stethoscope.agents import registry
from stethoscope.agents.calls import Setup
from stethoscope.agents.clock import Clock, read_boot_id
from stethoscope.agents.loop import Loop
from stethoscope.agents.outbox import Outbox
from stethoscope.agents.reader import Context
from stethoscope.agents.runner import Runner, ThreadRunner
from stethoscope.agents.schedule import Task, first_base_ns
from stethoscope.agents.workers import WorkerPool
from stethoscope.schemas.agent_config import AgentConfig

# Readers of one group share a process: 20 MB each. ``network``, whose answers may take a minute,
# starts only where one of its readers is in use.
GROUPS: dict[str, str] = {
    "gpu_nvml": "devices",
    "ib_sysfs": "devices",
    "host": "files",
    "train_log": "files",
    "prometheus": "network",
    "slurm": "network",
    "kubernetes": "network",
    "jobs_command": "network",
    "topology": "network",
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


def in_use(config: AgentConfig) -> list[str]:
    """Readers that are switched on and have been told what to read, where they must be."""
    train_log = config.train_log
    idle = {
        "prometheus": not config.prometheus.targets,
        "train_log": not (train_log.globs or train_log.units or train_log.stdin),
    }
    return [name for name in registry.enabled(config) if not idle.get(name, False)]


def groups_of(config: AgentConfig) -> dict[str, str]:
    """Readers that run in worker processes, and which share one."""
    ours = {"train_log"} if config.train_log.stdin else set()  # standard input is this process's
    return {name: GROUPS[name] for name in in_use(config) if name in GROUPS and name not in ours}


def build_loop(
    context: Context,
    config: AgentConfig,
    clock: Clock,
    outbox: Outbox,
    positions: dict[str, str],
    ahead: dict[str, list[str]] | None = None,
) -> tuple[Loop, WorkerPool]:
    """A loop of the readers that the configuration switches on, each at its position.

    ``ahead``: see ``StateDir.load_ahead``. The pool beside it is the loop's own, for a look at its
    counts.
    """
    now_ns = clock.now().monotonic_ns
    remote = groups_of(config)
    tasks = [_task(name, context, config, now_ns) for name in in_use(config)]
    for task in tasks:
        task.position = positions.get(task.name)
        task.ahead = (ahead or {}).get(task.name, [])
    local = {
        task.name: registry.build(task.name, context, config)
        for task in tasks
        if task.name not in remote
    }
    setup = Setup(context, config, {name: registry.READERS[name] for name in remote})
    pool, thread = WorkerPool(setup, remote), ThreadRunner(local)
    runners: dict[str, Runner] = {t.name: pool if t.name in remote else thread for t in tasks}
    return Loop(context, config, clock, outbox, runners, tasks), pool


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
        base_ns=first_base_ns(context.node, now_ns, period_secs),
    )
