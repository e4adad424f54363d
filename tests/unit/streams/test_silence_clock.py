"""Silence passes time, and only silence."""

from stethoscope.streams.clock import NS, SilenceClock

A, B = ("telemetry", 0), ("logs", 0)
WATERMARK = 1_000 * NS


def _quiet(ends: dict[tuple[str, int], int]) -> SilenceClock:
    clock = SilenceClock(idle_secs=5.0)
    assert clock.due(ends, WATERMARK, now=100.0) is None
    return clock


def test_nothing_is_due_before_the_partitions_count_as_idle() -> None:
    assert _quiet({A: 3, B: 1}).due({A: 3, B: 1}, WATERMARK, now=104.9) is None


def test_time_due_is_the_last_watermark_and_the_time_gone_by() -> None:
    clock = _quiet({A: 3, B: 1})
    assert clock.due({A: 3, B: 1}, WATERMARK, now=105.0) == WATERMARK + 5 * NS
    assert clock.due({A: 3, B: 1}, WATERMARK, now=107.2) == WATERMARK + 7 * NS


def test_watermarks_moved_by_our_own_clock_do_not_count_twice() -> None:
    clock = _quiet({A: 3})
    clock.due({A: 3}, WATERMARK, now=105.0)
    clock.wrote(A, 3)
    assert clock.due({A: 4}, WATERMARK + 5 * NS, now=106.0) == WATERMARK + 6 * NS


def test_a_message_of_someone_else_ends_the_silence() -> None:
    clock = _quiet({A: 3})
    clock.due({A: 3}, WATERMARK, now=105.0)
    clock.wrote(A, 4)  # another one stands at 3
    assert clock.due({A: 5}, WATERMARK, now=106.0) is None
    assert clock.due({A: 5}, WATERMARK, now=110.9) is None
    assert clock.due({A: 5}, 2 * WATERMARK, now=111.0) == 2 * WATERMARK + 5 * NS


def test_where_nothing_was_ever_sent_there_is_no_time_to_go_on_from() -> None:
    assert _quiet({A: 0}).due({A: 0}, 0, now=200.0) is None
