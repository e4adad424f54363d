"""The ``stethoscope`` command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command; ctrl-C ends it quietly, also while it still loads."""
    try:
        from stethoscope.cli.app import run

        run()
    except KeyboardInterrupt:
        # What libraries still want to say of their unfinished work concerns nobody any more.
        sys.unraisablehook = lambda _: None
        sys.exit(130)
