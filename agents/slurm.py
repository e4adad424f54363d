"""Jobs and node states of a Slurm cluster, by its own commands. Runs once per cluster."""

import shutil
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from stethoscope.agents.command import CommandError, run
from stethoscope.agents.job_changes import end_of
from stethoscope.agents.job_reader import JobReader
from stethoscope.agents.reader import Context, Now
from stethoscope.agents.slurm_json import NS, JobFacts, parse_queue, to_event
from stethoscope.agents.slurm_text import (
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    parse_jobs,
    parse_nodes,
    parse_sacct,
    parse_squeue,
)
from stethoscope.schemas.agent_config import Slurm
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Event, JobEvent, NodeInfo, TopologyEvent
from stethoscope.schemas.job_states import ENDED

# Slurm's times are whole seconds: what happened in the last one may be listed later.
CLOCK_LAG_NS = NS
MAX_ASKED = 50  # ends looked up in one read; the others wait for the next
_PLAIN_ENVIRON = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}


class SlurmReader(JobReader):
    """Tells of each job when it changes, of nodes when their state does, and of time passing.

    The ``clock`` event says up to when the jobs of this cluster are known.
    """

    name = "slurm"

    def __init__(self, context: Context, section: Slurm) -> None:
        super().__init__(context, section.period_secs)
        self._section = section
        self._nodes: dict[str, NodeInfo] = {}
        self._list_jobs: Callable[[], tuple[list[JobFacts], int]] | None = None

    def probe(self) -> None:
        """Slurm's commands are here.

        Raises:
            ReaderUnsupported: ``squeue`` is not.
        """
        if self._program("squeue") is None:
            message = "no squeue here; install Slurm's client commands or set slurm.bin_dir"
            raise ReaderUnsupported(message)

    def read(self, now: Now) -> list[Event]:
        """What changed since the last read, then the clock.

        Raises:
            ServiceError: Slurm does not answer.
        """
        facts = self._jobs()
        events: list[Event] = []
        if self._section.nodes and (topology := self._changed_nodes(now)):
            events.append(topology)
        jobs = [event for job in facts if (event := self._event(job, now)) is not None]
        requeued = [end for job in jobs for end in self._ends_before(job, now)]
        gone = self._changes.missing([*jobs, *requeued])
        ends = [*requeued, *(self._last_of(job, now) for job in gone[:MAX_ASKED])]
        settled = [event for job in jobs if (event := self._settled(job, now)) is not None]
        events.extend(self._changes.update([*ends, *settled], now.unix_ns))
        events.append(self._known_until(now.unix_ns - CLOCK_LAG_NS))
        return events

    def _jobs(self) -> tuple[JobFacts, ...]:
        ways = (self._by_json, self._by_scontrol, self._by_squeue)
        refusals: list[str] = []
        for way in ways if self._list_jobs is None else (self._list_jobs,):
            try:
                jobs, wrong = way()
            except (CommandError, ValueError) as error:
                refusals.append(str(error))
                continue
            self._list_jobs = way
            self.counters.invalid_samples_total += wrong
            return tuple(jobs)
        self._list_jobs = None
        message = "; ".join(dict.fromkeys(refusals))
        raise ServiceError(message)

    def _by_json(self) -> tuple[list[JobFacts], int]:
        return parse_queue(self._run("squeue", "--all", "--states=all", "--json"))

    def _by_scontrol(self) -> tuple[list[JobFacts], int]:
        return parse_jobs(self._text("scontrol", "--all", "-o", "-d", "show", "job"))

    def _by_squeue(self) -> tuple[list[JobFacts], int]:
        return parse_squeue(
            self._text("squeue", "--all", "--states=all", "-h", "-o", SQUEUE_FORMAT)
        )

    def _event(self, job: JobFacts, now: Now) -> JobEvent | None:
        key = self._section.comment_checkpoint_key
        try:
            return to_event(job, self._cluster, key, now.unix_ns)
        except ValueError:
            self.counters.error("nodelist")
            return None

    def _settled(self, job: JobEvent, now: Now) -> JobEvent | None:
        """A run being torn down keeps its start and nodes, which Slurm moves meanwhile."""
        if job.state != "COMPLETING":
            return job
        told = self._changes.told(job.job_id, job.restart)
        if told is None or told.state in ENDED:
            return None
        return structs.replace(told, state=job.state, time_unix_ns=now.unix_ns)

    def _ends_before(self, job: JobEvent, now: Now) -> list[JobEvent]:
        """The end of the run that this one repeats: Slurm lists only the newest run of a job."""
        told = self._changes.told(job.job_id, job.restart - 1)
        if told is None or told.state in ENDED:
            return []
        down = {name for name, node in self._nodes.items() if node.state == "down"}
        state = "NODE_FAIL" if down.intersection(told.nodes or ()) else "REQUEUED"
        if told.state == "PENDING":
            state = "CANCELLED"
        return [end_of(told, state, min(now.unix_ns, job.start_unix_ns or now.unix_ns))]

    def _last_of(self, job: JobEvent, now: Now) -> JobEvent:
        """A job that is listed no more, as ``scontrol`` or ``sacct`` still know it."""
        for ask in (self._ask_scontrol, self._ask_sacct):
            try:
                found = ask(job)
            except (ServiceError, ValueError):
                continue
            if found is not None:
                state, end_secs = found
                end_ns = end_secs * NS if end_secs else now.unix_ns
                return end_of(job, state, end_ns)
        self.counters.error("end_unseen")  # the end is certain, how it came is not
        return end_of(job, "COMPLETED", now.unix_ns)

    def _ask_scontrol(self, job: JobEvent) -> tuple[str, int | None] | None:
        jobs, _ = parse_jobs(self._text("scontrol", "-o", "-d", "show", "job", job.job_id))
        for facts in jobs:
            same_run = (facts.job_id, facts.restart) == (job.job_id, job.restart)
            if same_run and facts.state in ENDED:
                return facts.state, facts.end_secs
        return None

    def _ask_sacct(self, job: JobEvent) -> tuple[str, int | None] | None:
        arguments = ("-X", "-n", "-P", "-j", job.job_id, "-o", SACCT_FIELDS)
        found = parse_sacct(self._text("sacct", *arguments))
        return (found[0], found[2]) if found is not None and found[0] in ENDED else None

    def _changed_nodes(self, now: Now) -> TopologyEvent | None:
        try:
            nodes = parse_nodes(self._text("scontrol", "--all", "-o", "show", "node"))
        except ServiceError:
            self.counters.error("scontrol show node")
            return None
        changed = {name: node for name, node in nodes.items() if self._nodes.get(name) != node}
        self._nodes = nodes
        if not changed:
            return None
        # A topology event's id is its time; the topology reader may write one at this very moment.
        return TopologyEvent(time_unix_ns=now.unix_ns + 1, cluster=self._cluster, nodes=changed)

    def _text(self, program: str, *arguments: str) -> str:
        return self._run(program, *arguments).decode("utf-8", errors="replace")

    def _run(self, program: str, *arguments: str) -> bytes:
        environ = dict(_PLAIN_ENVIRON)
        if self._section.conf is not None:
            environ["SLURM_CONF"] = self._section.conf
        path = self._program(program)
        if path is None:
            message = f"{program} is not here"
            raise ServiceError(message)
        return run([path, *arguments], self._section.timeout_secs, environ)

    def _program(self, name: str) -> str | None:
        if self._section.bin_dir is None:
            return shutil.which(name)
        return shutil.which(str(Path(self._section.bin_dir) / name))
