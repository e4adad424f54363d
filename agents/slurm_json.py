"""``squeue --json`` to jobs.

Versions differ: numbers stand plain or as objects (since 23.02), states alone or in a list.
"""

import re
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from stethoscope.schemas.events import JobEvent
from stethoscope.schemas.job_states import WAITING
from stethoscope.schemas.nodelist import expand

NS = 10**9
_INDICES = re.compile(r"gpu[^(,]*\(IDX:([\d,-]+)\)")
_INDEX_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


class _Number(Struct):
    """A number since data_parser v0.0.39."""

    number: float = 0
    infinite: bool = False
    set: bool = True


class _Job(Struct):
    job_id: int
    job_state: str | list[str]
    name: str | None = None
    user_name: str | None = None
    account: str | None = None
    partition: str | None = None
    comment: str | None = None
    nodes: str | None = None
    restart_cnt: int | None = None
    start_time: int | _Number | None = None
    end_time: int | _Number | None = None
    submit_time: int | _Number | None = None
    time_limit: int | _Number | None = None
    tasks: int | _Number | None = None
    gres_detail: list[str] | None = None


class _Queue(Struct):
    jobs: list[msgspec.Raw]


class JobFacts(Struct):
    """A job as any of Slurm's commands tells it. Times in whole unix seconds, 0 or absent: none."""

    job_id: str
    state: str
    restart: int = 0
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    comment: str = ""
    nodelist: str = ""
    submit_secs: int | None = None
    start_secs: int | None = None
    end_secs: int | None = None
    time_limit_secs: float | None = None
    tasks: int | None = None
    gpus: dict[str, list[int | str]] = msgspec.field(default_factory=dict)


_queue_decoder = msgspec.json.Decoder(_Queue)
_job_decoder = msgspec.json.Decoder(_Job)


def parse_queue(text: bytes) -> tuple[list[JobFacts], int]:
    """The jobs, and how many entries could not be read.

    Raises:
        ValueError: not the JSON of ``squeue``.
    """
    try:
        queue = _queue_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"squeue --json: {error}"
        raise ValueError(message) from error
    jobs: list[JobFacts] = []
    for raw in queue.jobs:
        try:
            jobs.append(_facts(_job_decoder.decode(raw)))
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
    return jobs, len(queue.jobs) - len(jobs)


def gpu_indices(detail: str) -> list[int | str]:
    """GPUs of one node's GRES detail.

    >>> gpu_indices("gpu:h100:3(IDX:0-1,6),nic:1(IDX:0)")
    [0, 1, 6]
    """
    found: list[int | str] = []
    for match in _INDICES.finditer(detail):
        for low, high in _INDEX_RANGE.findall(match[1]):
            found.extend(range(int(low), int(high or low) + 1))
    return found


def gpus_of(nodes: list[str], details: Iterable[str]) -> dict[str, list[int | str]]:
    """GPUs by node; ``details`` run along the nodes."""
    pairs = zip(nodes, details, strict=False)
    return {node: indices for node, detail in pairs if (indices := gpu_indices(detail))}


def to_event(facts: JobFacts, cluster: str, checkpoint_key: str, now_unix_ns: int) -> JobEvent:
    """The job as an event, at the time of its present state as far as Slurm tells it.

    Raises:
        ValueError: its node list is none.
    """
    nodes = expand(facts.nodelist)
    # Listed as REQUEUED is the run to come; of ours, that word ends the run before.
    state = "PENDING" if facts.state == "REQUEUED" else facts.state
    waits = state in WAITING
    over = facts.end_secs is not None and state not in {"RUNNING", "SUSPENDED"} and not waits
    start_secs = None if waits else facts.start_secs or None
    end_secs = facts.end_secs if over else None
    at_secs = end_secs or start_secs or facts.submit_secs
    # A requeued job keeps the time at which it was first submitted.
    known = at_secs is not None and not (waits and facts.restart)
    at_ns = min(now_unix_ns, (at_secs or 0) * NS) if known else now_unix_ns
    return JobEvent(
        time_unix_ns=at_ns,
        cluster=cluster,
        job_id=facts.job_id,
        restart=facts.restart,
        state=state,
        name=facts.name or None,
        user=facts.user or None,
        account=facts.account or None,
        partition=facts.partition or None,
        nodes=nodes or None,
        gpus=facts.gpus,
        ranks=_ranks(nodes, facts),
        start_unix_ns=None if start_secs is None else start_secs * NS,
        end_unix_ns=None if end_secs is None else end_secs * NS,
        time_limit_secs=facts.time_limit_secs,
        checkpoint_dir=_from_comment(facts.comment, checkpoint_key),
    )


def _ranks(nodes: list[str], facts: JobFacts) -> dict[str, list[int]]:
    # Certain only with a task a GPU: then Slurm numbers them node by node (block distribution).
    counts = [len(facts.gpus.get(node, ())) for node in nodes]
    if not nodes or len(set(counts)) != 1 or facts.tasks != sum(counts) or not counts[0]:
        return {}
    size = counts[0]
    return {node: list(range(i * size, (i + 1) * size)) for i, node in enumerate(nodes)}


def _from_comment(comment: str, key: str) -> str | None:
    match = re.search(rf"(?:^|[\s,;]){re.escape(key)}=([^\s,;]+)", comment)
    return match[1] if match else None


def _facts(job: _Job) -> JobFacts:
    states = [job.job_state] if isinstance(job.job_state, str) else job.job_state
    limit_minutes = _number(job.time_limit)
    tasks = _number(job.tasks)
    nodelist = job.nodes or ""
    return JobFacts(
        job_id=str(job.job_id),
        state=states[0].upper() if states else "",
        restart=job.restart_cnt or 0,
        name=job.name,
        user=job.user_name,
        account=job.account,
        partition=job.partition,
        comment=job.comment or "",
        nodelist=nodelist,
        submit_secs=_secs(job.submit_time),
        start_secs=_secs(job.start_time),
        end_secs=_secs(job.end_time),
        time_limit_secs=None if limit_minutes is None else limit_minutes * 60.0,
        tasks=None if tasks is None else int(tasks),
        gpus=gpus_of(expand(nodelist), job.gres_detail or []),
    )


def _number(value: int | _Number | None) -> float | None:
    if isinstance(value, _Number):
        return value.number if value.set and not value.infinite else None
    return value


def _secs(value: int | _Number | None) -> int | None:
    number = _number(value)
    # Slurm writes "never" as 0 or as all ones.
    return int(number) if number and 0 < number < 2**32 - 2 else None
