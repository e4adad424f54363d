"""Detectors from their settings, sorted by what they read, each one isolated from the others."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from stethoscope.detectors.registry import DETECTORS
from stethoscope.schemas.config import DetectorConfig
from stethoscope.schemas.findings import Finding
from stethoscope.streams.state_codec import decode_state, encode_state

log = logging.getLogger(__name__)
D = TypeVar("D")


class Guarded(Generic[D]):
    """One detector. What it raises is counted and logged, and the others go on."""

    def __init__(self, name: str, detector: D) -> None:
        self.name = name
        self.detector = detector
        self.failures = 0

    def run(self, call: Callable[[D], list[Finding]]) -> list[Finding]:
        """The detector's findings; none where it fails."""
        try:
            return call(self.detector)
        except Exception:
            self.failures += 1
            if self.failures in (1, 10, 100, 1000):
                log.exception("detector failed", extra={"detector": self.name})
            return []

    def dump(self) -> bytes:
        """Its state."""
        return encode_state(self.detector.state)  # type: ignore[attr-defined]  # all have one

    def load(self, state: bytes) -> None:
        """Take over a state."""
        detector: Any = self.detector
        job_state = getattr(detector, "job_state", None)
        kind: Any = dict[str, job_state] if job_state else type(detector.state)  # type: ignore[valid-type]
        detector.state = decode_state(state, kind)


class Detectors:
    """The detectors of one stage by what they read; ``off`` ones are left out."""

    def __init__(self, configs: Iterable[DetectorConfig]) -> None:
        self.samples: list[Guarded[Any]] = []
        self.lines: list[Guarded[Any]] = []
        self.scrapes: list[Guarded[Any]] = []
        self.nodes: list[Guarded[Any]] = []
        self.jobs: list[Guarded[Any]] = []
        self.ended_jobs: list[Guarded[Any]] = []
        for config in configs:
            if config.mode == "off":
                continue
            kind = str(config.__struct_config__.tag)
            entry = DETECTORS[kind]
            guarded: Guarded[Any] = Guarded(config.name or kind, entry.detector(config))
            getattr(self, entry.reads).append(guarded)

    def all(self) -> Sequence[Guarded[Any]]:
        """Every detector, in the order of the configuration within what they read."""
        return [
            *self.samples,
            *self.lines,
            *self.scrapes,
            *self.nodes,
            *self.jobs,
            *self.ended_jobs,
        ]

    def failures(self) -> dict[str, int]:
        """How often each failing detector raised."""
        return {g.name: g.failures for g in self.all() if g.failures}

    def dump(self) -> dict[str, bytes]:
        """State by detector name."""
        return {g.name: g.dump() for g in self.all()}

    def load(self, states: dict[str, bytes]) -> None:
        """Take over the states of detectors that still exist; new ones start fresh."""
        for guarded in self.all():
            if guarded.name in states:
                guarded.load(states[guarded.name])
