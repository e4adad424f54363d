"""The agent's own ``/metrics``, for Prometheus. Off without a port, on loopback unless told."""

import threading
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from msgspec import Struct
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stethoscope.agents.control import ControlStats
from stethoscope.agents.schedule import Task
from stethoscope.agents.send import SendStats
from stethoscope.schemas.agent_config import MetricsHttp
from stethoscope.schemas.errors import UsageError

STATES = ("ok", "failing", "unsupported")


class Snapshot(Struct, frozen=True):
    """Everything that is shown, at one moment."""

    tasks: list[Task]
    send: SendStats
    control: ControlStats
    spooled: int
    spool_bytes: int
    dropped_total: int
    torn_total: int
    level: str
    workers_killed_total: int
    workers_abandoned: int
    reloads_total: int
    reload_failures_total: int


class MetricsServer:
    """Serves until closed."""

    def __init__(self, config: MetricsHttp, look: Callable[[], Snapshot]) -> None:
        """Listen.

        Raises:
            UsageError: the port cannot be listened on.
        """
        registry = CollectorRegistry()
        registry.register(_Snapshots(look))
        try:
            self._server: WSGIServer
            self._thread: threading.Thread
            self._server, self._thread = start_http_server(
                config.port or 0, config.address, registry
            )
        except OSError as error:
            msg = f"metrics.port {config.port}: {error.strerror}; choose another or none"
            raise UsageError(msg) from error

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)


class _Snapshots(Collector):
    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look

    def collect(self) -> Iterable[Metric]:
        """All families of one snapshot."""
        now = self._look()
        yield from _whole(now)
        yield from _per_reader(now.tasks)

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: the names do not clash, the registry is ours."""
        return []


def _whole(now: Snapshot) -> Iterable[Metric]:
    counters = {
        "sent_events": (now.send.sent_total, "Events that Kafka acknowledged."),
        "spooled_events": (now.send.spooled_total, "Events that went to the spool."),
        "dropped_events": (now.dropped_total, "Events lost by the bounds of memory and spool."),
        "unsendable_events": (now.send.unsendable_total, "Events that Kafka would not take."),
        "torn_segments": (now.torn_total, "Stretches of the spool that could not be read."),
        "send_failures": (now.send.failures_total, "Attempts to send or connect that failed."),
        "state_errors": (now.send.state_errors_total, "Positions that could not be saved."),
        "control_messages": (now.control.messages_total, "Control messages for this node."),
        "control_bad": (now.control.bad_total, "Control messages that could not be read."),
        "workers_killed": (now.workers_killed_total, "Worker processes killed."),
        "config_reloads": (now.reloads_total, "Configurations taken up."),
        "config_reload_failures": (now.reload_failures_total, "Configurations refused."),
    }
    for name, (value, text) in counters.items():
        yield CounterMetricFamily(f"stethoscope_agent_{name}", text, value=value)
    gauges = {
        "kafka_connected": (float(now.send.connected), "Whether the producer is connected."),
        "spool_events": (float(now.spooled), "Events that wait in the spool."),
        "spool_bytes": (float(now.spool_bytes), "Bytes the spool takes on disk."),
        "workers_abandoned": (float(now.workers_abandoned), "Killed workers that have not ended."),
        "alert": (float(now.level == "alert"), "Whether this node is looked at closely."),
    }
    for name, (level, text) in gauges.items():
        yield GaugeMetricFamily(f"stethoscope_agent_{name}", text, value=level)


def _per_reader(tasks: list[Task]) -> Iterable[Metric]:
    prefix, label = "stethoscope_agent_reader_", ["reader"]
    state = GaugeMetricFamily(
        f"{prefix}state", "1 for the present state.", labels=["reader", "state"]
    )
    reads = CounterMetricFamily(f"{prefix}reads", "Reads that went well.", labels=label)
    failures = CounterMetricFamily(f"{prefix}failures", "Calls that failed.", labels=label)
    events = CounterMetricFamily(f"{prefix}events", "Events passed on.", labels=label)
    secs = CounterMetricFamily(f"{prefix}seconds", "Time from call to answer.", labels=label)
    invalid = CounterMetricFamily(f"{prefix}invalid_samples", "Values set to null.", labels=label)
    errors = CounterMetricFamily(
        f"{prefix}collector_errors", "Failures by file or call.", labels=["reader", "source"]
    )
    for task in tasks:
        for name in STATES:
            state.add_metric([task.name, name], float(task.state == name))
        reads.add_metric([task.name], task.reads_total)
        failures.add_metric([task.name], task.failures_total)
        events.add_metric([task.name], task.events_total)
        secs.add_metric([task.name], task.read_secs_total)
        if task.counters is not None:
            invalid.add_metric([task.name], task.counters.invalid_samples_total)
            for source, count in list(task.counters.collector_errors.items()):
                errors.add_metric([task.name, source], count)
    yield from (state, reads, failures, events, secs, invalid, errors)
