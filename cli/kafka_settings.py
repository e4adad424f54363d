"""The Kafka section from a configuration file, with what the command line says on top."""

from pathlib import Path

from msgspec.structs import replace

from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import UsageError

MAX_PARTITIONS = 1024


def kafka_settings(kafka: Kafka, brokers: str | None, partitions: int | None = None) -> Kafka:
    """The section with ``--brokers`` (comma separated) and ``--partitions`` in its place.

    Raises:
        UsageError: no broker named, or a partition count out of range.
    """
    if brokers is not None:
        named = [broker.strip() for broker in brokers.split(",") if broker.strip()]
        if not named:
            msg = "--brokers names no broker; give HOST:PORT[,HOST:PORT]"
            raise UsageError(msg)
        kafka = replace(kafka, brokers=named)
    if partitions is not None:
        if not 1 <= partitions <= MAX_PARTITIONS:
            msg = f"--partitions is {partitions}; give 1 to {MAX_PARTITIONS}"
            raise UsageError(msg)
        kafka = replace(kafka, partitions=partitions)
    return kafka


def kafka_from_file(config: Path | None) -> Kafka:
    """The section of a configuration file, or the defaults without one.

    Raises:
        ConfigError: the file cannot be used.
    """
    if config is None:
        return Kafka()
    from stethoscope.streams.config import load_config

    return load_config(config).kafka
