"""The command's root: sub-commands, ``--version``, and one-line errors with their exit codes."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from stethoscope.cli.agent import agent
from stethoscope.cli.bench import bench_app
from stethoscope.cli.config import config_app
from stethoscope.cli.demo import demo
from stethoscope.cli.doctor import doctor
from stethoscope.cli.explain import explain_app
from stethoscope.cli.replay import replay
from stethoscope.cli.score import score
from stethoscope.cli.topics import topics_app
from stethoscope.cli.worker import worker
from stethoscope.schemas.errors import StethoscopeError, UsageError

app = typer.Typer(
    name="stethoscope",
    help="One true alert per fault for AI training clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stethoscope {version('stethoscope')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """One true alert per fault for AI training clusters."""


app.command()(agent)
app.add_typer(bench_app)
app.add_typer(topics_app)
app.command()(worker)
app.command()(replay)
app.command()(demo)
app.command()(score)
app.add_typer(config_app)
app.add_typer(explain_app)
app.command()(doctor)


# Typer carries a copy of click and names of its errors only this one; its base is any wrong usage.
_WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]


_INTERRUPTED = 130  # as shells have it


def run() -> None:
    """Run the command. Exit code 0 ok, 1 the answer is no, 2 bad usage or configuration.

    Raises:
        KeyboardInterrupt: ctrl-C, which typer by itself turns into 130.
    """
    try:
        code = app(standalone_mode=False)
    except _WrongUsage as error:
        typer.echo(_usage_line(error), err=True)
        sys.exit(2)
    except UsageError as error:
        typer.echo(f"stethoscope: {error}", err=True)
        sys.exit(2)
    except StethoscopeError as error:
        typer.echo(f"stethoscope: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        typer.echo(_missing_line(error), err=True)
        sys.exit(2)
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if isinstance(code, int) and code:
        sys.exit(code)


def _missing_line(error: ModuleNotFoundError) -> str:
    """A command of an extra that is not installed. A module of ours that is missing is a fault."""
    if error.name is None or error.name.partition(".")[0] == "stethoscope":
        raise error
    return (
        f"stethoscope: this command needs {error.name}, which is not installed; "
        "stethoscope doctor says which extra brings it"
    )


def _usage_line(error: Exception) -> str:
    """What was wrong with the words of a command, in one line; a whole help page stays one."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a name of that copy, not of its interface
        return str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "stethoscope"
    said: str = getattr(error, "format_message", error.__str__)()
    said = " ".join(said.split()).replace("Value error, ", "").rstrip(".?!")
    return f"stethoscope: {said}; see {command} --help"
