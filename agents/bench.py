"""Benchmark output files as ``bench`` events."""

import hashlib

from msgspec import Struct

from stethoscope.agents.bench_formats import FORMATS, parse_any
from stethoscope.schemas.errors import InputError
from stethoscope.schemas.events import BenchEvent
from stethoscope.schemas.names import short


class Source(Struct, frozen=True):
    """What the file does not say of itself: where and when it ran, and for which job."""

    time_unix_ns: int
    node: str
    cluster: str = "default"
    job_id: str | None = None
    node_is_given: bool = False


def bench_events(text: str, source: Source, form: str | None = None) -> list[BenchEvent]:
    """The runs in the text, one event each.

    Ids come from the content, so that a file that is read twice counts once. The node is that of
    rank 0 where the output names it and none was given.

    Raises:
        InputError: no format reads it, or the one that was named does not.
    """
    runs = FORMATS[form](text) if form is not None else parse_any(text)
    if not runs:
        wanted = form or ", ".join(FORMATS)
        msg = f"no benchmark result found; formats tried: {wanted}"
        raise InputError(msg)
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
    return [
        BenchEvent(
            cluster=source.cluster,
            node=source.node if source.node_is_given or not run.node else short(run.node),
            stream=f"bench/{digest}",
            seq=number,
            time_unix_ns=source.time_unix_ns,
            test=run.test,
            job_id=source.job_id,
            world_size=run.world_size,
            rows=run.rows,
            versions=run.versions,
            results=run.results,
            values=run.values,
        )
        for number, run in enumerate(runs)
    ]
