"""NCCL over sockets or host memory where NVLink or InfiniBand was expected."""

import re

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, quoted, to_finding
from stethoscope.detectors.job_context import JobContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.views import Mark

_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[[^\]]*\] -> (\d+)\[[^\]]*\].* via (\S+)")


class NcclPathConfig(DetectorConfig, frozen=True, tag="nccl_path", kw_only=True):
    """Sockets between ranks of one node are always wrong; across nodes where ``expect_ib``.

    ``expect_ib``: the cluster's nodes talk over InfiniBand or RoCE. ``None`` learns it: where every
    node of the job has an active port, sockets between them are a fallback.
    """

    expect_ib: bool | None = None


class NcclPathState(Struct):
    """Jobs that were told of. Bound: those running."""

    said: dict[str, int] = field(default_factory=dict)


class NcclPath:
    """A channel that names its transport: ``via NET/Socket``, ``via SHM``, ``via P2P``.

    That NCCL *initialises* the socket plugin means nothing: without InfiniBand it is the network
    of every job, whose ranks may talk over NVLink all the same. Only channels count.
    """

    def __init__(self, config: NcclPathConfig) -> None:
        self.config = config
        self.state = NcclPathState()

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Read the tick's channel lines; one finding a job."""
        if job.key in self.state.said:
            return []
        for mark in job.fresh_marks("nccl_socket", "nccl_shm"):
            why = self._wrong(job, mark)
            if why:
                self.state.said[job.key] = mark.time_unix_ns
                return [to_finding(self.config, self._condition(job, mark, why), now_ns)]
        return []

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        self.state.said.pop(job.key, None)
        return []

    def _wrong(self, job: JobContext, mark: Mark) -> str | None:
        match = _CHANNEL.search(mark.text)
        nodes = {g.rank: g.node for g in job.gpus}
        one_node = len(set(job.nodes())) == 1
        if match:
            ends = nodes.get(int(match[1])), nodes.get(int(match[2]))
            one_node = one_node or (ends[0] is not None and ends[0] == ends[1])
        if mark.mark == "nccl_shm":
            joined = one_node and _have(job, "nvlink")
            return "host memory between GPUs that NVLink joins" if joined else None
        if one_node:
            return "sockets between GPUs of one node"
        expected = _have(job, "ib") if self.config.expect_ib is None else self.config.expect_ib
        return "sockets where InfiniBand was expected" if expected else None

    def _condition(self, job: JobContext, mark: Mark, why: str) -> Condition:
        lines = sum(m.count for m in job.fresh_marks("nccl_socket", "nccl_shm"))
        return Condition(
            cause="nccl_wrong_path",
            subject=job.subject(),
            onset_unix_ns=mark.time_unix_ns,
            score=1.0,
            evidence=f"{why}: {quoted(mark.text)}",
            moment=True,
            raw_events=lines,
        )


def _have(job: JobContext, fabric: str) -> bool:
    """Whether every node of the job was seen to have it."""
    nodes = job.nodes()
    return bool(nodes) and all(fabric in job.fabrics.get(node, []) for node in nodes)
