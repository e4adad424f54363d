"""The scheduling loop: calls each reader when it is due, and passes on what it returns.

One thread. Readers are called elsewhere and answer later: those that may hang in worker processes,
the others in a thread. No reader's failure reaches another or ends the loop.
"""

import logging
import random
import select
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from stethoscope.agents.activity import Activity
from stethoscope.agents.calls import Call, Result
from stethoscope.agents.clock import Clock, Now
from stethoscope.agents.outbox import Batch, Outbox
from stethoscope.agents.reader import Context
from stethoscope.agents.runner import Runner
from stethoscope.agents.schedule import Task, first_base_ns
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.control import ControlMessage
from stethoscope.schemas.events import Event, GpuEvent, HeartbeatEvent, IbEvent, NodeEvent

log = logging.getLogger(__name__)

MAX_WAIT_SECS = 1.0
HOLD_BACK_SECS = 0.5
_NS = 1_000_000_000


class Vitals(Struct, frozen=True):
    """What the heartbeat says besides the readers' states."""

    spooled: int = 0
    dropped_total: int = 0
    agent_version: str = ""


class Loop:
    """All tasks of one configuration. Build a new one to change it.

    ``runners``: for each task's name, where its reader is called.
    """

    def __init__(
        self,
        context: Context,
        config: AgentConfig,
        clock: Clock,
        outbox: Outbox,
        runners: dict[str, Runner],
        tasks: list[Task],
    ) -> None:
        self._context = context
        self._config = config.loop
        self._clock = clock
        self._outbox = outbox
        self._runner_of = runners
        self._runners = list({id(runner): runner for runner in runners.values()}.values())
        self._rng = random.Random(context.node)  # noqa: S311 - spreads load, guards nothing
        now = clock.now()
        self.tasks = {task.name: task for task in tasks}
        self.activity = Activity(context.node, config.loop, config.control, now)
        self._heartbeat_base_ns = first_base_ns(
            context.node, now.monotonic_ns, self._config.heartbeat_secs
        )
        self.heartbeat_total = 0

    def step(self, wishes: list[ControlMessage], vitals: Callable[[], Vitals]) -> float:
        """One round: grant wishes, take answers, call what is due, say that we live.

        Returns:
            Seconds until the next call is due, at most 1.
        """
        now = self._clock.now()
        for wish in wishes:
            self.activity.wish(wish, now)
        self._take_results(now)
        for task in self.tasks.values():
            if not task.busy and task.due_ns(self._period_secs(task, now)) <= now.monotonic_ns:
                self._call(task, now)
        self._take_results(now)
        self._heartbeat_if_due(now, vitals)
        return self._secs_to_next(now)

    def wait(self, secs: float) -> None:
        """Wait that long, or until a worker answers."""
        poller = select.poll()
        for runner in self._runners:
            for handle in runner.handles():
                poller.register(handle, select.POLLIN | select.POLLHUP)
        poller.poll(max(0.0, secs) * 1000)

    def close(self) -> dict[str, str]:
        """Close readers and workers; the positions up to which events were passed on."""
        for runner in self._runners:
            runner.close()
        positions = {task.name: task.position for task in self.tasks.values()}
        return {name: position for name, position in positions.items() if position is not None}

    def _call(self, task: Task, now: Now) -> None:
        if task.position is not None and not self._outbox.has_room():
            task.not_before_ns = now.monotonic_ns + round(HOLD_BACK_SECS * _NS)
            return
        task.begin(now.monotonic_ns, self._period_secs(task, now))
        call = Call(task.name, task.verb, now, task.position, task.ahead)
        self._runner_of[task.name].submit(call, task.deadline_secs)

    def _take_results(self, now: Now) -> None:
        for runner in self._runners:
            for result in runner.poll(now.monotonic_ns):
                self._take(result)

    def _take(self, result: Result) -> None:
        task = self.tasks[result.reader]
        done = self._clock.now()
        task.busy = False
        task.read_secs_total += (done.monotonic_ns - task.started_ns) / _NS
        task.counters = result.counters or task.counters
        if result.state == "ok":
            self._succeeded(task, result, done)
        elif result.state == "unsupported":
            if task.state != "unsupported":
                log.warning("reader %s is not supported here: %s", task.name, result.detail)
            task.unsupported(result.detail, done.monotonic_ns, self._config.reprobe_secs)
        else:
            self._failed(task, result.detail, done)

    def _succeeded(self, task: Task, result: Result, now: Now) -> None:
        if not task.probed:
            task.found()
            return
        if task.failures:
            log.warning("reader %s is well again", task.name)
        task.succeed()
        moved = result.checkpoint is not None and result.checkpoint != task.position
        task.position = result.checkpoint or task.position
        if not result.events and not moved:
            return
        period_secs = self._period_secs(task, now)
        self.activity.observe(result.events, now)
        events = [_with_period(event, period_secs) for event in result.events]
        task.events_total += len(events)
        self._outbox.offer(Batch(task.name, events, result.checkpoint))

    def _failed(self, task: Task, detail: str, now: Now) -> None:
        began = task.fail(detail, now.monotonic_ns, self._config.max_backoff_secs, self._rng)
        if began:
            self.activity.trouble(now)
        if task.failures == 1:
            log.warning("reader %s is failing: %s", task.name, detail)

    def _period_secs(self, task: Task, now: Now) -> float:
        return self.activity.period_secs(task.name, task.own_period_secs, now)

    def _heartbeat_if_due(self, now: Now, vitals: Callable[[], Vitals]) -> None:
        period_ns = round(self._config.heartbeat_secs * _NS)
        if now.monotonic_ns < self._heartbeat_base_ns + period_ns:
            return
        self._heartbeat_base_ns += period_ns * (
            (now.monotonic_ns - self._heartbeat_base_ns) // period_ns
        )
        vital = vitals()
        event = HeartbeatEvent(
            **self._context.stamp(now, self._config.heartbeat_secs),
            agent_version=vital.agent_version,
            spooled=vital.spooled,
            dropped_total=vital.dropped_total,
            readers={t.name: t.state for t in self.tasks.values() if t.state is not None},
        )
        self.heartbeat_total += 1
        self._outbox.offer(Batch("heartbeat", [event]))

    def _secs_to_next(self, now: Now) -> float:
        waiting = (t.due_ns(self._period_secs(t, now)) for t in self.tasks.values() if not t.busy)
        heartbeat_ns = self._heartbeat_base_ns + round(self._config.heartbeat_secs * _NS)
        left_ns = min([heartbeat_ns, *waiting]) - now.monotonic_ns
        return min(MAX_WAIT_SECS, max(0.0, left_ns / _NS))


def _with_period(event: Event, period_secs: float) -> Event:
    """Samples say how often they come now."""
    if isinstance(event, GpuEvent | IbEvent | NodeEvent) and event.period_secs != period_secs:
        return replace(event, period_secs=period_secs)
    return event
