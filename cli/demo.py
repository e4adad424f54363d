"""``stethoscope demo``: the packaged recording of a real node with faults, no Kafka needed."""

from importlib.resources import as_file, files

import typer

from stethoscope.cli.inputs import replay_files
from stethoscope.cli.replay import print_table

RECORDING = "h200x2_a.jsonl.gz"


def demo() -> None:
    """Replay the packaged recording: one node, two GPUs, ten jobs, faults injected on purpose."""
    from stethoscope.streams.config import Config

    typer.echo(
        "Nine minutes of a node with two H200 GPUs: ten training jobs, faults injected on purpose."
    )
    with as_file(files("stethoscope.replay").joinpath("recordings", RECORDING)) as path:
        outcome = replay_files([str(path)], Config(), title="Listening")
    print_table(outcome, show_info=False)
    typer.echo("Next: stethoscope replay PATH --report report.html   your own recordings")
    typer.echo("      stethoscope explain cause straggler            what a cause means")
