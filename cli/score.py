"""``stethoscope score``: how well a configuration tells the truth about a labelled recording."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stethoscope.cli.inputs import replay_files
from stethoscope.cli.replay import ConfigFile, EventPaths, Format, OutputFormat

if TYPE_CHECKING:
    from rich.table import Table

    from stethoscope.replay.score import Score, Tally


def score(
    events: EventPaths,
    labels: Annotated[Path, typer.Option(help="The truth: one label a line (JSON Lines).")],
    config: ConfigFile = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Replay events and compare the pages with labels.

    Exit code 0 when no fault is missed and no page is false, else 1.
    """
    import msgspec

    from stethoscope.replay.labels import read_labels
    from stethoscope.replay.score import score as compare
    from stethoscope.streams.config import load_config

    truth = read_labels(labels)
    result = compare(replay_files(events, load_config(config), title="Scoring").incidents, truth)
    if output is Format.JSON:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        _print(result)
    if not result.perfect:
        raise typer.Exit(1)


def _print(result: "Score") -> None:
    from rich.console import Console

    console = Console()
    console.print(_table(result))
    for label_id in result.missed:
        console.print(f"[red]missed[/] {label_id}", highlight=False)
    for page in result.false_pages:
        near = f" (on decoy {page.near})" if page.near else ""
        console.print(f"[red]false[/]  {page.incident_id} {page.cause}{near}", highlight=False)
    for page in result.extra_pages:
        console.print(f"extra  {page.incident_id} {page.cause} ({page.near})", highlight=False)
    for one in result.found:
        if not one.root_right:
            console.print(f"root   {one.incident_id} {one.cause} ({one.label_id})", highlight=False)


def _table(result: "Score") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cause", no_wrap=True)
    for name in (
        "found",
        "recall",
        "prec.",
        "root",
        "delay s",
        "max s",
        "false",
        "extra",
        "folded",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for cause, tally in result.by_cause.items():
        table.add_row(cause, *_cells(tally))
    table.add_section()
    table.add_row("all", *_cells(result.total), style="bold")
    return table


def _cells(tally: "Tally") -> list[str]:
    return [
        f"{tally.found}/{tally.faults}",
        *(_number(x) for x in (tally.recall, tally.precision, tally.root_accuracy)),
        *(_number(x) for x in (tally.delay_median_secs, tally.delay_max_secs)),
        str(tally.false_pages),
        str(tally.extra_pages),
        _number(tally.events_per_page),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
