"""Run a program of someone else's and take its output."""

import os
import subprocess
from collections.abc import Mapping, Sequence

from stethoscope.schemas.errors import ServiceError

MAX_OUTPUT_BYTES = 256 * 1024 * 1024


class CommandError(ServiceError):
    """The program ran and said no. ``output``: what it wrote, errors last."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


def run(
    command: Sequence[str], timeout_secs: float, extra_environ: Mapping[str, str] | None = None
) -> bytes:
    """Standard output of the command.

    Raises:
        CommandError: it ended with another code than 0.
        ServiceError: it could not be started, took too long or wrote too much.
    """
    name = os.path.basename(command[0])  # noqa: PTH119 - a name, not a file
    try:
        done = subprocess.run(  # noqa: S603 - the configuration names the program
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_secs,
            check=False,
            env={**os.environ, "LC_ALL": "C", **(extra_environ or {})},
        )
    except subprocess.TimeoutExpired as error:
        message = f"{name}: no answer within {timeout_secs:g} s"
        raise ServiceError(message) from error
    except OSError as error:
        message = f"{name}: {error.strerror}"
        raise ServiceError(message) from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).decode("utf-8", errors="replace")
        last = output.strip().rpartition("\n")[2][:200]
        raise CommandError(f"{name} ended with {done.returncode}: {last}", output)
    if len(done.stdout) > MAX_OUTPUT_BYTES:
        message = f"{name}: more than {MAX_OUTPUT_BYTES} bytes"
        raise ServiceError(message)
    return done.stdout
