"""What travels together, in which order, under which key."""

from stethoscope.agents.producer import _batches
from stethoscope.schemas.events import Event, HeartbeatEvent, JobEvent, LogEvent
from stethoscope.schemas.kafka_options import JOBS, LOGS, TELEMETRY


def _beat(node: str, seq: int = 0) -> Event:
    return HeartbeatEvent(time_unix_ns=1, node=node, seq=seq)


def _line(node: str, seq: int) -> Event:
    return LogEvent(time_unix_ns=1, node=node, seq=seq, source="train", line="x")


def test_events_of_one_node_and_topic_travel_in_one_array_in_order() -> None:
    job = JobEvent(time_unix_ns=1, job_id="7", state="RUNNING")
    events = [_line("a", 1), _beat("a"), _line("b", 5), _line("a", 2), job]
    assert list(_batches(events)) == [
        (LOGS, b"a", [_line("a", 1), _line("a", 2)]),
        (TELEMETRY, b"a", [_beat("a")]),
        (LOGS, b"b", [_line("b", 5)]),
        (JOBS, b"7", [job]),
    ]


def test_a_flood_is_cut_into_messages_of_bounded_length() -> None:
    batches = list(_batches([_line("a", seq) for seq in range(1_201)]))
    assert [len(batch) for _, _, batch in batches] == [500, 500, 201]
    assert [batch[0] for _, _, batch in batches] == [_line("a", seq) for seq in (0, 500, 1_000)]
