"""The agent's own /metrics."""

import urllib.request

import pytest

from stethoscope.agents.control import ControlStats
from stethoscope.agents.metrics_http import MetricsServer, Snapshot
from stethoscope.agents.reader import Counters
from stethoscope.agents.schedule import Task
from stethoscope.agents.send import SendStats
from stethoscope.schemas.agent_config import MetricsHttp
from stethoscope.schemas.errors import UsageError

COUNTERS = Counters(invalid_samples_total=7, collector_errors={'a"\n': 2})
TASK = Task("ib_sysfs", 1.0, 10.0, 0, state="failing", failures_total=3, counters=COUNTERS)
SNAPSHOT = Snapshot(
    tasks=[TASK],
    send=SendStats(sent_total=11, connected=True),
    control=ControlStats(messages_total=1),
    spooled=5,
    spool_bytes=500,
    dropped_total=2,
    torn_total=0,
    level="alert",
    workers_killed_total=4,
    workers_abandoned=1,
    reloads_total=1,
    reload_failures_total=0,
)


def test_every_number_is_shown() -> None:
    server = MetricsServer(MetricsHttp(), lambda: SNAPSHOT)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    server.close()
    expected = [
        "stethoscope_agent_sent_events_total 11.0",
        "stethoscope_agent_dropped_events_total 2.0",
        "stethoscope_agent_kafka_connected 1.0",
        "stethoscope_agent_spool_events 5.0",
        "stethoscope_agent_alert 1.0",
        "stethoscope_agent_workers_abandoned 1.0",
        'stethoscope_agent_reader_state{reader="ib_sysfs",state="failing"} 1.0',
        'stethoscope_agent_reader_state{reader="ib_sysfs",state="ok"} 0.0',
        'stethoscope_agent_reader_failures_total{reader="ib_sysfs"} 3.0',
        'stethoscope_agent_reader_invalid_samples_total{reader="ib_sysfs"} 7.0',
        r'stethoscope_agent_reader_collector_errors_total{reader="ib_sysfs",source="a\"\n"} 2.0',
    ]
    assert [line for line in expected if line not in lines] == []


def test_a_port_in_use_is_a_usage_error() -> None:
    server = MetricsServer(MetricsHttp(), lambda: SNAPSHOT)
    with pytest.raises(UsageError, match=r"metrics\.port"):
        MetricsServer(MetricsHttp(port=server.port), lambda: SNAPSHOT)
    server.close()
