"""``stethoscope topics``: make the topics, or say what is wrong with them."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stethoscope.cli.kafka_settings import kafka_from_file, kafka_settings
from stethoscope.schemas.config import Kafka

topics_app = typer.Typer(
    name="topics", help="Create or check the Kafka topics.", no_args_is_help=True
)

Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file (its `kafka` section).")
]
Brokers: TypeAlias = Annotated[
    str | None, typer.Option("--brokers", "-b", help="HOST:PORT[,HOST:PORT] instead of the file's.")
]
Partitions: TypeAlias = Annotated[
    int | None, typer.Option("--partitions", "-p", help="Partitions of telemetry, logs, job views.")
]


@topics_app.command()
def create(config: Config = None, brokers: Brokers = None, partitions: Partitions = None) -> None:
    """Create the topics that are missing. Never changes one that exists."""
    from stethoscope.streams import topics

    kafka = kafka_settings(kafka_from_file(config), brokers, partitions)
    created = topics.create(kafka)
    for name in created:
        typer.echo(f"created {name}")
    if not created:
        typer.echo("all topics were there")
    _report(kafka)


@topics_app.command()
def check(config: Config = None, brokers: Brokers = None, partitions: Partitions = None) -> None:
    """Compare the topics with what they should be; exit code 1 when something differs."""
    kafka = kafka_settings(kafka_from_file(config), brokers, partitions)
    _report(kafka)
    typer.echo("all topics are as they should be")


def _report(kafka: Kafka) -> None:
    from stethoscope.streams import topics

    differences = topics.check(kafka)
    for difference in differences:
        typer.echo(str(difference), err=True)
    if differences:
        raise typer.Exit(1)
