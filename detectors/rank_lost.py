"""Ranks that died: what the launcher reports of its workers."""

import re

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, quoted, to_finding
from stethoscope.detectors.job_context import JobContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.views import Mark

_TORCHRUN = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d{1,9}) \(pid: (\d+)\)")
_SRUN = re.compile(r"(\S+): task (\d{1,9}): (Bus error|Segmentation fault|Killed|Aborted)")
_SRUN_CODES = {"Bus error": -7, "Segmentation fault": -11, "Killed": -9, "Aborted": -6}
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
# A worker that ends because of something else: by the watchdog (SIGABRT), told to (SIGTERM).
_FOLLOWERS = frozenset({-6, -15})


class RankLostConfig(DetectorConfig, frozen=True, tag="rank_lost", kw_only=True):
    """``repeat_secs``: what follows within it is the same loss.

    A launcher that restarts its workers may lose one again later.
    """

    repeat_secs: float = 600.0


class RankLostState(Struct):
    """When the last loss of each job was said. Bound: jobs running."""

    said: dict[str, int] = field(default_factory=dict)


class RankLost:
    """A worker killed by a signal is a lost rank; the first one named is the one to look at.

    An exit with a code of its own (a Python traceback) is the program's, not a lost rank: that is
    ``job_failed``'s to tell. Codes are negative signal numbers, as torchrun prints them.
    """

    def __init__(self, config: RankLostConfig) -> None:
        self.config = config
        self.state = RankLostState()

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Read the tick's exits; one finding a loss."""
        said_ns = self.state.said.get(job.key)
        if said_ns is not None and now_ns - said_ns < self.config.repeat_secs * NS:
            return []
        for mark in job.fresh_marks("worker_failed", "task_exit"):
            condition = self._condition(job, mark)
            if condition is not None:
                self.state.said[job.key] = now_ns
                return [to_finding(self.config, condition, now_ns)]
        return []

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        self.state.said.pop(job.key, None)
        return []

    def _condition(self, job: JobContext, mark: Mark) -> Condition | None:
        code, subject = _exit(job, mark)
        if code is None or code >= 0 or code in _FOLLOWERS or subject is None:
            return None
        if job.marks_since(
            mark.time_unix_ns - int(self.config.repeat_secs * NS),
            "oom",
            "nccl_timeout",
            "nccl_dump",
        ):
            return None  # the line before says more
        signal = _SIGNALS.get(-code, f"signal {-code}")
        return Condition(
            cause="rank_lost",
            subject=subject,
            onset_unix_ns=mark.time_unix_ns,
            value=float(code),
            unit="exit code",
            score=1.0,
            evidence=f"{signal}: {quoted(mark.text)}",
            moment=True,
            raw_events=mark.count,
        )


def _exit(job: JobContext, mark: Mark) -> tuple[int | None, Subject | None]:
    if match := _TORCHRUN.search(mark.text):
        return int(match[1]), _local_rank(job, mark, int(match[2]))
    if match := _SRUN.search(mark.text):
        return _SRUN_CODES[match[3]], job.rank_subject(int(match[2]))
    return None, None


def _local_rank(job: JobContext, mark: Mark, local: int) -> Subject:
    """The rank that is the ``local``-th of the node that printed the line."""
    node = mark.node or (job.nodes()[0] if len(job.nodes()) == 1 else None)
    ranks = job.event.ranks.get(node, []) if job.event and node else []
    if local < len(ranks):
        return job.rank_subject(ranks[local])
    on_node = [g for g in job.gpus if g.node == node]
    if local < len(on_node):
        return job.gpu_subject(on_node[local])
    return Subject(cluster=job.cluster, node=node, job_id=job.job_id)
