"""Log lines that are no step lines: what they mean for a job. One written list of rules.

A rule is (mark, pattern). The first rule that reads a line wins; a line that none reads means
nothing. Sources: the messages of PyTorch (ProcessGroupNCCL.cpp, elastic), NCCL and Megatron-LM.
"""

import re
from typing import NamedTuple


class Rule(NamedTuple):
    """One kind of line. ``mark`` names what it says."""

    mark: str
    pattern: "re.Pattern[str]"


_RULES: tuple[Rule, ...] = tuple(
    Rule(mark, re.compile(pattern))
    for mark, pattern in (
        (
            "nccl_timeout",
            r"Watchdog caught collective operation timeout|detected by watchdog at work",
        ),
        ("nccl_dump", r"Received a dump signal due to a collective timeout"),
        ("nccl_stuck", r"Heartbeat monitor timed out|watchdog got stuck for \d+ seconds"),
        ("nccl_socket", r"Channel \d+.* via NET/Socket"),
        ("nccl_shm", r"Channel \d+.* via SHM"),
        ("nccl_net_ib", r"Channel \d+.* via NET/(?:IB|IBext|AWS|Libfabric|FastTrak)"),
        ("nccl_p2p", r"Channel \d+.* via P2P"),
        (
            "nccl_error",
            r"NCCL WARN .*(?:status=\d+|failed|error|Error)|ncclRemoteError|ncclSystemError",
        ),
        ("nccl_destroy", r"comm 0x[0-9a-f]+ .*(?:Destroy|Abort) COMPLETE"),
        ("oom", r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuda_ecc", r"uncorrectable ECC error encountered"),
        ("cuda_error", r"CUDA error: (?!out of memory)|an illegal memory access was encountered"),
        ("worker_failed", r"failed \(exitcode: -?\d+\) local_rank: \d+"),
        ("root_cause", r"Root Cause \(first observed failure\)"),
        ("exit_rank", r"^\s*rank\s+: \d+ \(local_rank: \d+\)"),
        ("exit_code", r"^\s*exitcode\s+: -?\d+ "),
        (
            "task_exit",
            r"task \d+: (?:Bus error|Segmentation fault|Killed|Aborted|Exited with exit code)",
        ),
        ("cancelled", r"CANCELLED AT .* DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)"),
        (
            "loss_abort",
            r"[Uu]nexpected result nan|found NaN in local grad norm|found NaN in .*loss",
        ),
        ("scaler_floor", r"loss scale already at minimum"),
        ("data_worker", r"DataLoader worker .* is killed by signal|No space left on device"),
        (
            "checkpoint_end",
            r"(?i)(?:successfully )?saved checkpoint|checkpoint (?:was )?saved|saved .*checkpoint",
        ),
        ("checkpoint_begin", r"(?i)saving (?:model )?checkpoint|checkpointing to|saving model"),
        (
            "evaluation",
            r"(?i)\bval(?:id(?:ation)?)?[_ ]loss|\beval(?:uation)?[_ ]loss|evaluating"
            r"|running (?:validation|evaluation)"
            r"|^(?:\[\w+\]:)?\s*(?:validation dataloader|validating)",
        ),
        ("traceback", r"^(?:\[[^\]]*\]:\s*)?Traceback \(most recent call last\)"),
        (
            "exception",
            r"^(?:\[[^\]]*\]:\s*)?(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)(?::|$)",
        ),
    )
)
# One pass decides for the mass of lines that nothing below can match.
_QUICK = re.compile(
    r"atchdog|eartbeat|dump signal| via |NCCL WARN|nccl\w+Error|COMPLETE|emory|ECC|CUDA error"
    r"|exitcod|Root Cause|local_rank|task \d|CANCELLED|NaN|nan \(|loss scale al|DataLoader|No space"
    r"|heckpoin|aving|[Vv]al|[Ee]val|Traceback|Error|Exception|Interrupt"
)


def mark_of(line: str) -> str | None:
    """The line's mark, or ``None``.

    >>> mark_of("node01:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0")
    'nccl_socket'
    >>> mark_of("Using network Socket") is None
    True
    """
    if not _QUICK.search(line):
        return None
    for rule in _RULES:
        if rule.pattern.search(line):
            return rule.mark
    return None
