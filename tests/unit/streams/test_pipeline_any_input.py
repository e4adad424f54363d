"""Events that are well-formed and make no sense: nothing raises, and the order does not matter."""

import random

import pytest

from stethoscope.schemas.events import (
    Checkpoint,
    ClockEvent,
    Device,
    Event,
    GpuEvent,
    HeartbeatEvent,
    IbEvent,
    JobEvent,
    LogEvent,
    NodeEvent,
    NodeInfo,
    Port,
    Process,
    TopologyEvent,
)
from stethoscope.schemas.findings import NS
from stethoscope.streams.config import Config
from stethoscope.streams.pipeline import Pipeline

from .made import HEALTHY, at, line, step
from .recorded import Stages

NODES = ["node01", "NODE01.example", "node02", "x"]
NUMBERS = [None, 0.0, 1.0, -1.0, 0.5, 1e9, 1e300, float("inf"), float("nan"), 2.0**47, 95.0]
STATES = ["RUNNING", "PENDING", "COMPLETED", "FAILED", "CANCELLED by 1", "REQUEUED", "", "?"]
LINES = [
    "",
    "loss",
    "NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus",
    "NVRM: Xid (PCI:zz): 7, x",
    "NVRM: The NVIDIA GPU 0000:00:06.0",
    "NVRM: fallen off the bus and is not responding to commands.",
    "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30",
    "Out of memory: Killed process 4321 (python3)",
    "api.py:869] failed (exitcode: -9) local_rank: 99 (pid: 2630) of binary: /bin/py",
    "srun: error: node02: task 289: Bus error",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=, Timeout(ms)=)",
    "[rank7]: detected by watchdog at work: 8, last enqueued NCCL work: 1",
    "NCCL INFO Channel 00/0 : 99[1] -> 0[0] [receive] via NET/Socket/0",
    "torch.OutOfMemoryError: CUDA out of memory. GPU 99 has",
    "Traceback (most recent call last):",
    "ValueError: x",
    "saving checkpoint at iteration 4",
    " 50%|# | 5/10 [00:00<00:01,  0.00it/s]",
    "iteration 99999999999999999999/ 1 | lm loss: 1e999 | grad norm: -inf |",
    "step 1 loss nan num_tokens: 0 dt: 0ms",
    "\x00\ufffd\ud7ff" * 50,
]


def any_event(rng: random.Random, secs: float, seq: int) -> Event:
    node, boot = rng.choice(NODES), rng.choice(["b", "c"])
    time_ns = at(secs) + rng.randrange(NS)
    common: dict[str, object] = {"time_unix_ns": time_ns, "node": node, "boot_id": boot, "seq": seq}
    kind = rng.randrange(10)
    if kind < 3:
        return any_scrape(rng, common)
    if kind < 6:
        where = rng.choice(["train", "nccl", "kernel", "system"])
        text = rng.choice([*LINES, step(0, rng.randrange(50), rng.random() * 900).line])
        rank, of = rng.choice([None, 0, 1, 99]), rng.choice([None, "1", "2", "9"])
        source = line(0, "", source=where).source
        return LogEvent(**common, source=source, line=text, job_id=of, rank=rank)  # type: ignore[arg-type]  # common fields
    if kind == 6:
        process = Process("p", rng.randrange(9), job_id=rng.choice([None, "1"]), rank=0)
        metrics = {"cpu_busy_ratio": rng.choice(NUMBERS), "shoe_size": 43.0}
        return NodeEvent(
            **common,  # type: ignore[arg-type]
            metrics=metrics,
            processes=[process],
            checkpoints=[Checkpoint("/c")],
        )
    if kind == 7:
        port = Port(rng.choice(["mlx5_0", ""]), rng.randrange(2), state=rng.choice(STATES))
        counters = {"symbol_error": [rng.choice([None, -1, 2**40])], "link_downed": [1, 2]}
        return IbEvent(**common, ports=[port], counters=counters)  # type: ignore[arg-type]  # common fields
    if kind == 8:
        return any_job(rng, time_ns)
    if rng.random() < 0.1:
        return ClockEvent(time_unix_ns=time_ns)
    return HeartbeatEvent(**common)  # type: ignore[arg-type]  # common fields


