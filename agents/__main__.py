"""The agent's process: ``stethoscope agent`` becomes it. Takes its options as JSON."""

import logging
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec

from stethoscope.agents.overrides import Given, effective, state_dir_of
from stethoscope.agents.service import Service
from stethoscope.schemas.errors import StethoscopeError, UsageError

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main() -> None:
    """Run until SIGTERM. Exit code 2: configuration or state directory cannot be used."""
    log_to_stderr()
    text = sys.argv[1] if len(sys.argv) > 1 else "{}"
    given = msgspec.json.decode(text, type=Given)
    try:
        state_dir = state_dir_of(given, effective(given))
        config_path = Path(given.config) if given.config else None
        Service(lambda: effective(given), config_path, state_dir, version("stethoscope")).run()
    except StethoscopeError as error:
        sys.stderr.write(f"stethoscope: {error}\n")
        sys.exit(2 if isinstance(error, UsageError) else 1)


def log_to_stderr() -> None:
    """Warnings and worse. systemd adds the time, but a person at a terminal wants it."""
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT, stream=sys.stderr)
    # kafka-python reports every failed attempt; the agent says once that Kafka is away.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    main()
