"""What detectors of single log lines share: whose line it is."""

from stethoscope.detectors.job_context import JobContext
from stethoscope.schemas.line_rank import is_within_node
from stethoscope.schemas.views import Mark


def rank_of_mark(job: JobContext, mark: Mark) -> int | None:
    """The mark's rank, where the line or its file named one of the job's.

    A rank within a node says which one only in a job of one node.
    """
    if len(job.nodes()) > 1 and is_within_node(mark.text):
        return None
    known = [g.rank for g in job.gpus if g.rank is not None]
    return mark.rank if mark.rank is not None and (not known or mark.rank in known) else None
