"""Every detector of the registry through one list of checks."""

import ast
import copy
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stethoscope.detectors.fleet import Batch, Table
from stethoscope.detectors.job_context import JobContext, take_host
from stethoscope.detectors.registry import DETECTORS, AnyDetectorConfig, default_detectors
from stethoscope.schemas.causes import cause_catalogue
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.events import IbEvent, LogEvent, Port, Process
from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.views import HostView
from stethoscope.streams.state_codec import encode_state
from stethoscope.streams.wiring import Detectors, Guarded
from tests.unit.detectors.build import (
    HEALTHY,
    IDLE,
    SPINNING,
    Job,
    at,
    kernel,
    megatron,
    node_context,
    train,
)

FOLDER = Path(__file__).parents[2] / "detectors"
# Modules that hold no detector of their own.
HELPERS = {
    "__init__",
    "conditions",
    "fleet",
    "job_context",
    "job_health",
    "job_moments",
    "marks",
    "node_context",
    "registry",
    "slowness",
    "waiting",
    "trainlog",
}
CONFIGS = default_detectors()
LESS = HEALTHY | {"tensor_active_ratio": 0.25, "sm_active_ratio": 0.4}
BAD_SECS = range(60, 160)
SCRIPT_SECS = 290


def kind_of(config: DetectorConfig) -> str:
    return str(config.__struct_config__.tag)


def name_of(config: DetectorConfig) -> str:
    return config.name or kind_of(config)


def reads_of(config: DetectorConfig) -> str:
    return DETECTORS[kind_of(config)].reads


def guarded(config: AnyDetectorConfig) -> Guarded:
    (made,) = Detectors([config]).all()
    return made


every = pytest.mark.parametrize("config", CONFIGS, ids=name_of)
Play = Callable[[Guarded, int], list[Finding]]


# One way to show a second to each kind of reader: healthy, but for BAD_SECS (jobs: the script).


