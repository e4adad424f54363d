"""``stethoscope agent``: what runs on a node."""

from pathlib import Path
from typing import Annotated

import typer

from stethoscope.cli.agent_recorded import PREFIX, run_recorded
from stethoscope.cli.kafka_settings import kafka_from_file, kafka_settings
from stethoscope.schemas.config import Timing
from stethoscope.schemas.errors import UsageError


def agent(
    source: Annotated[
        str, typer.Option("--source", help="`replay:FILE` plays a recording as if it were live.")
    ],
    speed: Annotated[
        float, typer.Option("--speed", min=0, help="Times as fast as recorded; 0: all at once.")
    ] = 1.0,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Agent's file.")] = None,
    brokers: Annotated[
        str | None, typer.Option("--brokers", "-b", help="HOST:PORT[,HOST:PORT].")
    ] = None,
) -> None:
    """Send what a node can tell to Kafka."""
    if not source.startswith(PREFIX):
        msg = f"--source {source}: give {PREFIX}FILE"
        raise UsageError(msg)
    kafka = kafka_settings(kafka_from_file(config), brokers)
    run_recorded(source, speed, kafka, Timing().reorder_secs)
