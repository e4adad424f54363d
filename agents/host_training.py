"""Which processes are ranks of a training job, and which of them have just gone."""

from fnmatch import fnmatchcase

from stethoscope.agents.host_processes import Facts, ProcessTable
from stethoscope.schemas.events import Process

FULL_SCAN_SECS = 60  # a pid that was used again meanwhile is found then
SAY_GONE_READS = 3
MAX_PROCESSES = 1024


class TrainingProcesses:
    """Follows the training processes of a node.

    A process counts when torchrun or another launcher gave it a rank, when it is a Python process
    with a task number of Slurm's or MPI's, or when a glob of ``names`` matches its command line.
    A child with its parent's rank (a data loader) does not. To be cheap, only processes that are
    new since the last read are looked into; one that ends is reported with ``alive`` false in the
    next three reads. ``zombies``: how many the whole node had at the last full scan, once a minute.
    """

    def __init__(self, table: ProcessTable, names: list[str]) -> None:
        self._table = table
        self._names = names
        self._seen: set[int] = set()
        self._training: dict[int, Facts] = {}
        self._gone: dict[int, tuple[Facts, int]] = {}
        self._full_scan_ns = 0
        self.zombies: int | None = None

    def read(self, monotonic_ns: int) -> list[Process]:
        """The training processes now, those that just ended included.

        Raises:
            OSError: the process table cannot be listed.
        """
        pids = set(self._table.pids())
        full = monotonic_ns >= self._full_scan_ns
        if full:
            self._full_scan_ns = monotonic_ns + FULL_SCAN_SECS * 1_000_000_000
            self._seen.clear()
        found = [f for pid in pids - self._seen if (f := self._table.facts(pid)) is not None]
        if full:
            self.zombies = sum(facts.state == "Z" for facts in found)
        candidates = {facts.pid: facts for facts in found if self._counts(facts)}
        self._seen = pids
        self._refresh()
        for pid, facts in candidates.items():
            if not self._is_helper(facts, candidates):
                self._training[pid] = facts
        self._table.forget_all_but(set(self._training))
        return self._living()[:MAX_PROCESSES] + self._ended()

    def pids(self) -> list[int]:
        """Training processes that live."""
        return sorted(self._training)

    def _counts(self, facts: Facts) -> bool:
        if not facts.command:  # kernel threads, zombies
            return False
        if facts.own_rank:
            return True
        if facts.rank is not None and facts.name.startswith(("python", "pt_main")):
            return True
        return any(fnmatchcase(facts.command, name) for name in self._names)

    def _is_helper(self, facts: Facts, candidates: dict[int, Facts]) -> bool:
        parent = candidates.get(facts.ppid) or self._training.get(facts.ppid)
        return parent is not None and parent.rank == facts.rank

    def _refresh(self) -> None:
        """Look again at those known; move the ended aside."""
        for pid, old in list(self._training.items()):
            facts = self._table.facts(pid)
            if facts is not None and facts.start_ticks == old.start_ticks:
                self._training[pid] = facts
                continue
            del self._training[pid]
            self._gone[pid] = (old, SAY_GONE_READS)

    def _living(self) -> list[Process]:
        return [_process(f, f.state != "Z") for _, f in sorted(self._training.items())]

    def _ended(self) -> list[Process]:
        said = [_process(facts, False) for facts, _ in self._gone.values()]
        self._gone = {
            pid: (facts, left - 1) for pid, (facts, left) in self._gone.items() if left > 1
        }
        return said


def _process(facts: Facts, alive: bool) -> Process:
    return Process(
        name=facts.name,
        pid=facts.pid,
        user=facts.user,
        job_id=facts.job_id,
        rank=facts.rank,
        alive=alive,
        container=facts.container,
    )
