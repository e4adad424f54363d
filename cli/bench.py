"""``stethoscope bench``: benchmark results as events."""

import platform
from pathlib import Path
from typing import Annotated

import typer

from stethoscope.cli.inputs import output_file, parse_time
from stethoscope.schemas.errors import InputError, UsageError

bench_app = typer.Typer(name="bench", help="Benchmark results as events.", no_args_is_help=True)
MAX_BYTES = 64 << 20


@bench_app.callback()
def bench() -> None:
    """Benchmark results as events."""


@bench_app.command()
def ingest(
    files: Annotated[list[Path], typer.Argument(help="Output of a benchmark.", metavar="FILE..")],
    form: Annotated[
        str | None,
        typer.Option("--format", help="nccl-tests, ib_write_bw, dcgmi-diag, fio or gpu-burn."),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Where it ran. Default: what the output says, else here.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="Which cluster.")] = "default",
    job_id: Annotated[str | None, typer.Option(help="The scheduler's id of the run.")] = None,
    at: Annotated[
        str | None, typer.Option("--time", help="When it ended. Default: the file's own time.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write JSON Lines there.")
    ] = None,
) -> None:
    """Turn files into `bench` events, one JSON object a line."""
    from stethoscope.agents.bench import Source, bench_events
    from stethoscope.agents.bench_formats import FORMATS
    from stethoscope.schemas.codec import encode_line

    if form is not None and form not in FORMATS:
        msg = f"--format {form!r} is unknown; known are {', '.join(FORMATS)}"
        raise UsageError(msg)
    lines: list[str] = []
    for path in files:
        text, modified_ns = _read(path)
        source = Source(
            time_unix_ns=parse_time(at) if at else modified_ns,
            node=node or platform.node().lower(),
            cluster=cluster,
            job_id=job_id,
            node_is_given=node is not None,
        )
        try:
            events = bench_events(text, source, form)
        except InputError as error:
            msg = f"{path}: {error}"
            raise InputError(msg) from error
        lines += [encode_line(event).decode() for event in events]
    with output_file(output) as file:
        for line in lines:
            typer.echo(line, file=file)


def _read(path: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace"), path.stat().st_mtime_ns
    except OSError as error:
        msg = f"{path}: {error.strerror or error}"
        raise InputError(msg) from error
