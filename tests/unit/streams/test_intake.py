"""Clocks, duplicates, skew, and events held until their second comes."""

import random
from typing import Any

import pytest

from stethoscope.schemas.config import Timing
from stethoscope.schemas.events import ClockEvent, HeartbeatEvent, JobEvent
from stethoscope.schemas.findings import NS
from stethoscope.streams.intake import MAX_SAMPLES, Intake, IntakeState
from stethoscope.streams.state_codec import decode_state, encode_state

T0 = 1_800_000_000 * NS
DAY = 86_400


def at(secs: float) -> int:
    return T0 + round(secs * NS)


def beat(
    secs: float,
    node: str = "node01",
    seq: int | None = None,
    received: float | None = None,
    **fields: object,
) -> HeartbeatEvent:
    """An event of ``node``; its number follows from its time unless given."""
    return HeartbeatEvent(
        time_unix_ns=at(secs),
        node=node,
        boot_id="b",
        seq=round(secs * 1000) if seq is None else seq,
        received_unix_ns=None if received is None else at(received),
        **fields,  # type: ignore[arg-type]  # fields of a heartbeat
    )


def intake(*events: HeartbeatEvent | ClockEvent) -> Intake:
    made = Intake(Timing())
    for event in events:
        made.push(event)
    return made


def released(made: Intake, secs: float) -> list[tuple[str, float]]:
    return [
        (node, (event.time_unix_ns - T0) / NS)
        for node, events in made.release(at(secs)).items()
        for event in events
    ]


def test_nothing_is_known_before_the_first_event() -> None:
    assert intake().least_ns() is None
    assert intake().first_ns() is None


def test_the_least_is_the_slowest_nodes_clock_less_the_reorder_time() -> None:
    made = intake(beat(10, "a"), beat(12, "b"), beat(11, "a"))
    assert made.least_ns() == at(9)
    assert made.first_ns() == at(10)


def test_events_come_in_order_within_the_reorder_time() -> None:
    made = intake(beat(10), beat(12), beat(11), beat(14))
    assert released(made, 12) == [("node01", 10), ("node01", 11), ("node01", 12)]
    assert released(made, 12) == []


def test_any_order_within_the_reorder_time_is_released_alike() -> None:
    events = [beat(s / 4, f"node{s % 3}") for s in range(40)]
    expected = released(intake(*events), 8)
    for seed in range(5):
        rng = random.Random(seed)  # noqa: S311 - test data
        moved = {id(e): e.time_unix_ns + rng.randrange(NS) for e in events}
        assert released(intake(*sorted(events, key=lambda e: moved[id(e)])), 8) == expected


def test_a_late_event_is_released_with_its_own_time() -> None:
    made = intake(beat(10), beat(20))
    assert released(made, 18) == [("node01", 10)]
    made.push(beat(5))
    assert released(made, 18) == [("node01", 5)]


def test_a_node_that_lags_does_not_hold_the_others() -> None:
    made = intake(beat(0, "a"), beat(0, "b"), *(beat(s, "a") for s in range(1, 20)))
    assert made.least_ns() == at(17)


