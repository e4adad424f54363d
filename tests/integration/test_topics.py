"""``stethoscope topics`` against a real broker."""

import pytest
from kafka.admin import KafkaAdminClient

from stethoscope.schemas import kafka_options as names

from .conftest import free_ports
from .streaming import fresh_topics, run_command

pytestmark = pytest.mark.integration


def test_created_topics_are_as_planned_and_creating_again_changes_nothing(
    kafka_broker: str,
) -> None:
    fresh_topics(kafka_broker, 2)
    admin = KafkaAdminClient(bootstrap_servers=[kafka_broker])
    admin.delete_topics([names.FINDINGS])
    admin.close()
    first = run_command("topics", "create", "--brokers", kafka_broker, "--partitions", "2")
    assert (first.returncode, first.stdout) == (0, f"created {names.FINDINGS}\n")
    again = run_command("topics", "create", "--brokers", kafka_broker, "--partitions", "2")
    assert (again.returncode, again.stdout) == (0, "all topics were there\n")
    checked = run_command("topics", "check", "--brokers", kafka_broker, "--partitions", "2")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_another_partition_count_is_named_for_each_topic(kafka_broker: str) -> None:
    fresh_topics(kafka_broker, 2)
    checked = run_command("topics", "check", "--brokers", kafka_broker, "--partitions", "3")
    assert checked.returncode == 1
    assert f"{names.LOGS}: partition count is 2, should be 3" in checked.stderr.splitlines()


def test_a_broker_that_is_away_is_one_line() -> None:
    away = f"127.0.0.1:{free_ports(1)[0]}"
    checked = run_command("topics", "check", "--brokers", away)
    assert checked.returncode == 1
    assert len(checked.stderr.splitlines()) == 1
    assert checked.stderr.startswith(f"stethoscope: Kafka at {away} does not answer")


@pytest.mark.parametrize("wrong", [["--brokers", ","], ["--partitions", "0"]])
def test_bad_usage_is_exit_code_two(wrong: list[str]) -> None:
    assert run_command("topics", "check", *wrong).returncode == 2
