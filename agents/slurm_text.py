"""``scontrol``, ``squeue -o`` and ``sacct`` as text, for versions without JSON."""

import re
from datetime import UTC, datetime

from stethoscope.agents.slurm_json import JobFacts, gpu_indices
from stethoscope.schemas.events import NodeInfo
from stethoscope.schemas.nodelist import expand

# The name stands last: it alone may hold the separator.
SQUEUE_FORMAT = "%A|%T|%u|%a|%P|%N|%V|%S|%e|%l|%j"
SACCT_FIELDS = "JobIDRaw,State,Start,End"
_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z0-9/&:._-]*)=")
_DURATION = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})")
_GRES_COUNT = re.compile(r"\bgpu(?::[\w.-]+)?:(\d+)")
_SET_BY = re.compile(r"\s*\[[^\]]*@[^\]]*\]\s*$")


def parse_fields(line: str) -> list[tuple[str, str]]:
    """Keys and values of one line of ``scontrol -o``, in order; a key may come again.

    >>> parse_fields("JobId=7 JobName=my job Comment=(null)")
    [('JobId', '7'), ('JobName', 'my job'), ('Comment', '')]
    """
    keys = list(_KEY.finditer(line))
    ends = [key.start() for key in keys[1:]] + [len(line)] * bool(keys)
    pairs = [(key[1], line[key.end() : end].strip()) for key, end in zip(keys, ends, strict=True)]
    return [(key, "" if value in {"(null)", "None", "N/A"} else value) for key, value in pairs]


def parse_jobs(text: str) -> tuple[list[JobFacts], int]:
    """``scontrol show job -o -d``: the jobs, and how many lines could not be read."""
    jobs: list[JobFacts] = []
    wrong = 0
    for line in text.splitlines():
        if not line.strip() or line.startswith("No jobs"):
            continue
        try:
            jobs.append(_job(parse_fields(line)))
        except (KeyError, ValueError):
            wrong += 1
    return jobs, wrong


def parse_squeue(text: str) -> tuple[list[JobFacts], int]:
    """``squeue -h -o SQUEUE_FORMAT``: the jobs without GPUs and restarts; and lines unread."""
    jobs: list[JobFacts] = []
    wrong = 0
    for line in text.splitlines():
        cells = line.split("|", 10)
        if len(cells) != 11 or not cells[0].isdigit():
            wrong += bool(line.strip())
            continue
        job_id, state, user, account, partition, nodes, submit, start, end, limit, name = cells
        jobs.append(
            JobFacts(
                job_id=job_id,
                state=state.split(" ")[0],
                name=name,
                user=user,
                account=account if account != "(null)" else None,
                partition=partition,
                nodelist=nodes,
                submit_secs=parse_time(submit),
                start_secs=parse_time(start),
                end_secs=parse_time(end),
                time_limit_secs=parse_duration(limit),
            )
        )
    return jobs, wrong


def parse_sacct(text: str) -> tuple[str, int | None, int | None] | None:
    """State, start and end of the last run in ``sacct -X -n -P -o SACCT_FIELDS``."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    if not rows or not rows[-1][1]:
        return None
    _, state, start, end = rows[-1]
    return state.split(" ")[0], parse_time(start), parse_time(end)  # "CANCELLED by 1000"


def parse_nodes(text: str) -> dict[str, NodeInfo]:
    """``scontrol show node -o``: what Slurm says of each node."""
    nodes: dict[str, NodeInfo] = {}
    for line in text.splitlines():
        fields = dict(reversed(parse_fields(line)))  # the first of a repeated key counts
        name = fields.get("NodeName")
        if not name or "State" not in fields:
            continue
        address = fields.get("NodeAddr", "")
        reason = _SET_BY.sub("", fields.get("Reason", ""))
        counts = [int(count) for count in _GRES_COUNT.findall(fields.get("Gres", ""))]
        nodes[name] = NodeInfo(
            ip=address if re.fullmatch(r"[\d.]+|[0-9a-f:]*:[0-9a-f:]+", address) else None,
            gpu_count=sum(counts) if counts else None,
            state=node_state(fields["State"]),
            reason=reason or None,
        )
    return nodes


def node_state(text: str) -> str:
    """A node's state as ``sinfo`` words it.

    >>> node_state("MIXED+DRAIN"), node_state("IDLE+DRAIN"), node_state("DOWN*"), node_state("IDLE")
    ('draining', 'drained', 'down', 'idle')
    """
    base, *flags = re.sub(r"[*~#!%$@^-]", "", text.upper()).split("+")
    if "DRAIN" in flags:
        busy = base in {"ALLOCATED", "MIXED", "COMPLETING"} or "COMPLETING" in flags
        return "draining" if busy else "drained"
    if base == "DOWN" or "NOT_RESPONDING" in flags:
        return "down"
    for flag in ("FAIL", "MAINTENANCE", "REBOOT", "POWERED_DOWN", "POWERING_DOWN"):
        if flag in flags:
            return flag.lower()
    return base.lower()


def parse_time(text: str) -> int | None:
    """Slurm's ISO time in UTC (``TZ`` is set so for the commands); ``None`` for its words."""
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def parse_duration(text: str) -> float | None:
    """Seconds of ``days-hours:minutes:seconds``; ``None`` for ``UNLIMITED`` and the like.

    >>> parse_duration("365-00:00:00"), parse_duration("2:00:00"), parse_duration("UNLIMITED")
    (31536000.0, 7200.0, None)
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, secs = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + secs)


def _job(pairs: list[tuple[str, str]]) -> JobFacts:
    fields = dict(reversed(pairs))
    expand(fields.get("NodeList", ""))  # a job whose nodes cannot be told is not told of
    return JobFacts(
        job_id=str(int(fields["JobId"])),
        state=fields["JobState"].split(" ")[0],
        restart=int(fields.get("Restarts") or 0),
        name=fields.get("JobName"),
        user=fields.get("UserId", "").split("(")[0] or None,
        account=fields.get("Account") or None,
        partition=fields.get("Partition"),
        comment=fields.get("Comment", ""),
        nodelist=fields.get("NodeList", ""),
        submit_secs=parse_time(fields.get("SubmitTime", "")),
        start_secs=parse_time(fields.get("StartTime", "")),
        end_secs=parse_time(fields.get("EndTime", "")),
        time_limit_secs=parse_duration(fields.get("TimeLimit", "")),
        tasks=int(count) if (count := fields.get("NumTasks", "")).isdigit() else None,
        gpus=_gpus(pairs),
    )


def _gpus(pairs: list[tuple[str, str]]) -> dict[str, list[int | str]]:
    # With -d, "Nodes=gpu[01-02] CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)" comes once a kind of node.
    found: dict[str, list[int | str]] = {}
    nodes: list[str] = []
    for key, value in pairs:
        if key == "Nodes":
            nodes = expand(value)
        elif key == "GRES" and (indices := gpu_indices(value)):
            found.update(dict.fromkeys(nodes, indices))
    return found
