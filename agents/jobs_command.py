"""Jobs of any other scheduler: a command, or a file, that gives ``job`` events as JSON Lines."""

from pathlib import Path

from msgspec import structs

from stethoscope.agents.command import run
from stethoscope.agents.job_changes import end_of
from stethoscope.agents.job_reader import JobReader
from stethoscope.agents.reader import Context, Now
from stethoscope.schemas.agent_config import JobsCommand
from stethoscope.schemas.codec import iter_lines
from stethoscope.schemas.errors import BadEvent, ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Event, JobEvent

MAX_FILE_BYTES = 64 * 1024 * 1024


class JobsCommandReader(JobReader):
    """Asks for all jobs that run now, and tells of those that changed.

    A job that is listed no more has ended: as ``COMPLETED``, unless it was listed with its end.
    """

    name = "jobs_command"

    def __init__(self, context: Context, section: JobsCommand) -> None:
        super().__init__(context, section.period_secs)
        self._section = section

    def probe(self) -> None:
        """A command or a file is configured.

        Raises:
            ReaderUnsupported: neither, or both.
        """
        if bool(self._section.command) == bool(self._section.file):
            message = "set one of jobs_command.command and jobs_command.file"
            raise ReaderUnsupported(message)

    def read(self, now: Now) -> list[Event]:
        """What changed since the last read, then the clock.

        Raises:
            ReaderUnsupported: as ``probe``.
            ServiceError: the command failed, or the file cannot be read.
        """
        self.probe()
        jobs: list[JobEvent] = []
        for item in iter_lines(iter(self._output().splitlines())):
            if isinstance(item, JobEvent):
                jobs.append(structs.replace(item, cluster=self._cluster))
            else:
                reason = item.reason if isinstance(item, BadEvent) else "not_a_job"
                self.counters.error(reason)
        gone = self._changes.missing(jobs)
        ends = [end_of(job, "COMPLETED", now.unix_ns) for job in gone]
        events: list[Event] = [*self._changes.update([*ends, *jobs], now.unix_ns)]
        events.append(self._known_until(now.unix_ns))
        return events

    def _output(self) -> bytes:
        if self._section.command:
            return run(self._section.command, self._section.timeout_secs)
        path = Path(self._section.file or "")
        try:
            with path.open("rb") as file:
                return file.read(MAX_FILE_BYTES)
        except OSError as error:
            message = f"jobs_command.file: {path}: {error.strerror}"
            raise ServiceError(message) from error
