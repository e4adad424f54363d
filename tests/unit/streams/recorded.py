"""The packaged recordings, read once, and what the stages make of them."""

import gc
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct, field, structs

from stethoscope.replay.files import read_events
from stethoscope.replay.labels import read_labels
from stethoscope.replay.score import Score, score
from stethoscope.schemas.events import ClockEvent, Event, JobEvent, TopologyEvent
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.incidents import Incident
from stethoscope.streams.config import Config
from stethoscope.streams.node_stage import NodeStage
from stethoscope.streams.pipeline import Pipeline, make_stages

ROOT = Path(__file__).parents[3]
FAULTY = ROOT / "replay/recordings/h200x2_a.jsonl.gz"
HEALTHY = ROOT / "tests/data/recordings/h200x2_e.jsonl.gz"
LABELS = {
    FAULTY: FAULTY.with_name("h200x2_a.labels.jsonl"),
    HEALTHY: HEALTHY.with_name("h200x2_e.labels.jsonl"),
}
# The second job of the faulty recording up to the end of its third fault.
SLICE = range(1_795_968_165 * NS, 1_795_968_302 * NS)


class Told(Struct):
    """All findings and all changes of incidents, in order."""

    findings: list[Finding] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)

    def lines(self) -> list[bytes]:
        """Every byte of it, one finding or change a line."""
        return [msgspec.json.encode(one) for one in (*self.findings, *self.incidents)]

    def final(self) -> list[Incident]:
        """The newest state of each incident."""
        return list({one.incident_id: one for one in self.incidents}.values())


@cache
def events_of(path: Path) -> tuple[Event, ...]:
    """The recording's events; a line that cannot be read is an error."""

    def refuse(error: Exception, where: str) -> None:
        raise AssertionError(f"{where}: {error}") from error

    events = tuple(read_events([path], refuse))
    gc.freeze()  # kept to the end: looking through it for cycles costs a sixth of the time
    return events


@cache
def sliced() -> tuple[Event, ...]:
    """Two minutes of the faulty recording, with three faults."""
    return tuple(e for e in events_of(FAULTY) if e.time_unix_ns in SLICE)


@cache
def both() -> tuple[Event, ...]:
    """Both recordings as one cluster of two nodes that end at the same moment."""
    shift_ns = events_of(FAULTY)[-1].time_unix_ns - events_of(HEALTHY)[-1].time_unix_ns
    moved = [_moved(event, shift_ns) for event in events_of(HEALTHY)]
    return tuple(sorted([*events_of(FAULTY), *moved], key=lambda e: e.time_unix_ns))


def _moved(event: Event, by_ns: int) -> Event:
    if isinstance(event, JobEvent):
        start, end = event.start_unix_ns, event.end_unix_ns
        event = structs.replace(
            event,
            start_unix_ns=None if start is None else start + by_ns,
            end_unix_ns=None if end is None else end + by_ns,
        )
    return structs.replace(event, time_unix_ns=event.time_unix_ns + by_ns)


def piped(events: Iterable[Event], config: Config | None = None) -> Told:
    """What a ``Pipeline`` says of the events."""
    pipeline = Pipeline(config or Config())
    told = Told()
    for changes in (pipeline.feed(events), pipeline.finish()):
        told.findings += changes.findings
        told.incidents += changes.incidents
    assert pipeline.failures() == {}
    return told


@cache
def piped_once(path: Path) -> Told:
    """What a ``Pipeline`` says of an unchanged recording."""
    return piped(events_of(path))


@cache
def sliced_piped() -> Told:
    """What a ``Pipeline`` says of the slice."""
    return piped(sliced())


@cache
def both_piped() -> Told:
    """What a ``Pipeline`` says of both recordings."""
    return piped(both())


def judged(told: Told, path: Path) -> Score:
    """The recording's labels against it."""
    return score(told.final(), read_labels(LABELS[path]))


class Stages:
    """The stages as workers run them: a node stage a group of nodes, one job, one cluster."""

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self._groups = {node: i for i, nodes in enumerate(groups) for node in nodes}
        self._sources = [f"node/{i}" for i in range(len(groups))]
        self.told = Told()
        self._make()

    def _make(self) -> None:
        made = make_stages(Config())
        self.nodes: list[NodeStage] = [made.node_stage(source) for source in self._sources]
        self.job = made.job_stage("job/0", self._sources)
        self.cluster = made.cluster_stage([*self._sources, "job/0"])

    def feed(self, events: Iterable[Event]) -> None:
        """Take events, and give on what follows."""
        for event in events:
            if isinstance(event, JobEvent | TopologyEvent):
                for stage in self.nodes:
                    stage.push_cluster([event])
                self.job.push_cluster([event])
                self.cluster.push_cluster([event])
            elif not isinstance(event, ClockEvent):
                self.nodes[self._groups[event.node]].push([event])
        self.advance()

    def advance(self) -> None:
        """Give on what each stage has passed."""
        for stage in self.nodes:
            for envelope in stage.advance():
                self.job.push(envelope)
                self.cluster.push(envelope)
        for envelope in self.job.advance():
            self.cluster.push(envelope)
        self.told.incidents += self.cluster.advance()
        self.told.findings += self.cluster.drain_findings()

    def restart(self) -> None:
        """Stop, and go on from snapshots."""
        nodes = [stage.snapshot() for stage in self.nodes]
        job, cluster = self.job.snapshot(), self.cluster.snapshot()
        self._make()
        for stage, state in zip(self.nodes, nodes, strict=True):
            stage.restore(state)
        self.job.restore(job)
        self.cluster.restore(cluster)

    def end(self) -> Told:
        """Nothing more will come."""
        for stage in self.nodes:
            stage.end()
        self.advance()
        for stage in self.nodes:
            last = stage.flush()
            if last is not None:
                self.job.push(last)
                self.cluster.push(last)
        self.advance()
        return self.told


def in_batches(events: Sequence[Event], size: int) -> list[Sequence[Event]]:
    """The events in batches of ``size``."""
    return [events[i : i + size] for i in range(0, len(events), size)]
