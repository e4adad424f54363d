"""One Alertmanager's share of the sender: what it has been told, what is due, when to try again.

A lane has no queue to overflow: it compares the active set with what its server has taken, so a
server that is away costs nothing but its own delay, and hears the newest state when it is back.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec
from msgspec import Struct

from stethoscope.schemas.config import Alertmanager
from stethoscope.schemas.errors import (
    ConfigError,
    ServiceError,
    ServiceRefused,
    ServiceUnavailable,
)
from stethoscope.sinks.active import ActiveAlert, ActiveSet
from stethoscope.sinks.alertmanager import AlertmanagerClient
from stethoscope.sinks.alertmanager_types import Alert, to_datetime, to_unix_ns
from stethoscope.sinks.alerts import to_alert
from stethoscope.sinks.clock import NS, Clock

log = logging.getLogger(__name__)

LEASE_RESENDS = 4  # endsAt stands this many re-send intervals ahead
MAX_BATCH_ALERTS = 256
MAX_BATCH_BYTES = 1024 * 1024
FIRST_RETRY_SECS = 1.0
MIN_SKEW_SECS = 2.0  # the Date header counts whole seconds
QUARANTINE_RESENDS = 10  # a refused alert is tried again after this many intervals
SPLITTABLE = (400, 413, 422)  # some alert of the batch is to blame; other refusals blame nobody


class LaneStatus(Struct, frozen=True):
    """One lane in numbers. Totals count since the start; ``None``: not known yet."""

    url: str
    up: bool | None
    sent_total: int
    failures_total: int
    quarantined_total: int
    skew_secs: float | None
    skewed: bool
    last_success_unix_ns: int | None
    pending: int


class _Told(Struct, frozen=True):
    """What the server last took, or refused, of one alert, and when (monotonic)."""

    alert: ActiveAlert
    at_secs: float
    refused: bool = False


class Lane:
    """Sends the active set to one Alertmanager and keeps it told."""

    def __init__(
        self,
        client: AlertmanagerClient,
        active: ActiveSet,
        config: Alertmanager,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._active = active
        self._resend_secs = config.resend_secs
        self._clock = clock
        self._rng = rng
        self.wake = asyncio.Event()
        self._told: dict[str, _Told] = {}
        self._failures = 0  # in a row
        self._not_before_secs = 0.0
        self._correction_secs = 0.0
        self._skew_secs: float | None = None
        self._up: bool | None = None
        self._last_success_unix_ns: int | None = None
        self._sent_total = self._failures_total = self._quarantined_total = 0

    def status(self) -> LaneStatus:
        """The lane in numbers."""
        return LaneStatus(
            url=self._client.url,
            up=self._up,
            sent_total=self._sent_total,
            failures_total=self._failures_total,
            quarantined_total=self._quarantined_total,
            skew_secs=self._skew_secs,
            skewed=self._correction_secs != 0.0,
            last_success_unix_ns=self._last_success_unix_ns,
            pending=len(self._due(self._clock.monotonic_secs())),
        )

    async def run(self) -> None:
        """Round after round, until cancelled."""
        while True:
            self.wake.clear()
            secs = await self.round()
            await self._clock.wait(self.wake, secs)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def round(self) -> float:
        """Send what is due, unless the server asked for a pause; seconds until the next round."""
        now_secs = self._clock.monotonic_secs()
        if now_secs < self._not_before_secs:
            return self._not_before_secs - now_secs
        self._told = {k: told for k, told in self._told.items() if self._active.get(k) is not None}
        try:
            for batch in batches(self._due(now_secs), self._alert):
                await self._post(batch)
        except (ServiceError, ConfigError) as error:
            return self._back_off(error)
        now_secs = self._clock.monotonic_secs()
        waits = [self._due_secs(a) - now_secs for a in self._sendable()]
        return max(0.0, min([self._resend_secs, *waits]))

    def _sendable(self) -> Iterator[ActiveAlert]:
        return self._active.sendable(self._clock.unix_ns())

    def _due(self, now_secs: float) -> list[ActiveAlert]:
        """What is to be sent now; what the server never heard of comes first.

        Whatever would be due within the next quarter of an interval goes along: one request a
        round instead of one an alert.
        """
        times = [(self._due_secs(alert), alert) for alert in self._sendable()]
        if not any(due_secs <= now_secs for due_secs, _ in times):
            return []
        soon_secs = now_secs + self._resend_secs / 4
        due = [alert for due_secs, alert in times if due_secs <= soon_secs]
        return sorted(due, key=lambda alert: alert.key in self._told)

    def _due_secs(self, alert: ActiveAlert) -> float:
        """When (monotonic) this alert is to be sent again."""
        told = self._told.get(alert.key)
        if told is None or told.alert.firing != alert.firing:
            return 0.0
        if told.refused:
            wait_secs = QUARANTINE_RESENDS * self._resend_secs
        elif told.alert != alert:  # only annotations: soon, but not at every change
            wait_secs = self._resend_secs / 4
        else:
            wait_secs = self._resend_secs
        return told.at_secs + wait_secs

    def _alert(self, alert: ActiveAlert) -> Alert:
        """The alert as the server is to see it: nothing but a lease lies in its future."""
        server_unix_ns = self._clock.unix_ns() + round(self._correction_secs * NS)
        starts_unix_ns = min(alert.starts_unix_ns, server_unix_ns)
        if alert.ends_unix_ns is None:
            ends_unix_ns = server_unix_ns + round(LEASE_RESENDS * self._resend_secs * NS)
        else:
            ends_unix_ns = max(min(alert.ends_unix_ns, server_unix_ns), starts_unix_ns)
        starts_at, ends_at = to_datetime(starts_unix_ns), to_datetime(ends_unix_ns)
        return to_alert(alert.labels, alert.annotations, starts_at, ends_at)

    async def _post(self, batch: list[ActiveAlert]) -> None:
        """Send the batch, halving it down to the alert that is refused."""
        try:
            date = await self._client.post_alerts([self._alert(alert) for alert in batch])
        except ServiceRefused as error:
            if error.status not in SPLITTABLE:
                raise
            if len(batch) == 1:
                self._quarantine(batch[0], error)
                return
            middle = len(batch) // 2
            await self._post(batch[:middle])
            await self._post(batch[middle:])
            return
        self._succeeded(batch, date)

    def _succeeded(self, batch: list[ActiveAlert], date: datetime | None) -> None:
        self._failures = 0
        self._up = True
        self._last_success_unix_ns = self._clock.unix_ns()
        self._sent_total += len(batch)
        if date is not None and self._skew_changed(date):
            return  # these leases were written for another clock: say it again
        at_secs = self._clock.monotonic_secs()
        self._told.update((alert.key, _Told(alert, at_secs)) for alert in batch)

    def _skew_changed(self, date: datetime) -> bool:
        """Whether the server's clock is off from what leases assume by a quarter of a lease.

        A lease is judged by the server's clock: a sender that is hours late would send alerts that
        have "already ended". So leases are moved by the difference, and the difference is reported.
        """
        self._skew_secs = (to_unix_ns(date) - self._clock.unix_ns()) / NS
        limit_secs = max(self._resend_secs * LEASE_RESENDS / 4, MIN_SKEW_SECS)
        if abs(self._skew_secs - self._correction_secs) <= limit_secs:
            return False
        self._correction_secs = self._skew_secs if abs(self._skew_secs) > limit_secs else 0.0
        log.warning(
            "Alertmanager's clock differs from ours by more than a quarter of a lease",
            extra={"url": self._client.url, "skew_secs": self._skew_secs},
        )
        return True

    def _quarantine(self, alert: ActiveAlert, error: ServiceRefused) -> None:
        self._quarantined_total += 1
        self._told[alert.key] = _Told(alert, self._clock.monotonic_secs(), refused=True)
        log.error(
            "Alertmanager refuses one alert, the others go on",
            extra={
                "url": self._client.url,
                "incident_id": alert.incident_id,
                "status": error.status,
                "body": error.body,
            },
        )

    def _back_off(self, error: ServiceError | ConfigError) -> float:
        """Note the failure; seconds to wait: doubling with jitter, at least what was asked for."""
        cap_secs = self._resend_secs
        wait_secs = min(cap_secs, FIRST_RETRY_SECS * 2.0 ** min(self._failures, 16))
        wait_secs *= self._rng.uniform(0.5, 1.0)
        asked_secs = error.retry_after_secs if isinstance(error, ServiceUnavailable) else None
        if asked_secs is not None:  # bounded, so that leases outlive the pause
            wait_secs = max(wait_secs, min(asked_secs, 2 * cap_secs))
        self._failures += 1
        self._failures_total += 1
        self._up = False
        self._not_before_secs = self._clock.monotonic_secs() + wait_secs
        log.warning(
            "Cannot send alerts, trying again",
            extra={"url": self._client.url, "wait_secs": wait_secs, "error": str(error)},
        )
        return wait_secs


def batches(
    alerts: list[ActiveAlert], as_posted: Callable[[ActiveAlert], Alert]
) -> Iterator[list[ActiveAlert]]:
    """Cut into batches of at most ``MAX_BATCH_ALERTS`` and ``MAX_BATCH_BYTES`` of JSON.

    An alert that is too large by itself stands alone; the server will say what it thinks of it.
    """
    batch: list[ActiveAlert] = []
    batch_bytes = 2
    for alert in alerts:
        alert_bytes = len(msgspec.json.encode(as_posted(alert))) + 1
        full = len(batch) == MAX_BATCH_ALERTS or batch_bytes + alert_bytes > MAX_BATCH_BYTES
        if batch and full:
            yield batch
            batch, batch_bytes = [], 2
        batch.append(alert)
        batch_bytes += alert_bytes
    if batch:
        yield batch
