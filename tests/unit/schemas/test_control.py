"""Control messages: who is asked to look closely, and for how long."""

import pytest
from msgspec.structs import replace

from stethoscope.schemas.control import (
    MAX_NODES,
    ControlMessage,
    control_for,
    decode_control,
    encode_control,
)
from stethoscope.schemas.errors import BadEvent
from stethoscope.schemas.findings import Subject
from stethoscope.schemas.incidents import FindingSummary, Incident

NOW_NS = 1_700_000_000_000_000_000
INCIDENT = Incident(
    incident_id="i1",
    state="open",
    cause="gpu_xid",
    alertname="GpuXid",
    severity="critical",
    audience="infra",
    title="",
    started_unix_ns=NOW_NS,
    detected_unix_ns=NOW_NS,
    ended_unix_ns=None,
    root=Subject(node="node09"),
    confidence=1.0,
    suspects=[],
    jobs=[],
    nodes=["node02", "node01", "node09"],
    findings=FindingSummary(by_cause={}),
    raw_events=1,
    recurrence=0,
    merged_into=None,
    actions=[],
    knowledge="",
)


def test_every_node_is_asked_once_the_root_first() -> None:
    messages = control_for(INCIDENT, NOW_NS)
    assert [m.node for m in messages] == ["node09", "node01", "node02"]
    assert {(m.period_secs, m.until_unix_ns) for m in messages} == {(1.0, NOW_NS + 600 * 10**9)}


@pytest.mark.parametrize(
    "changed",
    [
        replace(INCIDENT, state="resolved"),
        replace(INCIDENT, severity="info"),
        replace(INCIDENT, merged_into="i0"),
    ],
)
def test_nobody_is_asked_for_what_needs_no_look(changed: Incident) -> None:
    assert control_for(changed, NOW_NS) == []


def test_a_fault_of_everything_asks_a_bounded_number() -> None:
    nodes = [f"node{i:04d}" for i in range(1000)]
    messages = control_for(replace(INCIDENT, nodes=nodes), NOW_NS)
    assert len(messages) == MAX_NODES
    assert messages[0].node == "node09"


def test_a_message_comes_back_as_it_was() -> None:
    message = ControlMessage("node01", 1.0, NOW_NS)
    key, body = encode_control(message)
    assert key == b"node01"
    assert decode_control(body) == message


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[]", b'{"node":"a","period_secs":0,"until_unix_ns":1}', b'{"node":"a"}'],
)
def test_what_is_no_message_says_so(body: bytes) -> None:
    with pytest.raises(BadEvent, match="wrong_type"):
        decode_control(body)
