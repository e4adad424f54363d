"""How log records look on standard error: the constant message, then its fields."""

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldsFormatter(logging.Formatter):
    """A line per record; what was given as ``extra`` follows the message as ``name=value``.

    >>> record = logging.makeLogRecord({"msg": "Cannot send", "levelname": "INFO", "wait_secs": 2})
    >>> FieldsFormatter("%(levelname)s %(message)s").format(record)
    'INFO Cannot send wait_secs=2'
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, without a traceback, which ``format`` appends."""
        fields = (
            f" {name}={value}" for name, value in vars(record).items() if name not in _STANDARD
        )
        return super().formatMessage(record) + "".join(fields)


class FirstFailures(logging.Handler):
    """Keeps, for each detector, what its first failure was, in place of tracebacks on the terminal.

    Attributes:
        by_detector: error and place, by the record's field ``detector``.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.by_detector: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; others than a detector's are printed as they would be without us."""
        detector = getattr(record, "detector", None)
        if detector is None or record.exc_info is None or record.exc_info[1] is None:
            sys.stderr.write(f"stethoscope: {record.getMessage()}\n")
            return
        error = record.exc_info[1]
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(f"{type(error).__name__}: {error}".split())
        self.by_detector.setdefault(
            detector, f"{said}, at {Path(last.filename).name}:{last.lineno}"
        )


@contextmanager
def first_failures() -> Iterator[FirstFailures]:
    """Listen to our own loggers while a replay runs."""
    handler = FirstFailures()
    logger = logging.getLogger("stethoscope")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
