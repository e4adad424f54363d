"""Slurm's words for the state of a job, and which of them mean an end. Others are translated."""

from stethoscope.schemas.events import JobEvent

BAD_ENDS = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"})
# REQUEUED is the end of a run that another run of the same job took the place of.
ORDERLY_ENDS = frozenset(
    {"COMPLETED", "CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "REVOKED", "REQUEUED"}
)
ENDED = BAD_ENDS | ORDERLY_ENDS
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})


def state_word(event: JobEvent) -> str:
    """The state without what Slurm adds to it.

    >>> state_word(JobEvent(time_unix_ns=1, job_id="7", state="CANCELLED by 1000"))
    'CANCELLED'
    """
    return event.state.split(" ", 1)[0].rstrip("+")


def has_ended(event: JobEvent) -> bool:
    """Whether the state is a final one."""
    return state_word(event) in ENDED


def ended_ns(event: JobEvent) -> int | None:
    """When it ended; ``None`` while it runs."""
    return (event.end_unix_ns or event.time_unix_ns) if has_ended(event) else None