class Samples:
    """Two rows; the first goes bad."""

    def __init__(self, config: Any, *, missing: bool = False) -> None:
        self.metric = getattr(config, "metric", "throttle_reasons_bitmask")
        self.missing = missing
        self.config = config
        self.table: Table | None = None

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        if self.table is None:
            self.table = Table(detector.detector.scope)
            for i in range(2):
                self.table.row(str(i), Subject(node="node01", gpu_index=i))
        values = np.full((2, len(self.table.columns)), np.nan)
        if not self.missing:
            good, bad = self._levels(second)
            values[:, self.table.columns.index[self.metric]] = good
            if second in BAD_SECS:
                values[0, self.table.columns.index[self.metric]] = bad
        times = np.full(2, at(second), dtype=np.int64)
        rows = np.arange(2)
        batch = Batch(self.table, rows.copy(), times.copy(), values.copy())
        found = detector.run("update", batch)
        np.testing.assert_array_equal(batch.values, values)
        np.testing.assert_array_equal(batch.rows, rows)
        np.testing.assert_array_equal(batch.times_ns, times)
        return found

    def _levels(self, second: int) -> tuple[float, float]:
        if kind_of(self.config) == "counter_rise":
            return 3.0, 3.0 + (second // 10) * self.config.min_rise
        if kind_of(self.config) == "gpu_throttled":
            return float(0x4), float(0x44)
        limit, sign = self.config.limit, 1.0 if self.config.direction == "above" else -1.0
        return limit - sign * (0.2 * abs(limit) + 0.5), limit + sign * (0.2 * abs(limit) + 0.5)


class Lines:
    """Lines that mean nothing; two that mean much."""

    def __init__(self, config: DetectorConfig, *, missing: bool = False) -> None:
        self.missing = missing
        self.node = node_context()

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        texts = ["usb 1-1: new device"]
        if second == BAD_SECS.start:
            texts += [
                "NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus",
                "Out of memory: Killed process 4321 (python3) total-vm:1kB",
            ]
        before = encode_state(self.node)
        lines = [] if self.missing else [kernel(text, second) for text in texts]
        found = [f for line in lines for f in detector.run("update", line, self.node)]
        assert encode_state(self.node) == before
        return found


class Ports:
    """Two ports; the first goes down."""

    def __init__(self, config: DetectorConfig, *, missing: bool = False) -> None:
        self.missing = missing
        self.node = node_context()

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        states = ["1: DOWN" if second in BAD_SECS else "4: ACTIVE", "4: ACTIVE"]
        ports = [Port(device=f"mlx5_{i}", port=1, state=s) for i, s in enumerate(states)]
        event = IbEvent(time_unix_ns=at(second), node="node01", ports=[] if self.missing else ports)
        before = encode_state(self.node)
        found = detector.run("update", event, self.node)
        assert encode_state(self.node) == before
        return found


class Scrapes:
    """A node of two GPUs; the first goes missing."""

    def __init__(self, config: DetectorConfig, *, missing: bool = False) -> None:
        self.missing = missing
        self.node = node_context(0 if missing else 2)

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        for i, key in enumerate(self.node.devices):
            if i or second not in BAD_SECS:
                self.node.devices[key] = at(second)
        before = encode_state(self.node)
        found = detector.run("update", self.node, at(second), at(second))
        assert encode_state(self.node) == before
        return found


class Blindness:
    """A node of ten metrics; eight go missing."""

    def __init__(self, config: DetectorConfig, *, missing: bool = False) -> None:
        self.missing = missing
        self.node = node_context()

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        values = np.full((2, 10), np.nan)
        if not self.missing:
            values[:, : 2 if second in BAD_SECS else 10] = 1.0
        before = values.copy()
        self.node.heard_ns = at(second)
        found = detector.run("scrape", "node01", at(second), values)
        np.testing.assert_array_equal(values, before)
        return found + detector.run("update", self.node, at(second), at(second))


class Clocks:
    """A node whose events are dated two days ahead for a while."""

    def __init__(self, config: DetectorConfig, *, missing: bool = False) -> None:
        self.missing = missing
        self.node = node_context()

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        ahead_secs = 172_800.0 if second in BAD_SECS and not self.missing else 0.0
        before = encode_state(self.node)
        found = detector.run("update", self.node, ahead_secs, at(second))
        assert encode_state(self.node) == before
        return found


class Nodes:
    """Two nodes; the first falls silent."""

    def __init__(self, config: DetectorConfig, *, missing: bool = False) -> None:
        self.missing = missing
        self.seen: dict[str, int] = {}

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        if not self.missing:
            self.seen["default/node02"] = at(second)
            if second not in BAD_SECS:
                self.seen["default/node01"] = at(second)
        before = dict(self.seen)
        found = detector.run("update", self.seen, at(second))
        assert self.seen == before
        return found


class Jobs:
    """A job that lives through one fault after another, and fails."""

    def __init__(self, config: DetectorConfig, *, missing: bool = False) -> None:
        self.missing = missing
        self.job = Job()

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        self.job.detectors = (Watched(detector),)
        if self.missing:
            return self.job.tick([], dict.fromkeys(HEALTHY, math.nan), None)
        if second == SCRIPT_SECS - 1:
            return self.job.end("FAILED")
        if lines := SAID.get(second):
            return self.job.tick(lines, SPINNING, rank=None)
        if second >= 210:
            return self.job.tick([], [SPINNING, IDLE])
        return self._steps(second)

    def _steps(self, second: int) -> list[Finding]:
        if 60 <= second < 80:
            return self.job.run(1, 0.375, gpus=[LESS, LESS | {"processes_count": 2.0}])
        if 110 <= second < 126:
            return self.job.run(1, lambda i: 2.0 if i % 4 == 0 else 0.25, gpus=LESS)
        if 150 <= second < 156:
            return self.job.run(1, 0.25, lambda i, t: megatron(i, 1000 * t, loss=math.nan))
        if 160 <= second < 180:
            return self.job.run(1, 0.25, lambda i, t: megatron(i, 1000 * t, loss=9.0, norm=150.0))
        return self.job.run(1, 0.25)


SAID: dict[int, list[str]] = {
    5: ["n:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0"],
    200: ["api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 2630) of binary: /bin/py"],
    203: ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 1 has"],
    206: [
        "[rank0]:[E x.cpp:607] [Rank 0] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=4, OpType=ALLREDUCE, Timeout(ms)=15000) ran for 15001 milliseconds"
    ],
}


class Watched:
    """A detector that may change nothing of the job but when it was disturbed."""

    def __init__(self, detector: Guarded) -> None:
        self.detector = detector

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        return self._run("update", job, now_ns)

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        return self._run("close", job, now_ns)

    def _run(self, verb: str, job: JobContext, now_ns: int) -> list[Finding]:
        if now_ns // NS % 10:
            return self.detector.run(verb, job, now_ns)
        disturbed_ns, before = job.disturbed_ns, encode_state(job)
        found = self.detector.run(verb, job, now_ns)
        after = copy.copy(job)
        after.disturbed_ns = disturbed_ns
        assert encode_state(after) == before
        return found


class EndedJobs:
    """A job that ended and left a process behind, for a while."""

    def __init__(self, config: DetectorConfig, *, missing: bool = False) -> None:
        self.job = Job()
        self.job.end("FAILED")
        self.left = [] if missing else [Process(name="python3", pid=674, job_id="77", rank=1)]

    def __call__(self, detector: Guarded, second: int) -> list[Finding]:
        view = HostView(
            job=self.job.context.key,
            node="node01",
            second_unix_ns=at(second),
            metrics={},
            processes=self.left if second in BAD_SECS else [],
        )
        take_host(self.job.context, view)
        return detector.run("after", self.job.context, at(second))


PLAYS: dict[str, Any] = {
    "samples": Samples,
    "lines": Lines,
    "ports": Ports,
    "scrapes": Scrapes,
    "blindness": Blindness,
    "clocks": Clocks,
    "nodes": Nodes,
    "jobs": Jobs,
    "ended_jobs": EndedJobs,
}


def play(
    config: AnyDetectorConfig, *, restart_every: int = 0, missing: bool = False
) -> list[Finding]:
    """The script, with the state through bytes and back every so many seconds."""
    detector, show = guarded(config), PLAYS[reads_of(config)](config, missing=missing)
    found: list[Finding] = []
    for second in range(SCRIPT_SECS):
        if restart_every and second % restart_every == 0:
            state = detector.dump()
            detector = guarded(config)
            detector.load(state)
            assert detector.dump() == state
        found += show(detector, second)
        assert detector.failures == 0, f"{name_of(config)} raised"
    return found


@pytest.fixture(scope="module")
def found() -> Callable[[AnyDetectorConfig], list[Finding]]:
    """What each detector says of the script, played once."""
    known: dict[str, list[Finding]] = {}

    def look_up(config: AnyDetectorConfig) -> list[Finding]:
        if name_of(config) not in known:
            known[name_of(config)] = play(config)
        return known[name_of(config)]

    return look_up


Found = Callable[[AnyDetectorConfig], list[Finding]]


@every
def test_it_says_something_of_the_script(config: AnyDetectorConfig, found: Found) -> None:
    assert [f for f in found(config) if not f.cleared]


@every
def test_findings_are_well_formed(config: AnyDetectorConfig, found: Found) -> None:
    for finding in found(config):
        assert finding.cause in cause_catalogue()
        assert finding.detector == name_of(config)
        assert finding.started_unix_ns <= finding.observed_unix_ns
        assert finding.score is None or finding.score >= 1.0
        assert not (finding.moment and finding.cleared)
        assert finding.cleared or finding.evidence
        assert finding.severity in (None, "critical", "warning", "info")
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(finding), type=Finding) == finding


