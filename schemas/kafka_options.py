"""Topic names, which topic an event belongs to, and the client options that reach the brokers.

The option names are those that kafka-python and aiokafka share.
"""

import ssl
from typing import Literal, TypeAlias, TypedDict

from stethoscope.schemas.config import Kafka
from stethoscope.schemas.events import ClockEvent, Event, JobEvent, LogEvent, TopologyEvent
from stethoscope.schemas.secrets import read_secret, tls_context

TELEMETRY = "steth.telemetry.v1"
LOGS = "steth.logs.v1"
JOBS = "steth.jobs.v1"
JOB_VIEW = "steth.job-view.v1"
FINDINGS = "steth.findings.v1"
INCIDENTS = "steth.incidents.v1"
DEAD_LETTER = "steth.dead-letter.v1"
CONTROL = "steth.control.v1"
STATE = "steth.state.v1"
# One event may have 8 MiB (schemas/codec.py); the rest is for headers and the batch around it.
MAX_MESSAGE_BYTES = 9 * 1024 * 1024


Protocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class ClientOptions(TypedDict, total=False):
    """Keyword arguments for a Kafka client. Holds the password: never log it."""

    bootstrap_servers: str
    security_protocol: Protocol
    ssl_context: ssl.SSLContext
    sasl_mechanism: Mechanism
    sasl_plain_username: str
    sasl_plain_password: str


def client_options(kafka: Kafka) -> ClientOptions:
    """How to reach the brokers: addresses, TLS and SASL.

    Raises:
        ConfigError: a secret or a certificate that cannot be read.
    """
    options = ClientOptions(
        bootstrap_servers=",".join(kafka.brokers), security_protocol=security_protocol(kafka)
    )
    if kafka.tls is not None:
        options["ssl_context"] = tls_context(kafka.tls)
    if kafka.sasl is not None:
        options["sasl_mechanism"] = kafka.sasl.mechanism
        options["sasl_plain_username"] = kafka.sasl.username
        options["sasl_plain_password"] = read_secret(kafka.sasl.password)
    return options


def security_protocol(kafka: Kafka) -> Protocol:
    """Kafka's word for the pair of TLS and SASL.

    >>> security_protocol(Kafka())
    'PLAINTEXT'
    """
    if kafka.sasl is not None:
        return "SASL_PLAINTEXT" if kafka.tls is None else "SASL_SSL"
    return "PLAINTEXT" if kafka.tls is None else "SSL"


def topic_of(event: Event) -> str:
    """The topic an event is sent to; a ``clock`` event without a partition goes to the jobs."""
    if isinstance(event, LogEvent):
        return LOGS
    if isinstance(event, JobEvent | TopologyEvent):
        return JOBS
    if isinstance(event, ClockEvent) and event.node is None:
        return JOBS
    return TELEMETRY


def key_of(event: Event) -> bytes:
    """The message key: the node, else the job, else the cluster."""
    if isinstance(event, JobEvent):
        return event.job_id.encode()
    if isinstance(event, TopologyEvent):
        return event.cluster.encode()
    return (event.node or event.cluster).encode()
