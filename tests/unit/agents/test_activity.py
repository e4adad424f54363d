"""How closely a node is looked at: calm, busy, alert, and wished for."""

import pytest

from stethoscope.agents.activity import BUSY_HOLD_SECS, Activity
from stethoscope.agents.clock import FakeClock
from stethoscope.schemas.agent_config import Control, Loop
from stethoscope.schemas.control import ControlMessage
from stethoscope.schemas.events import Device, Event, GpuEvent, LogEvent, NodeEvent, Process

LOOP = Loop(alert_period_secs=0.5)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def calm(clock: FakeClock) -> Activity:
    activity = Activity("node01", LOOP, Control(), clock.now())
    clock.advance(BUSY_HOLD_SECS)
    return activity


def gpus(count: int, utilization: float | None = 0.0) -> GpuEvent:
    devices = [Device(uuid=f"GPU-{i}", index=i) for i in range(count)]
    metrics = {"gpu_utilization_ratio": [utilization] * count}
    return GpuEvent(time_unix_ns=1, node="node01", devices=devices, metrics=metrics)


def kernel_line() -> LogEvent:
    return LogEvent(time_unix_ns=1, node="node01", source="kernel", line="NVRM: Xid")


def test_a_new_agent_looks_at_its_own_pace_first(clock: FakeClock) -> None:
    activity = Activity("node01", LOOP, Control(), clock.now())
    assert activity.period_secs("gpu_nvml", 1.0, clock.now()) == 1.0


def test_a_calm_node_is_looked_at_seldom(clock: FakeClock, calm: Activity) -> None:
    calm.observe([gpus(8), gpus(8, None), NodeEvent(time_unix_ns=1, node="node01")], clock.now())
    assert calm.level(clock.now()) == "calm"
    assert calm.period_secs("gpu_nvml", 1.0, clock.now()) == 15.0
    assert calm.period_secs("prometheus", 30.0, clock.now()) == 30.0
    assert calm.period_secs("kernel_log", 1.0, clock.now()) == 1.0


@pytest.mark.parametrize(
    "event",
    [
        gpus(8, 0.9),
        NodeEvent(time_unix_ns=1, node="node01", processes=[Process(name="python", pid=1)]),
        LogEvent(time_unix_ns=1, node="node01", source="train", line="iteration 1"),
    ],
)
def test_work_makes_a_node_busy_for_a_while(clock: FakeClock, calm: Activity, event: Event) -> None:
    calm.observe([event], clock.now())
    assert calm.level(clock.now()) == "busy"
    assert calm.period_secs("gpu_nvml", 1.0, clock.now()) == 1.0
    clock.advance(BUSY_HOLD_SECS)
    assert calm.level(clock.now()) == "calm"


@pytest.mark.parametrize("events", [[kernel_line()], [gpus(8), gpus(7)]])
def test_trouble_is_looked_at_closely_for_a_while(
    clock: FakeClock, calm: Activity, events: list[Event]
) -> None:
    calm.observe(events, clock.now())
    assert calm.period_secs("host", 5.0, clock.now()) == 0.5
    clock.advance(LOOP.alert_hold_secs)
    assert calm.level(clock.now()) == "calm"


def test_a_wish_is_granted_until_it_ends(clock: FakeClock, calm: Activity) -> None:
    until = clock.now().unix_ns + 60 * 10**9
    assert calm.wish(ControlMessage("node01", 0.25, until), clock.now())
    assert calm.period_secs("gpu_nvml", 1.0, clock.now()) == 0.25
    clock.advance(60)
    assert calm.level(clock.now()) == "calm"


def test_a_wish_is_bounded(clock: FakeClock, calm: Activity) -> None:
    for_ever = clock.now().unix_ns + 10**18
    calm.wish(ControlMessage("node01", 0.0001, for_ever), clock.now())
    assert calm.period_secs("gpu_nvml", 1.0, clock.now()) == Control().min_period_secs
    clock.advance(Control().max_hold_secs)
    assert calm.level(clock.now()) == "calm"


def test_wishes_for_others_and_of_the_past_change_nothing(clock: FakeClock, calm: Activity) -> None:
    now = clock.now()
    assert not calm.wish(ControlMessage("node02", 1.0, now.unix_ns + 10**10), now)
    assert calm.wish(ControlMessage("node01", 1.0, now.unix_ns - 1), now)
    assert calm.level(now) == "calm"


def test_adaptive_can_be_switched_off(clock: FakeClock) -> None:
    activity = Activity("node01", Loop(adaptive=False), Control(), clock.now())
    clock.advance(10_000)
    assert activity.period_secs("gpu_nvml", 1.0, clock.now()) == 1.0
