"""A rank that ran out of GPU memory."""

import re

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, quoted, to_finding
from stethoscope.detectors.job_context import JobContext
from stethoscope.detectors.job_moments import rank_of_mark
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.views import Mark

_GPU = re.compile(r"\bGPU (\d+)\b")


class CudaOomConfig(DetectorConfig, frozen=True, tag="cuda_oom", kw_only=True):
    """``caught_secs``: steps that go on within it show that the program caught the error.

    ``repeat_secs``: what follows within it is the same error, told by other ranks.
    """

    caught_secs: float = 2.0
    repeat_secs: float = 600.0


class CudaOomState(Struct):
    """When the last error of each job was said, and lines that wait. Bound: jobs running."""

    said: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, Mark] = field(default_factory=dict)


class CudaOom:
    """PyTorch's out-of-memory message, in its spellings of 1.x, 2.x and 2.5; one finding a job.

    A program that catches it and steps on (a smaller batch, say) is recorded as ``info``.
    """

    def __init__(self, config: CudaOomConfig) -> None:
        self.config = config
        self.state = CudaOomState()

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Read the tick's lines."""
        marks = job.fresh_marks("oom")
        said_ns = self.state.said.get(job.key)
        fresh = said_ns is None or now_ns - said_ns >= self.config.repeat_secs * NS
        if marks and fresh:
            self.state.waiting.setdefault(job.key, marks[0])
        first = self.state.waiting.get(job.key)
        if first is None:
            return []
        caught = (job.last_step_ns() or 0) > first.time_unix_ns + NS // 10
        if not caught and now_ns - first.time_unix_ns < self.config.caught_secs * NS:
            return []
        return [self._say(job, first, now_ns, caught=caught)]

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        first = self.state.waiting.get(job.key)
        findings = [self._say(job, first, now_ns, caught=False)] if first else []
        self.state.said.pop(job.key, None)
        return findings

    def _say(self, job: JobContext, first: Mark, now_ns: int, *, caught: bool) -> Finding:
        del self.state.waiting[job.key]
        if not caught:  # one that was caught says nothing of the next
            self.state.said[job.key] = now_ns
        condition = Condition(
            cause="cuda_oom",
            subject=_subject(job, first),
            onset_unix_ns=first.time_unix_ns,
            score=None if caught else 1.0,
            evidence=quoted(first.text) + ("; the steps go on" if caught else ""),
            moment=True,
            severity="info" if caught else None,
            raw_events=sum(m.count for m in job.marks if m.mark == "oom"),
        )
        return to_finding(self.config, condition, now_ns)


def _subject(job: JobContext, mark: Mark) -> Subject:
    """The rank that said it; else the GPU it names, where the job has one node."""
    rank = rank_of_mark(job, mark)
    if rank is not None:
        return job.rank_subject(rank)
    match = _GPU.search(mark.text)
    on_node = [g for g in job.gpus if mark.node in (None, g.node)]
    if match and len({g.node for g in on_node}) == 1 and int(match[1]) < len(on_node):
        # PyTorch counts the devices that the process sees: the job's own, in order.
        return job.gpu_subject(on_node[int(match[1])])
    return job.subject()
