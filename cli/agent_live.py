"""``stethoscope agent`` on a live node: the loop, or one read of each reader."""

import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path

import typer
from msgspec import Struct
from msgspec.structs import replace

from stethoscope.agents import registry
from stethoscope.agents.assembly import context_of
from stethoscope.agents.clock import SystemClock
from stethoscope.agents.config_file import load_agent_config
from stethoscope.agents.state import default_state_dir
from stethoscope.cli.kafka_settings import kafka_settings
from stethoscope.schemas.agent_config import AgentConfig, Target
from stethoscope.schemas.codec import encode_line
from stethoscope.schemas.errors import UsageError

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Given(Struct, frozen=True):
    """What the command line says on top of the configuration file; ``None``: nothing."""

    config: Path | None = None
    node: str | None = None
    brokers: str | None = None
    state_dir: Path | None = None
    reader: str | None = None
    infiniband_root: Path | None = None
    proc_root: Path | None = None
    file: Path | None = None
    url: str | None = None


def effective(given: Given) -> AgentConfig:
    """The file's configuration with the command line's on top.

    Raises:
        UsageError: the file, an option or a combination of options cannot be used.
    """
    config = load_agent_config(given.config)
    if given.node is not None:
        config = replace(config, node=given.node)
    config = replace(config, kafka=kafka_settings(config.kafka, given.brokers))
    if given.infiniband_root is not None:
        config = replace(config, ib_sysfs=replace(config.ib_sysfs, root=str(given.infiniband_root)))
    if given.proc_root is not None:
        config = replace(config, host=replace(config.host, proc_root=str(given.proc_root)))
    if given.reader is not None:
        config = _only(config, given.reader)
    if given.file is not None:
        config = _with_file(config, given.reader, str(given.file))
    if given.url is not None:
        config = _with_url(config, given.reader, given.url)
    return config


def run_once(given: Given) -> None:
    """Print the events of one read as JSON Lines, the readers' states on standard error.

    Raises:
        UsageError: no such reader, or a wrong option.
        typer.Exit: with 1 when a reader fails.
    """
    from stethoscope.agents.once import read_once

    _log_to_stderr()
    config = effective(given)
    failing = False
    names = registry.enabled(config)
    for reading in read_once(names, context_of(config), config, SystemClock()):
        for event in reading.events:
            sys.stdout.buffer.write(encode_line(event) + b"\n")
        sys.stdout.buffer.flush()
        explained = f": {reading.detail}" if reading.detail else ""
        count = f", {len(reading.events)} events" if reading.state == "ok" else ""
        typer.echo(f"{reading.reader}: {reading.state}{count}{explained}", err=True)
        failing = failing or reading.state == "failing"
    if failing:
        raise typer.Exit(1)


def run_live(given: Given) -> None:
    """Run the loop until SIGTERM.

    Raises:
        UsageError: configuration or state directory cannot be used.
    """
    from stethoscope.agents.service import Service

    _log_to_stderr()
    config = effective(given)
    configured = Path(config.state_dir) if config.state_dir else None
    state_dir = given.state_dir or configured or default_state_dir(dict(os.environ))
    Service(lambda: effective(given), given.config, state_dir, version("stethoscope")).run()


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT, stream=sys.stderr)
    # kafka-python reports every failed attempt; the agent says once that Kafka is away.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


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
        msg = f"--file needs --reader with one of {', '.join(['train_log', *with_file])}"
        raise UsageError(msg)
    return replace(config, **{str(reader): replace(section, file=file)})


def _with_url(config: AgentConfig, reader: str | None, url: str) -> AgentConfig:
    if reader == "kubernetes":
        return replace(config, kubernetes=replace(config.kubernetes, api_url=url))
    if reader in (None, "prometheus"):
        return replace(config, prometheus=replace(config.prometheus, targets=[Target(url=url)]))
    msg = "--url needs --reader prometheus or --reader kubernetes"
    raise UsageError(msg)
