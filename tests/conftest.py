"""What tests of several folders share."""

from collections.abc import Callable
from typing import Any

import pytest

from stethoscope.schemas.findings import Subject
from stethoscope.schemas.incidents import FindingSummary, Incident

MakeIncident = Callable[..., Incident]


@pytest.fixture(scope="session")
def make_incident() -> MakeIncident:
    """A factory of incidents: a GPU lost on node01, but for the fields that are given."""

    def make(**changes: Any) -> Incident:
        fields: dict[str, Any] = {
            "incident_id": "0123456789abcdef",
            "state": "open",
            "cause": "gpu_lost",
            "alertname": "GpuLost",
            "severity": "critical",
            "audience": "infra",
            "title": "GPU fell off the bus",
            "started_unix_ns": 1_700_000_000_000_000_000,
            "detected_unix_ns": 1_700_000_002_000_000_000,
            "ended_unix_ns": None,
            "root": Subject(node="node01", gpu_index=1),
            "confidence": 0.9,
            "suspects": [],
            "jobs": [],
            "nodes": ["node01"],
            "findings": FindingSummary(by_cause={"gpu_lost": 1}),
            "raw_events": 1,
            "recurrence": 1,
            "merged_into": None,
            "actions": ["drain the node"],
            "knowledge": "",
        }
        return Incident(**(fields | changes))

    return make
