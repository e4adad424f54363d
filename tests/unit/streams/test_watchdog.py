"""The watchdog cries for a stall, and for nothing else."""

from stethoscope.streams.watchdog import Progress, Watchdog

TELEMETRY = ("steth.telemetry.v1", 3)


def _trouble(watchdog: Watchdog, now: float, position: int, committed: int, end: int) -> str | None:
    return watchdog.trouble({TELEMETRY: Progress(position, committed, end)}, now)


def test_an_idle_partition_is_healthy_for_ever() -> None:
    watchdog = Watchdog(stall_secs=10, commit_stall_secs=20)
    assert all(_trouble(watchdog, now, 5, 5, 5) is None for now in range(0, 1000, 5))


def test_reading_that_stands_still_with_messages_waiting_is_named() -> None:
    watchdog = Watchdog(stall_secs=10, commit_stall_secs=20)
    assert _trouble(watchdog, 0, 5, 5, 9) is None
    assert _trouble(watchdog, 10, 5, 5, 12) is None
    assert _trouble(watchdog, 11, 5, 5, 12) == "steth.telemetry.v1 partition 3 stands at 5 of 12"


def test_a_stall_counts_from_the_first_message_that_waits() -> None:
    watchdog = Watchdog(stall_secs=10, commit_stall_secs=20)
    assert _trouble(watchdog, 0, 5, 5, 5) is None
    assert _trouble(watchdog, 100, 5, 5, 6) is None
    assert _trouble(watchdog, 105, 5, 5, 6) is None


def test_commits_that_stop_while_reading_goes_on_are_named() -> None:
    watchdog = Watchdog(stall_secs=10, commit_stall_secs=20)
    said = [_trouble(watchdog, now, 5 + now, 5, 100) for now in range(0, 27, 3)]
    assert said[:-1] == [None] * 8
    assert said[-1] == "steth.telemetry.v1 partition 3 is read to 29, committed to 5"


def test_a_partition_that_went_away_is_forgotten() -> None:
    watchdog = Watchdog(stall_secs=10, commit_stall_secs=20)
    _trouble(watchdog, 0, 5, 5, 9)
    assert watchdog.trouble({}, 5) is None
    assert _trouble(watchdog, 60, 5, 5, 9) is None
