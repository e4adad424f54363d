"""``stethoscope worker``: streams in, pages out."""

import asyncio
import logging
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from stethoscope.cli.kafka_settings import kafka_settings
from stethoscope.cli.logs import FieldsFormatter
from stethoscope.cli.worker_reload import Reloader, start_anew
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from stethoscope.streams.app import WorkerSettings
    from stethoscope.streams.config import Config

# Differences that make reading wrong, not merely unlike the plan.
_FATAL = ("topic", "partition count")
_ANY_AGE_SECS = 1e10  # three hundred years


def worker(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file (YAML).")
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", "-b", help="HOST:PORT[,HOST:PORT] in place of the file's."),
    ] = None,
    alertmanager: Annotated[
        list[str] | None,
        typer.Option(
            "--alertmanager", "-a", help="URL in place of the file's; may be given again."
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Scratch directory; nothing in it needs a backup.")
    ] = Path("worker-data"),
    web_port: Annotated[
        int | None,
        typer.Option("--web-port", min=1, max=65535, help="Serve /metrics on this loopback port."),
    ] = None,
    snapshot_secs: Annotated[
        float, typer.Option("--snapshot-secs", min=0.1, help="Seconds between snapshots.")
    ] = 5.0,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded",
            "--no-silence-clock",
            help="The events are a recording played at another time or speed: silence of the "
            "topics is no silence of the nodes, and what is old pages all the same.",
        ),
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug to error.")] = "info",
) -> None:
    """Read the topics, find faults, send alerts.

    Stops cleanly on SIGTERM; takes up a changed configuration file by itself, or on SIGHUP.
    """
    _set_up_logs(log_level)
    loaded = _load(config, brokers, alertmanager)
    _make(data_dir)
    _check_topics(loaded.kafka)
    if web_port is not None:
        _serve_metrics(web_port)
    from stethoscope.sinks.sender import REPLAY_AGE_SECS
    from stethoscope.streams.app import WorkerSettings
    from stethoscope.streams.shell import ShellSettings

    shell = ShellSettings(
        kafka=loaded.kafka,
        timing=loaded.timing,
        snapshot_secs=snapshot_secs,
        silence_clock=not recorded,
        history_secs=_ANY_AGE_SECS if recorded else REPLAY_AGE_SECS,
    )
    if asyncio.run(_run(WorkerSettings(shell=shell, data_dir=data_dir), loaded, config)):
        start_anew()


def _load(file: Path | None, brokers: str | None, alertmanager: list[str] | None) -> "Config":
    """The file, with what the command line says in its place."""
    from stethoscope.streams.config import load_config

    loaded = load_config(file)
    receivers = replace(loaded.alertmanager, urls=alertmanager or loaded.alertmanager.urls)
    return replace(loaded, kafka=kafka_settings(loaded.kafka, brokers), alertmanager=receivers)


async def _run(settings: "WorkerSettings", config: "Config", file: Path | None) -> bool:
    """Work until told to stop; whether that was to start anew."""
    from stethoscope.sinks.sender import Sender
    from stethoscope.streams.app import run_worker, stop_on_signals
    from stethoscope.streams.pipeline import make_stages

    sender = Sender(
        config.alertmanager,
        rng=random.Random(os.getpid()),  # noqa: S311 - spreads retries, keeps no secret
        links=config.links,
        replay_age_secs=settings.shell.history_secs,
        watchdog_cluster=config.cluster,
    )
    stop = asyncio.Event()
    stop_on_signals(stop)
    reloader = Reloader(file, stop)
    watching = asyncio.create_task(reloader.watch())
    try:
        await run_worker(settings, make_stages(config), sender, stop)
    finally:
        watching.cancel()
    return reloader.wanted


def _make(data_dir: Path) -> None:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"--data-dir {data_dir}: {error.strerror}; name a directory that may be written"
        raise UsageError(msg) from error


def _check_topics(kafka: Kafka) -> None:
    from stethoscope.streams import topics

    for difference in topics.check(kafka):
        if difference.what in _FATAL:
            raise ServiceError(str(difference))
        logging.getLogger(__name__).warning("topic differs: %s", difference)


def _serve_metrics(port: int) -> None:
    from prometheus_client import start_http_server

    try:
        start_http_server(port, addr="127.0.0.1")
    except OSError as error:
        raise ServiceError(f"--web-port {port} cannot be used: {error.strerror}") from error


def _set_up_logs(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter(f"{level} is no level; give debug, info, warning or error")
    handler = logging.StreamHandler()
    handler.setFormatter(FieldsFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=number, handlers=[handler])
    for noisy in ("aiokafka", "faust", "mode", "httpx"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))
    if number > logging.DEBUG:  # used before the start alone, where its errors are ours to tell
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
