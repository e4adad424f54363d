"""Whom a detector applies to: the globs of its ``match`` against what a finding is about."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from stethoscope.schemas.config import Match
from stethoscope.schemas.events import JobEvent


def accepts(
    match: Match, nodes: Iterable[str], gpu_models: Iterable[str], jobs: Iterable[JobEvent]
) -> bool:
    """Whether every list that is not empty has a glob for one of the names; case is ignored.

    >>> accepts(Match(nodes=["gpu-*"]), ["GPU-07"], [], [])
    True
    >>> accepts(Match(users=["alice"]), ["gpu-07"], [], [])
    False
    """
    runs = list(jobs)
    return (
        _any(match.nodes, nodes)
        and _any(match.gpu_models, gpu_models)
        and _any(match.partitions, (job.partition for job in runs))
        and _any(match.job_names, (job.name for job in runs))
        and _any(match.users, (job.user for job in runs))
    )


def is_everyone(match: Match) -> bool:
    """Whether nothing is left out."""
    return match == Match()


def _any(globs: list[str], names: Iterable[str | None]) -> bool:
    if not globs:
        return True
    known = [name.lower() for name in names if name]
    return any(fnmatchcase(name, glob.lower()) for glob in globs for name in known)
