"""``stethoscope agent``: what runs on a node."""

from pathlib import Path
from typing import Annotated

import typer

from stethoscope.schemas.errors import UsageError

LIVE = "live"
RECORDED = "replay:"


def agent(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The agent's configuration file (YAML).")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read once, print events as JSON Lines, end.")
    ] = False,
    reader: Annotated[str | None, typer.Option("--reader", help="This reader alone.")] = None,
    source: Annotated[
        str,
        typer.Option("--source", help="`live`, or `replay:FILE`: a recording as if it were live."),
    ] = LIVE,
    speed: Annotated[
        float, typer.Option("--speed", min=0, help="Times as fast as recorded; 0: all at once.")
    ] = 1.0,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", "-b", help="HOST:PORT[,HOST:PORT] in place of the file's."),
    ] = None,
    node: Annotated[str | None, typer.Option("--node", help="This node's name.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Holds the spool and the readers' positions.")
    ] = None,
    infiniband_root: Annotated[
        Path | None, typer.Option("--infiniband-root", help="Instead of /sys/class/infiniband.")
    ] = None,
    proc_root: Annotated[Path | None, typer.Option("--proc-root", help="Instead of /proc.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="The file that --reader reads.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="What --reader reads.")] = None,
) -> None:
    """Send what a node can tell to Kafka; what its readers lack is said on standard error."""
    if source.startswith(RECORDED):
        _play(source, speed, config, brokers)
        return
    if source != LIVE:
        msg = f"--source {source}: give {LIVE} or {RECORDED}FILE"
        raise UsageError(msg)
    from stethoscope.agents.overrides import Given
    from stethoscope.cli.agent_live import run_live, run_once

    given = Given(
        config=_text(config),
        node=node,
        brokers=brokers,
        state_dir=_text(state_dir),
        reader=reader,
        infiniband_root=_text(infiniband_root),
        proc_root=_text(proc_root),
        file=_text(file),
        url=url,
    )
    run_once(given) if once else run_live(given)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _play(source: str, speed: float, config: Path | None, brokers: str | None) -> None:
    from stethoscope.agents.config_file import load_agent_config
    from stethoscope.cli.agent_recorded import run_recorded
    from stethoscope.cli.kafka_settings import kafka_settings
    from stethoscope.schemas.config import Timing

    kafka = kafka_settings(load_agent_config(config).kafka, brokers)
    run_recorded(source, speed, kafka, Timing().reorder_secs)
