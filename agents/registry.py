"""The written list of readers; each is imported when it is built.

A reader's class takes ``(context, section)``, the section being ``AgentConfig``'s field of the
reader's name.
"""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from stethoscope.agents.reader import Context, Reader
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.errors import UsageError

READERS: dict[str, str] = {
    "gpu_nvml": "stethoscope.agents.gpu_nvml:GpuNvmlReader",
    "prometheus": "stethoscope.agents.prometheus:PrometheusReader",
    "ib_sysfs": "stethoscope.agents.ib_sysfs:IbSysfsReader",
    "kernel_log": "stethoscope.agents.kernel_log:KernelLogReader",
    "train_log": "stethoscope.agents.train_log:TrainLogReader",
    "host": "stethoscope.agents.host:HostReader",
    "slurm": "stethoscope.agents.slurm:SlurmReader",
    "kubernetes": "stethoscope.agents.kubernetes:KubernetesReader",
    "jobs_command": "stethoscope.agents.jobs_command:JobsCommandReader",
    "topology": "stethoscope.agents.topology:TopologyReader",
}


def build(name: str, context: Context, config: AgentConfig) -> Reader:
    """Make the reader of that name.

    Raises:
        UsageError: no reader of that name.
    """
    if name not in READERS:
        msg = f"no reader {name!r}; known are {', '.join(READERS)}"
        raise UsageError(msg)
    module, _, attribute = READERS[name].partition(":")
    factory = cast(Callable[[Context, object], Reader], getattr(import_module(module), attribute))
    return factory(context, getattr(config, name))


def enabled(config: AgentConfig) -> list[str]:
    """Names of the readers that the configuration switches on, in the order of the list."""
    return [name for name in READERS if getattr(config, name).enabled]
