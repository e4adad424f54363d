"""What detectors of single log lines share: whose line it is."""

import re

from stethoscope.detectors.job_context import JobContext
from stethoscope.schemas.views import Mark

# torchrun names the rank within the node; PyTorch's own "[rank9]" beside it names the job's.
_LOCAL_RANK = re.compile(r"\[(?:default|trainer|worker)\d{1,6}\]:(?!.*\[rank\d)", re.DOTALL)


def rank_of_mark(job: JobContext, mark: Mark) -> int | None:
    """The mark's rank, where the line or its file named one of the job's.

    A rank within a node says which one only in a job of one node.
    """
    if len(job.nodes()) > 1 and _LOCAL_RANK.search(mark.text[:256]):
        return None
    known = [g.rank for g in job.gpus if g.rank is not None]
    return mark.rank if mark.rank is not None and (not known or mark.rank in known) else None
