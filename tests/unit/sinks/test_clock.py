import asyncio

import pytest

from stethoscope.sinks.clock import NS, Clock, FakeClock, SystemClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_set_event_ends_the_wait_at_once(clock: Clock) -> None:
    async def waited_secs() -> float:
        event = asyncio.Event()
        event.set()
        before = clock.monotonic_secs()
        await asyncio.wait_for(clock.wait(event, 3600.0), 60.0)
        return clock.monotonic_secs() - before

    assert asyncio.run(waited_secs()) < 60.0


def test_the_system_clock_waits_no_longer_than_told() -> None:
    async def wait() -> None:
        await asyncio.wait_for(SystemClock().wait(asyncio.Event(), 0.0), 60.0)

    asyncio.run(wait())


def test_the_fake_clock_passes_waits_at_once_and_steps_apart() -> None:
    clock = FakeClock(unix_ns=5 * NS)
    started_secs = clock.monotonic_secs()
    asyncio.run(clock.wait(asyncio.Event(), 90.0))
    clock.step_wall(-10.0)
    assert clock.unix_ns() == 85 * NS
    assert clock.monotonic_secs() == started_secs + 90.0
