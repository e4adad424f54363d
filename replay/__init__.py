"""Recorded events through the same pipeline: reader, scoring, report.

for incident in replay([Path("events.jsonl.gz")]):
    print(incident.cause, incident.root.label())
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stethoscope.schemas.incidents import Incident
    from stethoscope.streams.config import Config

__all__ = ["replay"]


def replay(paths: Sequence[Path], config: "Config | None" = None) -> "list[Incident]":
    """The incidents of recorded events, in their final state, by (start, id).

    Events that cannot be read are passed over; ``stethoscope replay`` lists them.

    Raises:
        InputError: a path that is missing, empty, or holds no event.
    """
    from stethoscope.replay.files import read_events
    from stethoscope.replay.run import DeadLetters, run
    from stethoscope.streams.config import Config
    from stethoscope.streams.pipeline import Pipeline

    letters = DeadLetters()
    events = read_events(paths, letters.add)
    return run(events, Pipeline(config or Config()), letters).incidents
