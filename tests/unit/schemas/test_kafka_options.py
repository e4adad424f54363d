"""Where events go, and what reaches the brokers."""

from pathlib import Path

import pytest

from stethoscope.schemas.config import Kafka, Sasl, Secret, Tls
from stethoscope.schemas.errors import ConfigError
from stethoscope.schemas.events import ClockEvent, Event, HeartbeatEvent, JobEvent, LogEvent
from stethoscope.schemas.kafka_options import (
    JOBS,
    LOGS,
    TELEMETRY,
    client_options,
    key_of,
    topic_of,
)
from stethoscope.schemas.secrets import read_secret, tls_context


@pytest.mark.parametrize(
    ("event", "topic", "key"),
    [
        (HeartbeatEvent(time_unix_ns=1, node="n1"), TELEMETRY, b"n1"),
        (LogEvent(time_unix_ns=1, node="n1", source="kernel", line="x"), LOGS, b"n1"),
        (JobEvent(time_unix_ns=1, job_id="7", state="RUNNING"), JOBS, b"7"),
        (ClockEvent(time_unix_ns=1), JOBS, b"default"),
        (ClockEvent(time_unix_ns=1, node="n1"), TELEMETRY, b"n1"),
    ],
)
def test_events_go_where_their_stage_reads_them(event: Event, topic: str, key: bytes) -> None:
    assert (topic_of(event), key_of(event)) == (topic, key)


def test_plain_brokers_need_nothing_more() -> None:
    options = client_options(Kafka(brokers=["a:1", "b:2"]))
    assert options == {"bootstrap_servers": "a:1,b:2", "security_protocol": "PLAINTEXT"}


def test_sasl_over_tls_takes_the_password_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    sasl = Sasl(username="u", password=Secret(env="KAFKA_PASSWORD"))
    options = client_options(Kafka(sasl=sasl, tls=Tls(verify=False)))
    assert options["security_protocol"] == "SASL_SSL"
    assert options["sasl_mechanism"] == "SCRAM-SHA-512"
    assert options["sasl_plain_password"] == "s3cret"  # noqa: S105 - the test's own
    assert options["ssl_context"].check_hostname is False


def test_certificates_are_checked_unless_told_otherwise() -> None:
    assert tls_context(Tls()).check_hostname is True


def test_a_secret_file_loses_its_newline(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n", encoding="utf-8")
    assert read_secret(Secret(file=str(file))) == "s3cret"


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (Secret(), "exactly one of env and file"),
        (Secret(env="A", file="b"), "exactly one of env and file"),
        (Secret(env="STETHOSCOPE_NO_SUCH_VARIABLE"), "STETHOSCOPE_NO_SUCH_VARIABLE is not set"),
        (Secret(file="/nowhere/password"), "/nowhere/password cannot be read"),
    ],
)
def test_a_secret_that_cannot_be_had_is_named(secret: Secret, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_secret(secret)


def test_a_missing_certificate_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem"):
        tls_context(Tls(ca_file="/nowhere/ca.pem"))