def any_scrape(rng: random.Random, common: dict[str, object]) -> GpuEvent:
    count = rng.randrange(4)
    devices = [
        Device(rng.choice([f"GPU-{i}", "GPU-x", ""]), i, rng.choice(["", "zz", f"0:0{i}:00"]))
        for i in range(count)
    ]
    names = [*rng.sample(sorted(HEALTHY), 4), "row_remap_failure", "ecc_dbe_volatile_total", "?"]
    metrics = {n: [rng.choice(NUMBERS) for _ in range(count + (rng.random() < 0.1))] for n in names}
    return GpuEvent(**common, devices=devices, metrics=metrics)  # type: ignore[arg-type]  # common fields


def any_job(rng: random.Random, time_ns: int) -> Event:
    if rng.random() < 0.2:
        info = {rng.choice(NODES): NodeInfo(aliases=[rng.choice(NODES), ""])}
        return TopologyEvent(time_unix_ns=time_ns, nodes=info, racks={rng.choice(NODES): "r"})
    devices: list[list[int | str]] = [[], [0], [0, 1], ["GPU-0", "GPU-x"], [7], [0, 0]]
    return JobEvent(
        time_unix_ns=time_ns,
        job_id=rng.choice(["1", "2", ""]),
        state=rng.choice(STATES),
        restart=rng.randrange(2),
        nodes=rng.choice([None, [], ["node01"], NODES]),
        nodelist=rng.choice([None, "node[01-02]", "node[", "(null)"]),
        gpus={n: rng.choice(devices) for n in rng.sample(NODES, rng.randrange(3))},
        ranks={n: rng.choice([[], [0], [0, 1], [5, 4, 3]]) for n in rng.sample(NODES, 2)},
        start_unix_ns=rng.choice([None, at(0), at(20), time_ns]),
        end_unix_ns=rng.choice([None, time_ns, at(10)]),
    )


def stream(seed: int) -> list[Event]:
    rng = random.Random(seed)  # noqa: S311 - test data
    return [any_event(rng, i / 10, i) for i in range(900)]


@pytest.mark.parametrize("seed", range(12))
def test_nothing_raises(seed: int) -> None:
    pipeline = Pipeline(Config())
    told = pipeline.feed(stream(seed))
    last = pipeline.finish()
    assert pipeline.failures() == {}
    for finding in (*told.findings, *last.findings):
        assert finding.score is None or finding.score >= 1.0
        assert finding.started_unix_ns <= finding.observed_unix_ns


@pytest.mark.parametrize("seed", range(3))
def test_restarts_give_the_same_bytes(seed: int) -> None:
    events = stream(seed)
    whole, restarted = (Stages([NODES]) for _ in range(2))
    for i, event in enumerate(events):
        whole.feed([event])
        restarted.feed([event])
        if i % 29 == 0:
            restarted.restart()
    assert restarted.end().lines() == whole.end().lines()


@pytest.mark.parametrize("seed", range(3))
def test_any_order_within_a_second_gives_the_same_bytes(seed: int) -> None:
    events = [e for e in stream(seed) if not isinstance(e, ClockEvent)]
    rng = random.Random(seed)  # noqa: S311 - test data
    moved = {id(event): event.time_unix_ns + rng.randrange(NS) for event in events}
    one, two = (Stages([NODES]) for _ in range(2))
    for event in sorted(events, key=lambda e: e.time_unix_ns):
        one.feed([event])
    for event in sorted(events, key=lambda e: moved[id(e)]):
        two.feed([event])
    assert two.end().lines() == one.end().lines()
