"""The ``stethoscope`` command."""

from stethoscope.cli.app import main

__all__ = ["main"]
