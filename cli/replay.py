"""``stethoscope replay``: recorded events in, incidents out."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stethoscope.cli.inputs import output_file, parse_time, replay_files
from stethoscope.schemas.errors import UsageError

if TYPE_CHECKING:
    from stethoscope.replay.run import Outcome


class Format(StrEnum):
    """How a command answers."""

    TABLE = "table"
    JSON = "json"


ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file (YAML).")
]
OutputFormat = Annotated[Format, typer.Option("--format", "-f", help="For a person, or a program.")]
EventPaths = Annotated[
    list[str],
    typer.Argument(
        help="Event files (.jsonl, .jsonl.gz, .jsonl.zst), folders, or kafka://HOST:PORT/TOPIC,..",
        metavar="PATH..",
        show_default=False,
    ),
]


def replay(
    paths: EventPaths,
    config: ConfigFile = None,
    from_time: Annotated[
        str | None, typer.Option("--from", help="Report from here: ISO 8601, unix seconds or ns.")
    ] = None,
    to_time: Annotated[str | None, typer.Option("--to", help="Stop here; forms as --from.")] = None,
    output: OutputFormat = Format.TABLE,
    findings: Annotated[
        Path | None, typer.Option(help="Write every finding here, as JSON Lines.")
    ] = None,
    dead_letter: Annotated[
        Path | None, typer.Option(help="Write what was refused here, with its reason.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report.")] = None,
) -> None:
    """Replay recorded events: the incidents a worker would have opened.

    With --format json, one JSON object an incident, in its final state.
    """
    from stethoscope.replay.run import Window
    from stethoscope.streams.config import load_config

    window = Window(
        from_unix_ns=parse_time(from_time) if from_time else None,
        to_unix_ns=parse_time(to_time) if to_time else None,
    )
    if window.is_empty:
        msg = f"--from {from_time} is after --to {to_time}: nothing lies between; swap them"
        raise UsageError(msg)
    outcome = replay_files(
        paths,
        load_config(config),
        window=window,
        dead_letter=dead_letter,
        findings=findings,
    )
    if report is not None:
        _write_report(report, outcome, paths)
    if output is Format.JSON:
        print_json(outcome)
    else:
        print_table(outcome)


def print_json(outcome: "Outcome") -> None:
    """One JSON object an incident on standard output, and nothing else."""
    from stethoscope.replay.run import incident_line

    for incident in outcome.incidents:
        sys.stdout.write(incident_line(incident).decode() + "\n")


def print_table(outcome: "Outcome", *, show_info: bool = True) -> None:
    """The incidents for a person."""
    from rich.console import Console

    from stethoscope.sinks.console import render

    render(
        outcome.incidents,
        raw_events_total=outcome.raw_events,
        console=Console(),
        show_info=show_info,
    )


def _write_report(path: Path, outcome: "Outcome", paths: list[str]) -> None:
    from stethoscope.replay.report import html_report

    title = ", ".join(Path(one).name for one in paths)
    with output_file(path) as file:
        if file is not None:
            file.write(html_report(outcome, title))
