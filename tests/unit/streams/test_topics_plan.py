"""The topics as planned."""

import pytest

from stethoscope.schemas import kafka_options as names
from stethoscope.schemas.config import Kafka
from stethoscope.streams.topics import Difference, plan


def test_telemetry_and_logs_have_equal_partition_counts() -> None:
    counts = {topic.name: topic.partitions for topic in plan(Kafka(partitions=7))}
    assert counts[names.TELEMETRY] == counts[names.LOGS] == counts[names.JOB_VIEW] == 7
    assert counts[names.STATE] == 7
    assert counts[names.JOBS] == counts[names.FINDINGS] == counts[names.INCIDENTS] == 1


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        (names.JOBS, "delete"),
        (names.STATE, "compact"),
        (names.INCIDENTS, "compact,delete"),
        (names.CONTROL, "compact"),
    ],
)
def test_placement_is_history_and_state_is_not(name: str, policy: str) -> None:
    settings = {topic.name: topic.settings for topic in plan(Kafka())}
    assert settings[name]["cleanup.policy"] == policy


def test_a_missing_topic_names_the_remedy() -> None:
    said = str(Difference("steth.jobs.v1", "topic", "present", None))
    assert said == "steth.jobs.v1: missing; run `stethoscope topics create`"


def test_another_difference_names_both_values() -> None:
    said = str(Difference("steth.logs.v1", "partition count", "4", "3"))
    assert said == "steth.logs.v1: partition count is 3, should be 4"
