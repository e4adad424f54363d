"""The agent's configuration file with what the command line says on top."""

import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from stethoscope.agents import registry
from stethoscope.agents.config_file import load_agent_config
from stethoscope.agents.state import default_state_dir
from stethoscope.schemas.agent_config import AgentConfig, Target
from stethoscope.schemas.errors import UsageError


class Given(Struct, frozen=True):
    """What the command line says on top of the configuration file; ``None``: nothing."""

    config: str | None = None
    node: str | None = None
    brokers: str | None = None
    state_dir: str | None = None
    reader: str | None = None
    infiniband_root: str | None = None
    proc_root: str | None = None
    file: str | None = None
    url: str | None = None


def effective(given: Given) -> AgentConfig:
    """The file's configuration with the command line's on top.

    Raises:
        UsageError: the file, an option or a combination of options cannot be used.
    """
    config = load_agent_config(Path(given.config) if given.config else None)
    if given.node is not None:
        config = replace(config, node=given.node)
    if given.brokers is not None:
        config = replace(config, kafka=replace(config.kafka, brokers=_brokers(given.brokers)))
    if given.infiniband_root is not None:
        config = replace(config, ib_sysfs=replace(config.ib_sysfs, root=given.infiniband_root))
    if given.proc_root is not None:
        config = replace(
            config,
            host=replace(config.host, proc_root=given.proc_root),
            gpu_nvml=replace(config.gpu_nvml, proc_root=given.proc_root),
        )
    if given.reader is not None:
        config = _only(config, given.reader)
    if given.file is not None:
        config = _with_file(config, given.reader, given.file)
    if given.url is not None:
        config = _with_url(config, given.reader, given.url)
    return config


def state_dir_of(given: Given, config: AgentConfig) -> Path:
    """Where the state goes: the command line's word, the file's, or the default."""
    told = given.state_dir or config.state_dir
    return Path(told) if told else default_state_dir(dict(os.environ))


def _brokers(text: str) -> list[str]:
    named = [broker.strip() for broker in text.split(",") if broker.strip()]
    if not named:
        msg = "--brokers names no broker; give HOST:PORT[,HOST:PORT]"
        raise UsageError(msg)
    return named


def _only(config: AgentConfig, reader: str) -> AgentConfig:
    """That reader switched on, all others off."""
    if reader not in registry.READERS:
        from stethoscope.schemas.strict_yaml import did_you_mean

        msg = f"--reader {reader}: no such reader; {did_you_mean(reader, registry.READERS)}"
        raise UsageError(msg)
    sections = {n: replace(getattr(config, n), enabled=n == reader) for n in registry.READERS}
    return replace(config, **sections)


def _with_file(config: AgentConfig, reader: str | None, file: str) -> AgentConfig:
    if reader == "train_log":
        return replace(config, train_log=replace(config.train_log, globs=[file]))
    section = getattr(config, reader) if reader else None
    if section is None or not hasattr(section, "file"):
        with_file = [n for n in registry.READERS if hasattr(getattr(config, n), "file")]
        why = f"; {reader} reads no file" if reader else ""
        msg = f"--file needs --reader with one of {', '.join(['train_log', *with_file])}{why}"
        raise UsageError(msg)
    return replace(config, **{str(reader): replace(section, file=file)})


def _with_url(config: AgentConfig, reader: str | None, url: str) -> AgentConfig:
    if reader == "kubernetes":
        return replace(config, kubernetes=replace(config.kubernetes, api_url=url))
    if reader in (None, "prometheus"):
        return replace(config, prometheus=replace(config.prometheus, targets=[Target(url=url)]))
    msg = "--url needs --reader prometheus or --reader kubernetes"
    raise UsageError(msg)
