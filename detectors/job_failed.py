"""Jobs that ended badly, and user code that raised."""

import re

from msgspec import Struct, field

from stethoscope.detectors.conditions import Condition, quoted, to_finding
from stethoscope.detectors.job_context import JobContext
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.job_states import BAD_ENDS, state_word
from stethoscope.schemas.views import Mark

# What the launcher and the runtime raise about others; the user's own exception is another one.
_NOT_THE_USERS = re.compile(
    r"ChildFailedError|DistBackendError|DistNetworkError|DistStoreError|RendezvousConnectionError"
    r"|SignalException|KeyboardInterrupt|OutOfMemoryError|CUDA out of memory|NCCL|ncclRemoteError"
)
LOOK_BACK_SECS = 600


class JobFailedConfig(DetectorConfig, frozen=True, tag="job_failed", kw_only=True):
    """No settings of its own."""


class JobFailedState(Struct):
    """Jobs whose end was said. Bound: jobs running."""

    said: dict[str, int] = field(default_factory=dict)


class JobFailed:
    """A job in a bad end state (FAILED, NODE_FAIL, OUT_OF_MEMORY, BOOT_FAIL).

    A traceback of the program's own exception makes it ``app_error``, which wakes nobody.
    Cancelled, timed out, preempted and completed jobs end as they should.
    """

    def __init__(self, config: JobFailedConfig) -> None:
        self.config = config
        self.state = JobFailedState()

    def update(self, job: JobContext, now_ns: int) -> list[Finding]:
        """Nothing happens while it runs."""
        return []

    def close(self, job: JobContext, now_ns: int) -> list[Finding]:
        """The job ended."""
        event = job.event
        if event is None or state_word(event) not in BAD_ENDS or job.ended_ns is None:
            return []
        raised = self._exception(job, job.ended_ns)
        condition = Condition(
            cause="app_error" if raised else "job_failed",
            subject=job.subject(),
            onset_unix_ns=raised.time_unix_ns if raised else job.ended_ns,
            score=None if raised else 1.0,
            evidence=f"ended {event.state}" + (f": {quoted(raised.text)}" if raised else ""),
            moment=True,
        )
        return [to_finding(self.config, condition, now_ns)]

    def _exception(self, job: JobContext, ended_ns: int) -> Mark | None:
        marks = job.marks_since(ended_ns - LOOK_BACK_SECS * NS, "exception", "cuda_error")
        own = [m for m in marks if not _NOT_THE_USERS.search(m.text)]
        return own[0] if own else None
