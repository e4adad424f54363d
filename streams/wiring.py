"""Detectors from their settings, sorted by what they read, each one isolated from the others."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from stethoscope.detectors.registry import DETECTORS
from stethoscope.schemas.config import DetectorConfig, Match
from stethoscope.schemas.findings import Finding
from stethoscope.streams.matching import is_everyone
from stethoscope.streams.state_codec import decode_state, encode_state

log = logging.getLogger(__name__)


class Guarded:
    """One detector. What it raises is counted and logged, and the others go on."""

    def __init__(self, name: str, detector: Any, match: Match) -> None:  # a registry's protocol
        self.name = name
        self.match = None if is_everyone(match) else match
        self.detector = detector
        self.failures = 0

    def run(self, verb: str, *args: object) -> list[Finding]:
        """What the detector's ``verb`` says of ``args``; nothing where it fails."""
        try:
            findings: list[Finding] = getattr(self.detector, verb)(*args)
        except Exception:
            self.failures += 1
            if self.failures in (1, 10, 100, 1000):
                log.exception("detector failed", extra={"detector": self.name})
            return []
        return findings

    def dump(self) -> bytes:
        """Its state."""
        return encode_state(self.detector.state)

    def load(self, state: bytes) -> None:
        """Take over a state."""
        job_state = getattr(self.detector, "job_state", None)
        kind: Any = dict[str, job_state] if job_state else type(self.detector.state)  # type: ignore[valid-type]  # made at run time
        self.detector.state = decode_state(state, kind)


class Detectors:
    """The detectors of one stage by what they read; ``off`` ones are left out."""

    def __init__(self, configs: Iterable[DetectorConfig]) -> None:
        self.samples: list[Guarded] = []
        self.lines: list[Guarded] = []
        self.ports: list[Guarded] = []
        self.scrapes: list[Guarded] = []
        self.blindness: list[Guarded] = []
        self.clocks: list[Guarded] = []
        self.nodes: list[Guarded] = []
        self.jobs: list[Guarded] = []
        self.ended_jobs: list[Guarded] = []
        for config in configs:
            if config.mode == "off":
                continue
            kind = str(config.__struct_config__.tag)
            entry = DETECTORS[kind]
            guarded = Guarded(config.name or kind, entry.detector(config), config.match)
            getattr(self, entry.reads).append(guarded)

    def all(self) -> Sequence[Guarded]:
        """Every detector, in the order of the configuration within what they read."""
        return [
            *self.samples,
            *self.lines,
            *self.ports,
            *self.scrapes,
            *self.blindness,
            *self.clocks,
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
