"""The agent as a process: threads, signals, reload, a clean end.

The calling thread schedules; one thread sends; one listens for control messages; ``/metrics``,
where switched on, has its own.
"""

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from stethoscope.agents.assembly import build_loop, context_of
from stethoscope.agents.clock import Clock, SystemClock
from stethoscope.agents.config_file import Watched
from stethoscope.agents.connect import Producer
from stethoscope.agents.control import ControlListener
from stethoscope.agents.loop import Vitals
from stethoscope.agents.outbox import Outbox
from stethoscope.agents.send import Sender
from stethoscope.agents.spool import Spool
from stethoscope.agents.state import StateDir
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.agent_config import Spool as SpoolConfig
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.errors import UsageError

log = logging.getLogger(__name__)

WATCH_SECS = 5.0
_NS = 1_000_000_000


class Service:
    """One agent. ``run`` blocks until SIGTERM or SIGINT, or until ``stop`` from elsewhere."""

    def __init__(
        self,
        load: Callable[[], AgentConfig],
        config_path: Path | None,
        state_dir: Path,
        version: str,
        clock: Clock | None = None,
    ) -> None:
        """Load the configuration and take the state directory.

        ``load`` reads the configuration, with what the command line says on top.

        Raises:
            UsageError: the configuration or the state directory cannot be used.
        """
        self._load = load
        self._version = version
        self._clock: Clock = clock or SystemClock()
        self._config = load()
        self._watched = Watched(config_path)
        self._state = StateDir(state_dir)
        self._spool = open_spool(self._state.path / "spool", self._config.spool)
        self._outbox = Outbox(self._config.sending.queue_events)
        self._context = context_of(self._config)
        self._sender = Sender(
            connector(self._config.kafka),
            self._outbox,
            self._spool,
            self._state,
            self._clock,
            self._config.sending,
            seed=self._context.node,
            boot_id=self._context.boot_id,
        )
        self._loop, self._pool = build_loop(
            self._context,
            self._config,
            self._clock,
            self._outbox,
            self._state.load_cursors(),
            self._state.load_ahead(self._context.boot_id),
        )
        self._control = ControlListener(self._config.kafka, self._context.node)
        self._stopping = threading.Event()
        self._reload_asked = threading.Event()
        self.reloads_total = 0
        self.reload_failures_total = 0

    def run(self) -> None:
        """Run until told to stop, then send or spool what is left.

        Raises:
            UsageError: the port for ``/metrics`` cannot be listened on.
        """
        self._on_signals()
        close_metrics = self._serve_metrics()
        sending = threading.Thread(target=self._sender.run, name="send", daemon=True)
        sending.start()
        self._listen()
        try:
            self._schedule()
        finally:
            self._end(sending)
            close_metrics()

    def stop(self) -> None:
        """Make ``run`` return within seconds."""
        self._stopping.set()

    def reload(self) -> None:
        """Take up the configuration anew; one that cannot be used leaves the old in force."""
        try:
            new = self._load()
            loop, pool = build_loop(self._context, new, self._clock, self._outbox, {})
        except UsageError as error:
            self.reload_failures_total += 1
            log.warning("the old configuration stays in force: %s", error)
            return
        for task_name, position in self._loop.close().items():
            if task_name in loop.tasks:
                loop.tasks[task_name].position = position
        self._loop, self._pool = loop, pool
        old, self._config = self._config, new
        self._warn_of_what_needs_a_restart(old, new)
        if new.kafka != old.kafka or new.control != old.control:
            self._sender.reconnect(connector(new.kafka))
            self._control.stop()
            self._control = ControlListener(new.kafka, self._context.node)
            self._listen()
        self.reloads_total += 1
        log.warning("configuration taken up")

    def vitals(self) -> Vitals:
        """What the heartbeat says."""
        return Vitals(self._spool.pending, self._sender.dropped_total, self._version)

    def _schedule(self) -> None:
        next_look_ns = 0
        while not self._stopping.is_set():
            self._loop.wait(self._loop.step(self._control.take(), self.vitals))
            now_ns = self._clock.now().monotonic_ns
            if now_ns >= next_look_ns:
                next_look_ns = now_ns + round(WATCH_SECS * _NS)
                if self._watched.changed():
                    self._reload_asked.set()
            if self._reload_asked.is_set():
                self._reload_asked.clear()
                self.reload()

    def _end(self, sending: threading.Thread) -> None:
        self._loop.close()
        self._control.stop()
        self._sender.stop()
        sending.join(self._config.sending.flush_timeout_secs + 5.0)
        if sending.is_alive():
            log.error("sending hangs; events in memory are read or spooled again at the next start")
        else:
            self._sender.finish()
        self._state.close()

    def _listen(self) -> None:
        if self._config.control.enabled:
            threading.Thread(target=self._control.run, name="control", daemon=True).start()

    def _serve_metrics(self) -> Callable[[], None]:
        if self._config.metrics.port is None:
            return lambda: None
        from stethoscope.agents.metrics_http import MetricsServer, Snapshot

        def look() -> Snapshot:
            return Snapshot(
                tasks=list(self._loop.tasks.values()),
                send=self._sender.stats,
                control=self._control.stats,
                spooled=self._spool.pending,
                spool_bytes=self._spool.size_bytes,
                dropped_total=self._sender.dropped_total,
                torn_total=self._spool.torn_total,
                level=self._loop.activity.level(self._clock.now()),
                workers_killed_total=self._pool.killed_total,
                workers_abandoned=self._pool.abandoned,
                reloads_total=self.reloads_total,
                reload_failures_total=self.reload_failures_total,
            )

        return MetricsServer(self._config.metrics, look).close

    def _on_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(_signal: int, _frame: FrameType | None) -> None:
            self._stopping.set()

        def reload(_signal: int, _frame: FrameType | None) -> None:
            self._reload_asked.set()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)

    def _warn_of_what_needs_a_restart(self, old: AgentConfig, new: AgentConfig) -> None:
        for key in ("cluster", "node", "state_dir", "spool", "sending", "metrics"):
            if getattr(old, key) != getattr(new, key):
                log.warning("%s changed: restart the agent for it", key)


def open_spool(folder: Path, config: SpoolConfig) -> Spool:
    """The spool in that folder.

    Raises:
        UsageError: it cannot be made or read.
    """
    try:
        return Spool(folder, config.max_bytes, config.segment_bytes)
    except OSError as error:
        msg = f"{error.filename or folder}: {error.strerror}; give it to this user, or remove it"
        raise UsageError(msg) from error


def connector(kafka: Kafka) -> Callable[[], Producer]:
    """Makes a producer when called; raises ``ServiceError`` while the brokers are away."""

    def connect() -> Producer:
        # 16 MiB of kafka-python, imported on the sending thread while the readers already run.
        from stethoscope.agents.producer import EventProducer

        return EventProducer(kafka)

    return connect
