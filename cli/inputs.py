"""What several commands share: times, output files, progress, and one replay of event files."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from stethoscope.schemas.errors import UsageError
from stethoscope.schemas.findings import NS

if TYPE_CHECKING:
    from stethoscope.replay.run import Outcome, Window
    from stethoscope.schemas.findings import Finding
    from stethoscope.streams.config import Config

# A number this large cannot be seconds: in nanoseconds it is a moment of 1973, in seconds far off.
_LEAST_NANOSECONDS = 10**17


def parse_time(text: str) -> int:
    """A time as nanoseconds since 1970: ISO 8601 (UTC where no zone is given), seconds or ns.

    >>> parse_time("1970-01-01T00:00:02Z"), parse_time("2"), parse_time("1795968070800233000")
    (2000000000, 2000000000, 1795968070800233000)

    Raises:
        UsageError: none of these.
    """
    if text.isdigit():
        number = int(text)
        return number if number >= _LEAST_NANOSECONDS else number * NS
    try:
        return round(float(text) * NS)
    except (ValueError, OverflowError):
        return _iso_time(text)


def _iso_time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        msg = f"{text!r} is no time; expected 2026-11-29T16:05:00Z, or unix seconds or nanoseconds"
        raise UsageError(msg) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0)
    return round(whole.timestamp()) * NS + moment.microsecond * 1000


@contextmanager
def output_file(path: Path | None) -> Iterator[TextIO | None]:
    """The file opened for writing; nothing for no path.

    Raises:
        UsageError: it cannot be written.
    """
    if path is None:
        yield None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        msg = f"{path}: cannot be written: {error.strerror}; check folder and rights"
        raise UsageError(msg) from error
    with file:
        yield file


@contextmanager
def progress_bar(title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, on a terminal only; gives what to tell of bytes read."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total_bytes or None)
        yield lambda count: progress.advance(task, count)


def replay_files(
    paths: Sequence[str],
    config: "Config",
    *,
    title: str = "Replaying",
    window: "Window | None" = None,
    dead_letter: Path | None = None,
    findings: Path | None = None,
) -> "Outcome":
    """Replay files or topics, with a progress bar.

    Dead letters and failed detectors are summed up on standard error.

    Raises:
        UsageError: a path that cannot be read, or an output that cannot be written.
        ServiceError: brokers that cannot be reached.
    """
    from msgspec.structs import replace

    from stethoscope.cli.logs import first_failures
    from stethoscope.replay.run import DeadLetters, run
    from stethoscope.replay.sources import Sources
    from stethoscope.streams.pipeline import Pipeline

    sources = Sources(paths, config.kafka)
    pipeline = Pipeline(config)
    with ExitStack() as stack:
        letters = DeadLetters(stack.enter_context(output_file(dead_letter)))
        on_finding = _writer(stack.enter_context(output_file(findings)))
        on_bytes = stack.enter_context(progress_bar(title, sources.size_bytes))
        events = sources.events(letters.add, on_bytes)
        first = stack.enter_context(first_failures()).by_detector
        outcome = run(events, pipeline, letters, window, on_finding)
    if summary := letters.summary():
        sys.stderr.write(f"stethoscope: {summary}\n")
    failed = pipeline.failures()
    for name, count in failed.items():
        _say_failed(name, count, first.get(name, "unknown"))
    if window is not None and not outcome.raw_events:
        sys.stderr.write("stethoscope: no event before --to: the recording begins later\n")
    return replace(outcome, failed=failed)


def _say_failed(detector: str, count: int, first: str) -> None:
    """A fault of ours, and what it means for the answer."""
    times = "once" if count == 1 else f"{count:,} times"
    sys.stderr.write(
        f"stethoscope: detector {detector} failed {times} (first: {first}); what it would have "
        "found is missing here; please report it\n"
    )


def _writer(file: TextIO | None) -> "Callable[[Finding], None] | None":
    if file is None:
        return None
    import msgspec

    def write(finding: "Finding") -> None:
        file.write(msgspec.json.encode(finding).decode() + "\n")

    return write
