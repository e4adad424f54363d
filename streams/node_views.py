"""What the node stage passes on to the job stage: one second of a job's GPUs, host and log."""

import numpy as np

from stethoscope.correlation.placement import Placement
from stethoscope.detectors.fleet import Floats, Table
from stethoscope.detectors.job_context import JOB_METRICS
from stethoscope.detectors.marks import mark_of
from stethoscope.detectors.node_context import NodeContext
from stethoscope.detectors.trainlog import parse_step
from stethoscope.schemas.events import LogEvent, NodeEvent
from stethoscope.schemas.line_rank import rank_of
from stethoscope.schemas.views import GpuView, HostView, LogView, Mark, Step, View
from stethoscope.streams.node_samples import Sample

MAX_MARK_TEXT = 1000
# Of equal marks of one rank in one second the first few say all; the rest are counted on them.
MAX_EQUAL_MARKS = 2


class LogSecond:
    """The lines of one node's second, read and sorted by job."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Step]] = {}
        self.marks: dict[str, list[Mark]] = {}

    def take(self, event: LogEvent, key: str) -> None:
        """Read one training or NCCL line of the job ``key``."""
        step = parse_step(event.line) if event.source == "train" else None
        mark = mark_of(event.line)
        rank = event.rank if event.rank is not None else rank_of(event.line)
        if step is not None:
            self.steps.setdefault(key, []).append(
                Step(
                    time_unix_ns=event.time_unix_ns,
                    iteration=step.iteration,
                    step_secs=step.step_secs,
                    loss=step.loss,
                    grad_norm=step.grad_norm,
                    work=step.work,
                    skipped=step.skipped,
                    nan_iterations=step.nan_iterations,
                    rank=rank,
                )
            )
        if mark is not None:
            self._mark(event, key, mark, rank)

    def _mark(self, event: LogEvent, key: str, mark: str, rank: int | None) -> None:
        marks = self.marks.setdefault(key, [])
        equal = [i for i, m in enumerate(marks) if m.mark == mark and m.rank == rank]
        if len(equal) >= MAX_EQUAL_MARKS:
            last = marks[equal[-1]]
            more = last.count + event.count
            marks[equal[-1]] = Mark(
                last.time_unix_ns, last.mark, last.rank, last.text, more, last.node
            )
            return
        text = event.line[:MAX_MARK_TEXT]
        marks.append(Mark(event.time_unix_ns, mark, rank, text, event.count, event.node))

    def views(self, node: str, second_ns: int) -> list[View]:
        """One view a job."""
        keys = sorted(set(self.steps) | set(self.marks))
        return [
            LogView(
                job=key,
                node=node,
                second_unix_ns=second_ns,
                steps=self.steps.get(key, []),
                marks=self.marks.get(key, []),
            )
            for key in keys
        ]


def gpu_views(
    placement: Placement, table: Table, node: NodeContext, samples: list[Sample], second_ns: int
) -> list[View]:
    """The second's mean of each running job's GPUs on the node."""
    keys = placement.running_on(node.node)
    if not keys or not samples:
        return []
    rows, values = samples[-1][0], samples[-1][2]
    columns = [table.columns.index[m] for m in JOB_METRICS]
    wanted = _mean([s[2][:, columns] for s in samples if len(s[0]) == len(rows)], values)
    subjects = [table.subjects[row] for row in rows.tolist()]
    views: list[View] = []
    for key in keys:
        devices = placement.jobs[key].gpus.get(node.node)
        mine = [
            i
            for i, s in enumerate(subjects)
            if devices is None or s.gpu_index in devices or s.gpu_uuid in devices
        ]
        if not mine:
            continue
        views.append(
            GpuView(
                job=key,
                node=node.node,
                second_unix_ns=second_ns,
                fabrics=node.fabrics,
                model=node.gpu_model,
                indices=[subjects[i].gpu_index or 0 for i in mine],
                uuids=[subjects[i].gpu_uuid or "" for i in mine],
                metrics={
                    name: [None if v != v else v for v in wanted[mine, m].tolist()]
                    for m, name in enumerate(JOB_METRICS)
                },
            )
        )
    return views


def _mean(layers: list[Floats], values: Floats) -> Floats:
    if len(layers) == 1:
        return layers[0]
    stacked = np.stack(layers)
    known = ~np.isnan(stacked)
    count = known.sum(axis=0)
    total = np.where(known, stacked, 0.0).sum(axis=0)
    mean: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def host_views(placement: Placement, event: NodeEvent, second_ns: int) -> list[View]:
    """The host's numbers for the jobs that run there, or whose processes are still there."""
    keys = set(placement.running_on(event.node))
    for process in event.processes:
        if process.job_id is not None:
            keys.add(placement.key_of(event.cluster, process.job_id))
    for key in placement.on_node.get(event.node, [])[-16:]:  # ended ones learn that all is gone
        keys.add(key)
    return [
        HostView(
            job=key,
            node=event.node,
            second_unix_ns=second_ns,
            metrics=event.metrics,
            processes=event.processes,
            stream=event.stream or "",
        )
        for key in sorted(keys)
    ]
