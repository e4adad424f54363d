"""NCCL over sockets or host memory where NVLink or InfiniBand was expected."""

import pytest

from stethoscope.detectors.nccl_path import NcclPath, NcclPathConfig
from stethoscope.schemas.findings import Finding

from .build import HEALTHY, Job, at


def channel(via: str, sender: int = 1, receiver: int = 0) -> str:
    return (
        f"node01:673:690 [{receiver}] NCCL INFO Channel 00/0 : {sender}[{sender}] ->"
        f" {receiver}[{receiver}] [receive] via {via}"
    )


def read(
    *lines: str, nodes: int = 1, fabrics: tuple[str, ...] = (), expect_ib: bool | None = None
) -> list[Finding]:
    names = [f"node{i:02d}" for i in range(1, nodes + 1)]
    job = Job(NcclPath(NcclPathConfig(expect_ib=expect_ib)), nodes=names)
    job.tick([], HEALTHY)
    job.context.fabrics = {name: list(fabrics) for name in names}
    job._see_gpus = lambda gpus: None  # type: ignore[method-assign]  # fabrics stay as set
    return [*job.tick(list(lines)), *job.tick(list(lines))]


def test_sockets_within_a_node_are_wrong_and_said_once() -> None:
    lines = [channel("NET/Socket/0"), channel("NET/Socket/0", 0, 1)]
    (only,) = read(*lines)
    assert (only.cause, only.subject.job_id, only.subject.node) == (
        "nccl_wrong_path",
        "77",
        "node01",
    )
    assert only.moment
    assert only.score == 1.0
    assert only.started_unix_ns == at(1.5)
    assert only.raw_events == 2
    assert "NET/Socket" in only.evidence


@pytest.mark.parametrize(
    "lines",
    [
        ["node01:673:673 [0] NCCL INFO Using network Socket", channel("P2P/CUMEM")],
        ["node01:673:673 [0] NCCL INFO NET/IB : No device found."],
        ["node01:673:673 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>"],
        ["node01:673:673 [0] NCCL INFO Initialized NET plugin Socket"],
        [channel("P2P/IPC"), channel("P2P/direct pointer")],
        [channel("NET/IB/0/GDRDMA")],
    ],
    ids=["using socket", "no ib", "interface", "plugin", "p2p", "ib"],
)
def test_what_nccl_says_of_a_healthy_node_is_none(lines: list[str]) -> None:
    assert read(*lines) == []


def test_sockets_between_nodes_are_wrong_only_where_ib_was_seen() -> None:
    line = channel("NET/Socket/0", 2, 0)
    assert read(line, nodes=2) == []
    assert len(read(line, nodes=2, fabrics=("ib",))) == 1
    assert read(line, nodes=2, fabrics=("ib",), expect_ib=False) == []
    assert len(read(line, nodes=2, expect_ib=True)) == 1


def test_sockets_within_one_node_of_many_are_wrong() -> None:
    assert len(read(channel("NET/Socket/0", 1, 0), nodes=2)) == 1


def test_host_memory_is_wrong_only_where_nvlink_works() -> None:
    line = channel("SHM/direct/direct")
    assert read(line) == []
    assert len(read(line, fabrics=("nvlink",))) == 1
    assert read(channel("SHM/direct/direct", 2, 0), nodes=2, fabrics=("nvlink",)) == []


def test_the_next_job_is_told_again() -> None:
    detector = NcclPath(NcclPathConfig())
    for _ in range(2):
        job = Job(detector)
        assert len(job.tick([channel("NET/Socket/0")])) == 1
        job.end("COMPLETED")
