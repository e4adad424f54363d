"""Which lines of a training log go out: a written list of rules, each with its examples.

A rule has *clues* (lower-case words of which a line must hold one, which is quick to see) and a
pattern that decides. The first rule that reads a line wins. What the numbers in a line mean is
not decided here. Sources: the print statements of the named projects.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from stethoscope.schemas.agent_config import LineRule
from stethoscope.schemas.errors import ConfigError

Category: TypeAlias = Literal["step", "nccl", "error", "checkpoint", "progress", "user"]
# What a burst of step lines must not crowd out.
URGENT: frozenset[Category] = frozenset({"error", "nccl", "user"})


class Rule(NamedTuple):
    """One kind of line."""

    name: str
    category: Category
    clues: tuple[str, ...]
    pattern: "re.Pattern[str]"

    def reads(self, line: str, lowered: str) -> bool:
        """Whether the line is of this kind; ``lowered`` is the line in lower case."""
        return any(clue in lowered for clue in self.clues) and bool(self.pattern.search(line))


# Some patterns take time in the square of the length; all that they look for is near the start.
SEARCH_CHARS = 4096


def _rule(name: str, category: Category, clues: str, *patterns: str) -> Rule:
    return Rule(name, category, tuple(clues.split("|")), re.compile("|".join(patterns)))


_NUMBER = r"[-+]?(?:\d|\.\d|nan\b|inf\b)"
_NOT_TRAINING = r"Download|Load|Tokeniz|Map\b|Generat|Filter|Fetch|Resolv|Extract|Captur|Convert"
_SAVE = r"sav(?:e|ed|es|ing)|load(?:ed|ing)?|writ(?:e|ing|ten)|wrote|resum\w+|restor\w+|complete\w*"

RULES: tuple[Rule, ...] = (
    _rule("megatron", "step", "iteration", r"\biteration\s+\d+\s*/\s*\d+"),
    _rule(
        "traceback",
        "error",
        "traceback|above exception",
        r"Traceback \(most recent call last\)|[Tt]he above exception",
    ),
    _rule(
        "nccl_warn",
        "nccl",
        "nccl warn|nccl error|ncclremote|ncclsystem|ncclinternal|ncclunhandled|ncclinvalid"
        "|got completion|socketprogress",
        r"NCCL (?:WARN|ERROR)",
        r"nccl[A-Z]\w*Error|ncclInvalid\w+",
        r"Got completion|socketProgress",
    ),
    _rule(
        "nccl_info",
        "nccl",
        "nccl info",
        r"NCCL INFO (?:NCCL version|cudaDriverVersion|Using network|Bootstrap: Using|NET/Socket)",
        r"NCCL INFO NET/\w+ ?: (?:Using|No device|.*(?:[Ee]rror|fail))",
        r"NCCL INFO (?:Assigned|Initialized) NET plugin",
        r"NCCL INFO Channel \d+.* via ",
        r"NCCL INFO (?:ncclCommInit\w* |comm 0x|Init timings|Connected all|\d+ coll channels)",
        r"NCCL INFO (?:NCCL_\w+ set by environment|Call to .* failed)",
        r"NCCL INFO .*(?:[Tt]imed? ?out|[Aa]bort|COMPLETE|[Rr]etry|[Ee]rror|nranks)",
    ),
    _rule("nccl_version", "nccl", "nccl version", r"\bNCCL version \d"),
    _rule(
        "pytorch_watchdog",
        "error",
        "processgroup|worknccl|watchdog|heartbeat|flight|dump signal|tcpstore|debug info",
        r"ProcessGroup(?:NCCL|Wrapper|Gloo)|WorkNCCL\(|TCPStore",
        r"[Ww]atchdog|[Hh]eartbeat|[Ff]light ?[Rr]ecorder|dump signal|dump(?:ing)? debug info",
    ),
    _rule(
        "cuda_error",
        "error",
        "cuda|cublas|cudnn|outofmemory|out of memory|ecc error|device-side|illegal mem|hip error",
        r"CUDA (?:error|out of memory|driver error)|CUDA_ERROR_|cudaError",
        r"CUBLAS_STATUS_|CUDNN_STATUS_|OutOfMemoryError|out of memory|ECC error",
        r"device-side assert|illegal memory access|HIP error",
    ),
    _rule(
        "elastic",
        "error",
        "elastic|childfailed|exitcode|local_rank|root cause|error_file|rendezvous| failed|signal"
        "|torchrun|worker group",
        r"distributed[/.]elastic|ChildFailedError|\bexitcode\s*:|Root Cause|local_rank: ?\d",
        r"^\s*error_file\s*:|traceback\s*: (?:Signal|To enable)|[Rr]endezvous|\S+\.py FAILED",
        r"closing signal|[Ww]orker group|torchrun",
    ),
    _rule(
        "signal",
        "error",
        "sig|segmentation|bus error|core dumped|aborted|terminate called|killed|double free|fatal",
        r"\bSIG(?:KILL|TERM|SEGV|ABRT|BUS|HUP|USR\d|INT|FPE)\b|Segmentation fault|Bus error",
        r"core dumped|\bAborted\b|terminate called|\bKilled\b|double free|(?i:\bfatal\b)",
    ),
    _rule(
        "slurm_step",
        "error",
        "slurmstepd|srun:|cancelled at|oom_kill|oom-kill| task ",
        r"slurmstepd:|srun: (?:error|Job|Force|Warn)|CANCELLED AT|oom[_-]kill|\btask \d+: [A-Z]",
    ),
    _rule(
        "exception",
        "error",
        "error|exception|interrupt|exit|assert",
        r"(?:^|[\s.:])(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit|StopIteration)(?::|$)",
        r"Exception raised from|(?:^|[\s\[|])ERROR(?:[\s\]:|]|$)",
    ),
    _rule(
        "not_a_number",
        "error",
        "nan|overflow|loss scale|loss_scale",
        r"(?i:\bnan\b.*\b(?:loss|grad\w*|found|result|detected))",
        r"(?i:\b(?:found|unexpected result|loss is|detected) nan\b)",
        r"\bOVERFLOW!|loss scale already|reducing (?:loss scale )?to",
    ),
    _rule(
        "input_output",
        "error",
        "dataloader|no space|stale file|input/output|connection|timed out|timeout|too many open",
        r"DataLoader worker|No space left|Stale file handle|Input/output error",
        r"Too many open files|(?i:\btimed out\b)|TimeoutE",
        r"(?i:connection (?:refused|reset|closed|timed out|aborted))",
    ),
    _rule(
        "validation",
        "progress",
        "val|test",
        r"(?i:\b(?:val|valid|validation|eval|evaluation|test)"
        r"(?:[_ /]\w+)*[_ /](?:loss|ppl|perplexity|acc\w*)\b)",
        r"\beval_\w+['\"]?\s*[:=]|(?i:\bevaluating\b)",
        r"(?i:\b(?:running|starting|start|begin\w*) (?:validation|evaluation)\b)",
    ),
    _rule(
        "checkpoint",
        "checkpoint",
        "checkpoint|ckpt|.safetensors|saving|saved",
        rf"(?i:\b(?:{_SAVE})\b.*(?:checkpoint|ckpt))",
        rf"(?i:(?:checkpoint|ckpt).*\b(?:{_SAVE})\b)",
        r"(?i:checkpointing to|\bsav(?:ed|ing)\b.*\.(?:pt|pth|bin|safetensors|distcp)\b)",
        r"(?i:saving model)",
    ),
    _rule("deepspeed", "step", "step=|samplespersec", r"\bstep=\d+, skipped=\d+|SamplesPerSec="),
    _rule(
        "hf_trainer",
        "step",
        "loss'|loss\"|train_runtime",
        r"\{.*['\"](?:\w*loss|train_runtime)['\"]\s*:",
    ),
    _rule(
        "progress_bar",
        "step",
        "it/s|s/it",
        rf"^(?!.*(?:{_NOT_TRAINING})).*\d+/\d+\s*\[[\d:]+<.*(?:it/s|s/it)",
    ),
    _rule(
        "step",
        "step",
        "step|iter",
        r"(?i)^(?=.*(?:\bstep|global[_ ]?step|train[_ ]?step|\biter)\w*['\"]?\W{0,4}\d)"
        r"(?=.*(?:loss|time\w*|\bdt|tok\w*/s\w*|tps)['\"]?(?: \(\w+\))?\s*[:=]?\s*\(?(?:tensor\()?"
        rf"{_NUMBER}|.*\d\s*(?:it/s|s/it))",
    ),
    _rule("epoch", "progress", "epoch", r"(?i:\bepoch\b\W{0,3}\d)"),
    _rule("straggler", "progress", "slowdown|straggler", r"Slowdown: ?\d|(?i:\bstraggler)"),
    _rule(
        "lifecycle",
        "progress",
        "train|world|exiting",
        r"(?i:\b(?:start\w*|begin\w*|finish\w*|complet\w*|resum\w*|end of) (?:the )?train\w*)",
        r"(?i:\btraining (?:is )?(?:start\w*|finish\w*|complet\w*|done|resum\w*|end\w*))",
        r"(?i:\bworld[ _]size\b|exiting program)|\bworld \d+ ",
    ),
)


def user_rules(rules: Sequence[LineRule]) -> tuple[Rule, ...]:
    """A user's own rules, which are asked before ours.

    Raises:
        ConfigError: a pattern that is no regular expression.
    """
    return tuple(
        Rule(rule.name, "user", ("",), compile_pattern(rule.pattern, "train_log.rules"))
        for rule in rules
    )


def compile_pattern(pattern: str, key: str) -> "re.Pattern[str]":
    """The pattern, compiled.

    Raises:
        ConfigError: it is no regular expression; names ``key``.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        message = f"{key}: {pattern!r} is no regular expression: {error}"
        raise ConfigError(message) from error


def rule_of(line: str, rules: Sequence[Rule] = RULES) -> Rule | None:
    """The first rule that reads the line, or ``None``.

    >>> rule_of("node01:1:1 [0] NCCL INFO Using network Socket").name
    'nccl_info'
    >>> rule_of("node01:1:1 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1") is None
    True
    """
    line = line[:SEARCH_CHARS]
    lowered = line.lower()
    for rule in rules:
        if rule.reads(line, lowered):
            return rule
    return None
