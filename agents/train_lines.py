"""One training log's lines, from bytes to what goes out: cleaning, rank, rules, limit. No I/O."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from stethoscope.agents.reader import Counters
from stethoscope.agents.train_rules import URGENT, Rule, rule_of
from stethoscope.schemas.line_rank import prefix_of, rank_of

MAX_BLOCK_LINES = 200
MAX_PROCESSES = 4096

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# What containerd and cri-o put before each line; Docker's JSON is brought to the same form.
_CONTAINER = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] ")
_NCCL_PROCESS = re.compile(r"(\S+:\d+):\d+ \[\d+\] NCCL ")
_NCCL_COMM = re.compile(r"\brank (\d+) nranks (\d+)\b")


class Kept(NamedTuple):
    """A line that goes out."""

    source: Literal["train", "nccl"]
    line: str
    rank: int | None


def clean(body: bytes) -> str:
    r"""Text without escape sequences and control characters; bad UTF-8 becomes U+FFFD.

    >>> clean(b"\x1b[32mstep 1\x1b[0m loss \xff")
    'step 1 loss \ufffd'
    """
    if body.startswith(b'{"log":'):
        body = _from_docker(body)
    text = body.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("", text).rstrip()


def unwrapped(text: str) -> str:
    """The line without what the container runtime put before it.

    >>> unwrapped("2026-11-29T16:00:00.123456789Z stdout F step 1 loss 2")
    'step 1 loss 2'
    """
    match = _CONTAINER.match(text)
    return text[match.end() :] if match else text


def _from_docker(body: bytes) -> bytes:
    try:
        entry = msgspec.json.decode(body, type=_DockerEntry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    return f"{entry.time} {entry.stream} F {entry.log}".encode("utf-8", errors="replace")


class _DockerEntry(Struct):
    log: str
    stream: str
    time: str


class Limit:
    """A bucket of lines: ``per_sec`` flow in, ``burst`` fit; the last quarter is for the urgent."""

    def __init__(self, per_sec: float, burst: int) -> None:
        self._per_sec = per_sec
        self._burst = float(burst)
        self._left = float(burst)
        self._monotonic_ns: int | None = None

    def allows(self, monotonic_ns: int, *, urgent: bool) -> bool:
        """Take one line out, where one is left."""
        passed_ns = 0 if self._monotonic_ns is None else monotonic_ns - self._monotonic_ns
        self._monotonic_ns = monotonic_ns
        self._left = min(self._burst, self._left + self._per_sec * max(0, passed_ns) / 1e9)
        if self._left < 1.0 + (0.0 if urgent else self._burst / 4):
            return False
        self._left -= 1.0
        return True


class NcclRanks:
    """Which rank writes as ``host:pid`` in NCCL's lines; the largest communicator's rank counts."""

    def __init__(self, known: dict[str, tuple[int, int]]) -> None:
        self._known = known  # process: (size, rank)

    def of(self, line: str) -> int | None:
        """The rank of an NCCL line's process, once it has said it."""
        process = _NCCL_PROCESS.match(line)
        if process is None:
            return None
        size, rank = self._known.get(process[1], (0, -1))
        comm = _NCCL_COMM.search(line)
        if comm and int(comm[2]) > size and len(self._known) < MAX_PROCESSES:
            size, rank = int(comm[2]), int(comm[1])
            self._known[process[1]] = (size, rank)
        return rank if size else None


class FilterState(Struct):
    """What a log's lines so far say of those to come.

    ``blocks``: lines of the traceback under way, by prefix; ``ranks``: NCCL's (size, rank) by
    process.
    """

    blocks: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Entries in all."""
        return len(self.blocks) + len(self.ranks)


class LineFilter:
    """Decides for each line of one log whether it goes out.

    A traceback goes out as a whole, also where ranks interleave: a block is kept for each prefix.
    State: one number a prefix and one pair a process, at most ``MAX_PROCESSES`` of each.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        limit: Limit,
        counters: Counters,
        state: FilterState | None = None,
    ) -> None:
        self.state = state or FilterState()
        self._rules = rules
        self._limit = limit
        self._counters = counters
        self._blocks = self.state.blocks
        self._nccl_ranks = NcclRanks(self.state.ranks)

    def take(self, text: str, monotonic_ns: int) -> Kept | None:
        """The line as it goes out, or ``None``: no rule reads it, or there were too many."""
        prefix = prefix_of(text)
        rest = text[len(prefix) :]
        in_block = self._in_block(prefix, rest)
        if not rest.strip():
            return None
        rule = None if in_block else rule_of(rest, self._rules)
        if rule is None and not in_block:
            self._counters.skip("no_rule")
            return None
        if rule is not None and rule.name == "traceback" and len(self._blocks) < MAX_PROCESSES:
            self._blocks[prefix] = 0
        category = rule.category if rule is not None else "error"
        if not self._limit.allows(monotonic_ns, urgent=category in URGENT):
            self._counters.skip("rate_limited")
            return None
        nccl_rank = self._nccl_ranks.of(rest) if category == "nccl" else None
        rank = nccl_rank if nccl_rank is not None else rank_of(text)
        return Kept("nccl" if category == "nccl" else "train", text, rank)

    def _in_block(self, prefix: str, rest: str) -> bool:
        lines = self._blocks.get(prefix)
        if lines is None:
            return False
        # The first line that is not indented is the exception itself, and the block's last.
        if lines >= MAX_BLOCK_LINES or (rest and not rest[0].isspace()):
            del self._blocks[prefix]
            return lines < MAX_BLOCK_LINES
        self._blocks[prefix] = lines + 1
        return True