def test_the_spool_of_a_node_that_was_cut_off_loses_nothing() -> None:
    live = [beat(s, "a") for s in range(1300)]
    spool = [beat(s, "b") for s in range(10, 1220)]
    made = intake(*live[:1220])
    early = released(made, 1217)
    for i, old in enumerate(spool):
        made.push(old)
        if i % 10 == 0:
            made.push(live[1220 + i // 20])
    for later in live[1281:]:
        made.push(later)
    made.push(beat(1299, "b"))
    late = released(made, 1297)
    assert [s for node, s in early + late if node == "b"] == [float(s) for s in range(10, 1220)]
    assert made.counts.duplicates == len(set(range(0, 1210, 10))) - len(set(range(0, 1210, 20)))


def test_a_spool_that_arrives_after_newer_events_loses_nothing() -> None:
    newer = [beat(s) for s in range(5000, 5000 + MAX_SAMPLES // 2)]
    older = [beat(s) for s in range(4500, 5000)]
    made = intake(*newer, *older)
    assert made.counts.duplicates == 0
    assert len(released(made, 1e6)) == len(newer) - 2 + len(older)


# Clocks that are wrong.


def test_a_time_ahead_of_its_reception_is_replaced_by_it() -> None:
    made = intake(beat(10, received=10), beat(10 + 2 * DAY, seq=11, received=11))
    assert (made.counts.clamped, made.newest_ns) == (1, at(11))
    assert made.skewed(at(10)) == {}
    assert made.skewed(at(11)) == {"node01": 2 * DAY - 1}
    assert made.skewed(at(11)) == {}


def test_a_minute_ahead_of_its_reception_is_let_be() -> None:
    made = intake(beat(10, received=10), beat(70, received=11))
    assert (made.counts.clamped, made.newest_ns) == (0, at(70))


def test_a_lone_event_two_days_ahead_does_not_move_the_clock() -> None:
    made = intake(beat(10), beat(10 + 2 * DAY, "bad"))
    assert made.newest_ns == at(10)
    made.push(beat(11))
    assert (made.newest_ns, made.counts.clamped) == (at(11), 1)
    made.push(beat(17))
    assert ("bad", 10.0) in released(made, 15)


def test_silence_is_not_a_wrong_clock() -> None:
    made = intake(beat(10), beat(500), beat(501))
    assert (made.newest_ns, made.counts.clamped) == (at(501), 0)


def test_after_silence_a_known_reception_needs_no_second_opinion() -> None:
    made = intake(beat(10, received=10), beat(500, received=500))
    assert made.newest_ns == at(500)
    made.end()
    assert made.counts.clamped == 0


def test_a_lone_event_ahead_at_the_end_is_not_lost() -> None:
    made = intake(beat(10), beat(10 + 2 * DAY, "bad"))
    made.end()
    assert ("bad", 10.0) in released(made, 10)


def test_an_event_far_in_the_past_is_let_be() -> None:
    made = intake(beat(DAY), beat(10))
    assert (made.newest_ns, made.counts.clamped) == (at(DAY), 0)


# The same event again.


def test_a_duplicate_is_dropped_and_counted() -> None:
    made = intake(beat(10), beat(10), beat(10, received=12))
    assert (made.counts.events, made.counts.duplicates) == (3, 2)
    made.end()
    assert released(made, 20) == [("node01", 10)]


def test_the_same_id_with_another_body_is_refused() -> None:
    made = intake(beat(10, seq=7), beat(10, seq=7, spooled=5))
    (reject,) = made.rejects
    assert (reject.reason, made.counts.rejected) == ("id_conflict", 1)
    assert "node01/b/heartbeat" in reject.detail
    assert reject.body


@pytest.mark.parametrize("other", [{"stream": "s"}, {"cluster": "c2"}])
def test_numbers_are_of_a_stream(other: dict[str, Any]) -> None:
    made = intake(beat(10, seq=7), beat(10, seq=7, **other))
    assert (made.counts.duplicates, made.counts.rejected) == (0, 0)


def test_old_numbers_are_duplicates_and_memory_is_bounded() -> None:
    made = intake(*(beat(s) for s in range(3 * MAX_SAMPLES)))
    made.push(beat(5))
    assert made.counts.duplicates == 1
    (seqs,) = made.dump().seqs.values()
    assert len(seqs.seen) <= MAX_SAMPLES


def test_streams_of_yesterday_are_forgotten() -> None:
    made = intake(*(beat(3 * s, seq=1, stream=f"train:{s}") for s in range(100)))
    for s in range(0, 2 * DAY, 30):
        made.push(beat(300 + s))
        made.release(at(s))
    assert list(made.dump().seqs) == ["default/node01/b/heartbeat"]


# What moves time.


def test_a_clock_moves_one_node_or_all() -> None:
    made = intake(beat(10, "a"), beat(10, "b"))
    made.push(ClockEvent(time_unix_ns=at(14), node="a"))
    assert made.least_ns() == at(8)
    made.push(ClockEvent(time_unix_ns=at(14)))
    assert made.least_ns() == at(12)
    made.push(ClockEvent(time_unix_ns=at(3)))
    assert made.least_ns() == at(12)


def test_events_of_the_jobs_topic_are_none_of_its_business() -> None:
    made = intake()
    made.push(JobEvent(time_unix_ns=at(10), job_id="7", state="RUNNING"))
    assert (made.counts.events, made.least_ns()) == (0, None)


def test_the_end_holds_nothing_back() -> None:
    made = intake(beat(10), beat(11))
    made.end()
    assert released(made, 11) == [("node01", 10), ("node01", 11)]


def test_a_restart_changes_nothing() -> None:
    events = [beat(s / 3, f"node{s % 3}") for s in range(60)]
    events.insert(30, beat(2 * DAY, "bad"))
    whole = intake(*events)
    first = intake(*events[:31])
    state = decode_state(encode_state(first.dump()), IntakeState)
    second = Intake(Timing())
    second.load(state)
    for event in events[31:]:
        second.push(event)
    second.push(events[3])
    assert second.counts.duplicates == 1
    whole.push(events[3])
    assert released(second, 100) == released(whole, 100)
    assert encode_state(second.dump()) == encode_state(whole.dump())


def test_a_node_whose_clock_is_days_ahead_does_not_move_the_others() -> None:
    made = intake(beat(0, "right"))
    for second in range(1, 21):
        made.push(beat(second, "right"))
        for part in range(3):
            made.push(beat(2 * DAY + second + part / 10, "wrong"))
    made.push(beat(21, "right"))
    assert made.newest_ns == at(21)
    assert made.counts.clamped == 60


def test_after_a_gap_one_node_alone_moves_on_when_nobody_contradicts() -> None:
    made = intake(beat(0, "a"), beat(0, "b"), beat(1, "a"), beat(1, "b"))
    for second in range(8):
        made.push(beat(7_200 + second, "a"))
    assert made.newest_ns == at(7_207)
    assert made.counts.clamped == 0
