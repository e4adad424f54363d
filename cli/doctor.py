"""``stethoscope doctor``: what this machine and configuration lack, and the remedy."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import typer

from stethoscope.schemas.errors import ConfigError, ServiceError

if TYPE_CHECKING:
    from stethoscope.schemas.config import Alertmanager, Kafka
    from stethoscope.streams.config import Config

State: TypeAlias = Literal["ok", "failing", "absent"]
_CONNECT_SECS = 3.0
# What each extra brings that nothing else does; the command itself always has the rest.
_EXTRAS = {
    "agent": ("kafka", "pynvml", "prometheus_client"),
    "replay": ("numpy", "pyarrow", "river", "sklearn"),
    "worker": ("faust", "aiokafka", "httpx"),
}


class Check(NamedTuple):
    """One line of the answer; ``remedy`` only where something is to be done."""

    state: State
    what: str
    remedy: str = ""


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file (YAML).")
    ] = None,
) -> None:
    """Check this machine, the configuration and the services it names.

    Each line says ok, failing or absent. Exit code 1 when something fails.
    """
    failing = False
    for check in _checks(config):
        remedy = f"; {check.remedy}" if check.remedy else ""
        typer.echo(f"{check.state:<8} {check.what}{remedy}")
        failing = failing or check.state == "failing"
    if failing:
        raise typer.Exit(1)


def _checks(file: Path | None) -> Iterator[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Check("ok", f"Python {version}")
    yield from (_extra(name, modules) for name, modules in _EXTRAS.items())
    if missing := _missing(_EXTRAS["replay"][:1]):
        yield Check("absent", f"configuration: not checked without {missing}")
        return
    from stethoscope.streams.config import load_config

    try:
        config = load_config(file)
    except ConfigError as error:
        yield Check("failing", f"configuration: {error}")
        return
    yield Check("ok", f"configuration: {file or 'defaults'}, {len(config.detectors)} detectors")
    yield from _services(config, file)


def _services(config: "Config", file: Path | None) -> Iterator[Check]:
    if file is None:
        yield Check("absent", "services: no configuration given", "name one with --config FILE")
        return
    yield from (_broker(config.kafka, broker) for broker in config.kafka.brokers)
    if not config.alertmanager.urls:
        yield Check("absent", "alertmanager: none configured", "set alertmanager.urls to page")
    yield from (_alertmanager(config.alertmanager, url) for url in config.alertmanager.urls)


def _extra(name: str, modules: tuple[str, ...]) -> Check:
    if missing := _missing(modules):
        return Check(
            "absent",
            f"extra {name}: without {missing}",
            f"pip install '.[{name}]' in the source folder",
        )
    return Check("ok", f"extra {name}")


def _missing(modules: tuple[str, ...]) -> str:
    return ", ".join(module for module in modules if find_spec(module) is None)


def _broker(kafka: "Kafka", broker: str) -> Check:
    """A plain TCP connection: whether anybody listens, not whether we may log in."""
    import socket

    host, _, port = broker.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECS):
            return Check("ok", f"broker {broker}")
    except ValueError:
        return Check("failing", f"broker {broker}: no port", "write HOST:PORT in kafka.brokers")
    except OSError as error:
        reason = error.strerror or error
        return Check("failing", f"broker {broker}: {reason}", "start it, or correct kafka.brokers")


def _alertmanager(config: "Alertmanager", url: str) -> Check:
    import asyncio

    try:
        version = asyncio.run(_alertmanager_version(config, url))
    except (ServiceError, ConfigError) as error:
        return Check("failing", f"alertmanager {url}: {error}", "correct alertmanager.urls")
    return Check("ok", f"alertmanager {url}: {version}")


async def _alertmanager_version(config: "Alertmanager", url: str) -> str:
    from stethoscope.sinks.alertmanager import AlertmanagerClient

    async with AlertmanagerClient(url, config) as client:
        status = await client.status()
    return status.version_info.version