@every
def test_each_level_is_said_once_and_cleared_once(config: AnyDetectorConfig, found: Found) -> None:
    levels = [f for f in found(config) if not f.moment]
    raised = [f.finding_id for f in levels if not f.cleared]
    cleared = [f.finding_id for f in levels if f.cleared]
    assert len(raised) == len(set(raised))
    assert sorted(cleared) == sorted(raised)
    for finding in levels:
        assert (finding.ended_unix_ns is not None) == finding.cleared


@every
def test_a_restart_changes_nothing(config: AnyDetectorConfig, found: Found) -> None:
    assert play(config, restart_every=7) == found(config)


@every
def test_what_is_missing_says_nothing(config: AnyDetectorConfig) -> None:
    assert play(config, missing=True) == []


@every
def test_mode_and_severity_of_the_configuration_are_the_findings(
    config: AnyDetectorConfig, found: Found
) -> None:
    told = {"mode": "observe", "severity": "critical"}
    expected = [msgspec.structs.replace(f, **told) for f in found(config)]
    assert play(msgspec.structs.replace(config, **told)) == expected


@every
def test_off_means_off(config: AnyDetectorConfig) -> None:
    assert Detectors([msgspec.structs.replace(config, mode="off")]).all() == []


def sizes(config: AnyDetectorConfig, secs: Iterator[int]) -> list[int]:
    """Bytes of state after the 2,000th and the 6,000th second of healthy input."""
    detector, show = guarded(config), PLAYS[reads_of(config)](config)
    found: list[int] = []
    for second in secs:
        show(detector, second)
        if second in (BAD_SECS.stop + 2000, BAD_SECS.stop + 6000):
            found.append(len(detector.dump()))
    return found


