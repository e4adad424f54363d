"""``stethoscope agent`` on a live node: the loop, or one read of each reader."""

import os
import sys

import msgspec
import typer

from stethoscope.agents import registry
from stethoscope.agents.assembly import context_of
from stethoscope.agents.clock import SystemClock
from stethoscope.agents.overrides import Given, effective
from stethoscope.schemas.codec import encode_line


def run_once(given: Given) -> None:
    """Print the events of one read as JSON Lines, the readers' states on standard error.

    Raises:
        UsageError: no such reader, or a wrong option.
        typer.Exit: with 1 when a reader fails.
    """
    from stethoscope.agents.once import read_once

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
    """Become the agent, without what the command line took: 15 MB that a node need not hold.

    Raises:
        UsageError: the configuration cannot be used.
    """
    effective(given)
    arguments = msgspec.json.encode(given).decode()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "stethoscope.agents", arguments])  # noqa: S606
