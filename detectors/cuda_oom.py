"""A rank that ran out of GPU memory."""

import re

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, to_finding
from stethoscope.detectors.job_context import JobContext
from stethoscope.detectors.job_moments import quoted, rank_of_mark
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding, Subject
from stethoscope.schemas.views import Mark

_GPU = re.compile(r"\bGPU (\d+)\b")


class CudaOomConfig(DetectorConfig, frozen=True, tag="cuda_oom", kw_only=True):
    """No settings of its own."""


class CudaOomState(Struct):
    """Jobs whose first out-of-memory was said. Bound: jobs running."""

    said: dict[str, int] = field(default_factory=dict)


class CudaOom:
    """PyTorch's out-of-memory message, in its spellings of 1.x, 2.x and 2.5; one finding a job."""

    def __init__(self, config: CudaOomConfig) -> None:
        self.config = config
        self.state = CudaOomState()

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Read the tick's lines."""
        marks = job.fresh_marks("oom")
        if not marks or job.key in self.state.said:
            return []
        self.state.said[job.key] = now_ns
        first = marks[0]
        condition = Condition(
            cause="cuda_oom",
            subject=_subject(job, first),
            onset_unix_ns=first.time_unix_ns,
            score=1.0,
            evidence=quoted(first),
            moment=True,
            raw_events=sum(m.count for m in marks),
        )
        return [to_finding(self.config, condition, now_ns)]

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        self.state.said.pop(job.key, None)
        return []


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
