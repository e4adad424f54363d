"""``stethoscope config``: check, show and describe the configuration."""

import sys
from pathlib import Path
from typing import Annotated

import typer

config_app = typer.Typer(
    name="config", help="Check, show or describe the configuration.", no_args_is_help=True
)
File = Annotated[Path | None, typer.Argument(help="A YAML file; absent: the defaults.")]


@config_app.command()
def check(file: File = None) -> None:
    """Say whether a configuration can be used. Exit code 2 if not, with the reason."""
    from stethoscope.streams.config import load_config

    loaded = load_config(file)
    active = sum(detector.mode != "off" for detector in loaded.detectors)
    typer.echo(f"{file or 'defaults'}: ok, {active} detectors")


@config_app.command()
def show(file: File = None) -> None:
    """Print the effective configuration as YAML: the file's values over the defaults."""
    from stethoscope.streams.config import effective_yaml, load_config

    sys.stdout.write(effective_yaml(load_config(file)))


@config_app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    import json

    from stethoscope.streams.config import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