@pytest.mark.parametrize("config", [c for c in CONFIGS if reads_of(c) != "jobs"], ids=name_of)
def test_memory_plateaus(config: AnyDetectorConfig) -> None:
    early, late = sizes(config, iter(range(BAD_SECS.stop, BAD_SECS.stop + 6001, 4)))
    assert abs(late - early) <= 0.05 * early + 16


def test_memory_of_job_detectors_plateaus() -> None:
    watchers = [guarded(c) for c in CONFIGS if reads_of(c) == "jobs"]
    job = Job(*(w.detector for w in watchers))
    job.run(2000, 1.0)
    early = {w.name: len(w.dump()) for w in watchers}
    job.run(4000, 1.0)
    late = {w.name: len(w.dump()) for w in watchers}
    assert job.findings == []
    for name, size in early.items():
        assert abs(late[name] - size) <= 0.05 * size + 16, name


def test_a_job_that_ended_leaves_no_state() -> None:
    watchers = [guarded(c) for c in CONFIGS if reads_of(c) == "jobs"]
    fresh = {w.name: len(w.dump()) for w in watchers}
    job = Job(*(w.detector for w in watchers))
    job.run(100, 0.5)
    for lines in SAID.values():
        job.tick(lines, SPINNING, rank=None)
    assert {w.name: len(w.dump()) for w in watchers} != fresh
    job.end("FAILED")
    assert {w.name: len(w.dump()) for w in watchers} == fresh


# The registry and the modules.


def modules() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.py") if path.stem not in HELPERS)


def test_helpers_exist() -> None:
    assert all((FOLDER / f"{name}.py").exists() for name in HELPERS)


def test_every_module_is_registered_under_its_own_name() -> None:
    assert {path.stem for path in modules()} == set(DETECTORS)


@pytest.mark.parametrize("kind", DETECTORS)
def test_kind_file_and_class_are_one_word(kind: str) -> None:
    entry = DETECTORS[kind]
    assert entry.detector.__module__.rsplit(".", 1)[-1] == kind
    assert entry.detector.__name__ == "".join(word.capitalize() for word in kind.split("_"))
    assert entry.config.__name__ == f"{entry.detector.__name__}Config"
    assert entry.config.__struct_config__.tag == kind
    assert entry.config.__doc__
    assert entry.detector.__doc__
    assert entry.reads in PLAYS


def test_every_kind_runs_by_default_once_a_name() -> None:
    names = [name_of(config) for config in CONFIGS]
    assert len(names) == len(set(names))
    assert {kind_of(config) for config in CONFIGS} == set(DETECTORS)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_no_clock_no_chance_no_io(path: Path) -> None:
    forbidden = {"time", "datetime", "random", "os", "socket", "pathlib", "secrets", "asyncio"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
        assert not (isinstance(node, ast.Attribute) and node.attr == "random"), path.name
        assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open")
    assert not imported & forbidden
    assert not (imported & sys.stdlib_module_names) - {
        "bisect",
        "collections",
        "itertools",
        "math",
        "re",
        "statistics",
        "typing",
    }


def test_a_raising_detector_is_isolated_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    (xid,) = (c for c in CONFIGS if kind_of(c) == "xid")
    broken = guarded(xid)
    broken.detector.update = None
    line: LogEvent = train("x")
    assert [broken.run("update", line, node_context()) for _ in range(3)] == [[], [], []]
    assert broken.failures == 3
    assert [r.message for r in caplog.records] == ["detector failed"]
