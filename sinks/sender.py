"""The sender: incidents in, alerts kept firing at every Alertmanager.

    sender = Sender(config.alertmanager, rng=random.Random(0), watchdog_cluster="default")
    sender.offer(cluster_stage.advance(), watermark_unix_ns)   # again and again, in the worker
    await sender.run()                                         # beside it, as a task

A command without a loop of its own: ``asyncio.run`` of ``offer``, ``flush``, ``close``.
"""

import asyncio
import random
from collections.abc import Iterable

import httpx

from stethoscope.schemas.config import Alertmanager, Links
from stethoscope.schemas.incidents import Incident
from stethoscope.sinks.active import ActiveSet
from stethoscope.sinks.alertmanager import AlertmanagerClient
from stethoscope.sinks.clock import Clock, SystemClock
from stethoscope.sinks.lane import Lane, LaneStatus

REPLAY_AGE_SECS = 3600.0


class Sender:
    """Sends to all Alertmanagers, each in a lane of its own, so that one away delays no other.

    Only paged incidents of severity warning or above go out; those that end or are merged into
    another are resolved, with the same labels, for 15 minutes. Offering the same incident again,
    after a restart too, changes nothing: same labels, same ``startsAt``.

    ``watchdog_cluster``: from the first ``offer`` or ``restore`` on, send an always-firing watchdog
    alert for that cluster. ``transport`` stands in for the network in tests.
    """

    def __init__(
        self,
        config: Alertmanager,
        *,
        rng: random.Random,
        clock: Clock | None = None,
        links: Links | None = None,
        replay_age_secs: float = REPLAY_AGE_SECS,
        watchdog_cluster: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect to nothing yet.

        Raises:
            ConfigError: a URL, TLS file or authentication that cannot be used.
        """
        self._clock = clock or SystemClock()
        self._watchdog_cluster = watchdog_cluster
        self._active = ActiveSet(links or Links(), replay_age_secs)
        self._lanes = [
            Lane(AlertmanagerClient(url, config, transport), self._active, config, self._clock, rng)
            for url in dict.fromkeys(config.urls)
        ]
        self._serving = False

    def offer(self, incidents: Iterable[Incident], watermark_unix_ns: int) -> None:
        """Take incidents as known at the watermark (event time of the cluster stage).

        Call it with no incidents too, when the watermark moves: incidents that were open in
        history older than ``replay_age_secs`` wait for a watermark that is young enough.
        """
        if not self._serving:
            self._set_watchdog()
        self._active.offer(incidents, watermark_unix_ns, self._clock.unix_ns())
        self._wake_lanes()

    def clear(self) -> None:
        """Say nothing more of anything: another worker has the cluster stage and speaks now.

        Nothing is resolved. To go on re-sending what the other may resolve would page again.
        """
        self._serving = False
        self._active.clear()

    async def run(self) -> None:
        """Keep every Alertmanager told, until cancelled. Returns at once where there is none."""
        async with asyncio.TaskGroup() as lanes:
            for lane in self._lanes:
                lanes.create_task(lane.run())

    async def flush(self) -> bool:
        """One round of each lane; whether everything that was due has been taken."""
        await asyncio.gather(*(lane.round() for lane in self._lanes))
        return all(status.pending == 0 for status in self.status())

    async def close(self) -> None:
        """Close all connections. Alerts stay as they are: their leases run out by themselves."""
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    def status(self) -> list[LaneStatus]:
        """Each Alertmanager's numbers, in the order of the configuration."""
        return [lane.status() for lane in self._lanes]

    def active(self) -> int:
        """Alerts that fire now, the watchdog included."""
        return sum(alert.firing for alert in self._active)

    def held(self) -> int:
        """Incidents that wait until the stream has caught up."""
        return self._active.held

    def dropped_total(self) -> int:
        """Alerts and incidents that a bound of the active set pushed out."""
        return self._active.dropped_total

    def snapshot(self) -> bytes:
        """The active set, msgpack. Small: a few kB an incident."""
        return self._active.snapshot()

    def restore(self, state: bytes) -> None:
        """Go on from a snapshot; everything in it is sent again at once, ``startsAt`` unchanged.

        Raises:
            InputError: these bytes are no snapshot.
        """
        self._active.restore(state)
        self._set_watchdog()
        self._wake_lanes()

    def _set_watchdog(self) -> None:
        self._serving = True
        self._active.set_watchdog(self._watchdog_cluster, self._clock.unix_ns())

    def _wake_lanes(self) -> None:
        for lane in self._lanes:
            lane.wake.set()
