"""``stethoscope agent --source replay:FILE``: a recording in place of a node."""

from pathlib import Path

import typer

from stethoscope.cli.inputs import progress_bar
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import BadEvent

PREFIX = "replay:"


def run_recorded(source: str, speed: float, kafka: Kafka, reorder_secs: float) -> None:
    """Play the recording named by ``replay:FILE`` into Kafka, then say what was sent.

    Raises:
        InputError: the file cannot be read.
        ServiceError: the brokers are away or refuse.
    """
    from stethoscope.agents.producer import EventProducer
    from stethoscope.agents.recorded import play
    from stethoscope.replay.files import find_files, read_events

    paths = [Path(source.removeprefix(PREFIX))]
    files = find_files(paths)  # a wrong path is said before brokers are asked
    refused = 0

    def on_bad(error: BadEvent, where: str) -> None:
        nonlocal refused
        refused += 1
        typer.echo(f"{where}: {error}", err=True)

    producer = EventProducer(kafka)
    size_bytes = sum(file.stat().st_size for file in files)
    try:
        with progress_bar("Playing", size_bytes) as on_bytes:
            events = read_events(paths, on_bad, on_bytes)
            played = play(events, producer, speed, reorder_secs)
    finally:
        producer.close()
    typer.echo(f"sent {played.events} events, refused {refused} lines", err=True)
