"""Which alerts are to be sent: the sender's memory, without I/O and without a clock.

An alert here is one identity (label set). It fires until its incident ends, is then sent as
resolved for ``RESOLVED_SECS``, and is remembered as ended for ``remember_secs`` so that history
read twice does not page again. Three bounds: ``MAX_OPEN`` alerts that fire, ``MAX_ENDED`` that
ended, ``MAX_HELD`` incidents that wait for the stream to catch up; what is over is dropped,
oldest first, and counted.
"""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from stethoscope.schemas.config import Links
from stethoscope.schemas.errors import InputError
from stethoscope.schemas.findings import NS, digest
from stethoscope.schemas.incidents import SEVERITY_RANK, Incident
from stethoscope.sinks.alerts import annotations_of, labels_of

RESOLVED_SECS = 900
MAX_OPEN = 10_000
MAX_ENDED = 10_000
MAX_HELD = 10_000
WATCHDOG = "watchdog"


class ActiveAlert(Struct, frozen=True):
    """One identity. ``resolved_unix_ns``: when we learned of its end; ``None``: it fires."""

    key: str
    incident_id: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_unix_ns: int
    ends_unix_ns: int | None = None
    resolved_unix_ns: int | None = None

    @property
    def firing(self) -> bool:
        """Whether it has not ended."""
        return self.resolved_unix_ns is None


class _Snapshot(Struct, frozen=True):
    version: int = 1
    alerts: list[ActiveAlert] = field(default_factory=list)


class ActiveSet:
    """Every alert that some Alertmanager should hear of.

    ``replay_age_secs``: while the stream is further behind the wall clock than this, history is
    being read again: nothing new fires, what is open waits until the stream has caught up.
    """

    def __init__(self, links: Links, replay_age_secs: float) -> None:
        self._links = links
        self._replay_age_ns = round(replay_age_secs * NS)
        self._remember_ns = max(self._replay_age_ns, RESOLVED_SECS * NS)
        self._alerts: dict[str, ActiveAlert] = {}
        self._current: dict[str, str] = {}  # incident id -> key of the identity that speaks for it
        self._held: dict[str, Incident] = {}
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._alerts)

    def __iter__(self) -> Iterator[ActiveAlert]:
        """All that are remembered, ended ones too."""
        return iter(self._alerts.values())

    @property
    def held(self) -> int:
        """Incidents that wait for the stream to catch up."""
        return len(self._held)

    def get(self, key: str) -> ActiveAlert | None:
        """One alert, unless forgotten."""
        return self._alerts.get(key)

    def sendable(self, now_unix_ns: int) -> Iterator[ActiveAlert]:
        """What fires, and what ended within ``RESOLVED_SECS``."""
        for alert in self._alerts.values():
            ended = alert.resolved_unix_ns
            if ended is None or now_unix_ns - ended <= RESOLVED_SECS * NS:
                yield alert

    def offer(
        self, incidents: Iterable[Incident], watermark_unix_ns: int, now_unix_ns: int
    ) -> None:
        """Take incidents as the cluster stage knows them at the watermark. Idempotent."""
        catching_up = now_unix_ns - watermark_unix_ns > self._replay_age_ns
        for incident in incidents:
            self._held.pop(incident.incident_id, None)
            self._take(incident, now_unix_ns, catching_up)
        if not catching_up and self._held:
            waiting, self._held = list(self._held.values()), {}
            for incident in waiting:
                self._take(incident, now_unix_ns, False)
        self._forget(now_unix_ns)

    def set_watchdog(self, cluster: str | None, now_unix_ns: int) -> None:
        """The alert that always fires, for that cluster; ``None``: there is none, an old one ends.

        When it stops arriving, the monitor is dead.
        """
        labels = {
            "alertname": "Watchdog",
            "cluster": cluster or "",
            "severity": "none",
            "audience": "infra",
            "cause": WATCHDOG,
        }
        notes = {
            "summary": "Stethoscope is alive",
            "description": "Always firing. When it resolves, nobody watches the cluster.",
        }
        known = self._alerts.get(self._current.get(WATCHDOG, ""))
        if known is not None and known.firing and known.labels["cluster"] != cluster:
            self._end(known, now_unix_ns, now_unix_ns)
        if cluster is not None:
            self._fire(WATCHDOG, labels, notes, now_unix_ns)

    def clear(self) -> None:
        """Know nothing, as at the start."""
        self._alerts.clear()
        self._current.clear()
        self._held.clear()

    def snapshot(self) -> bytes:
        """Everything but what is held, as msgpack: the cluster stage offers open incidents anew."""
        return msgspec.msgpack.encode(_Snapshot(alerts=list(self._alerts.values())))

    def restore(self, state: bytes) -> None:
        """Become what ``snapshot`` described.

        Raises:
            InputError: these bytes are no snapshot; this set stays as it was.
        """
        try:
            alerts = msgspec.msgpack.decode(state, type=_Snapshot).alerts
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            msg = f"the sender's snapshot cannot be read ({error}): start without it"
            raise InputError(msg) from error
        self._alerts = {alert.key: alert for alert in alerts}
        self._current = {alert.incident_id: alert.key for alert in alerts if alert.firing}
        for alert in alerts:
            self._current.setdefault(alert.incident_id, alert.key)

    def _take(self, incident: Incident, now_unix_ns: int, catching_up: bool) -> None:
        known = self._alerts.get(self._current.get(incident.incident_id, ""))
        pages = incident.paged_unix_ns is not None and SEVERITY_RANK[incident.severity] >= 1
        if known is None and not pages:
            return
        ended = incident.state == "resolved" or incident.merged_into is not None
        if known is None and catching_up:
            if not ended:
                self._hold(incident)
            return
        if known is not None and not known.firing:
            return  # an incident that ended stays ended; a new episode has an id of its own
        labels = self._identity(incident, known)
        notes = annotations_of(incident, self._links)
        starts_unix_ns = min(incident.started_unix_ns, now_unix_ns)
        if known is not None:
            starts_unix_ns = known.starts_unix_ns
            if labels != known.labels:
                self._end(known, now_unix_ns, now_unix_ns)
        alert = self._fire(incident.incident_id, labels, notes, starts_unix_ns)
        if ended:
            ends_unix_ns = min(incident.ended_unix_ns or now_unix_ns, now_unix_ns)
            self._end(alert, ends_unix_ns, now_unix_ns)

    def _identity(self, incident: Incident, known: ActiveAlert | None) -> dict[str, str]:
        """Frozen labels, but for the one change that pages again: a rise to critical."""
        labels = labels_of(incident)
        if known is None:
            return labels
        rises = labels.get("severity") == "critical" != known.labels.get("severity")
        return labels if rises else known.labels

    def _fire(
        self, incident_id: str, labels: dict[str, str], notes: dict[str, str], starts_unix_ns: int
    ) -> ActiveAlert:
        key = digest(*(f"{name}={labels[name]}" for name in sorted(labels)))
        alert = self._alerts.get(key)
        if alert is not None and alert.firing:
            alert = replace(alert, annotations=notes)
        else:
            alert = ActiveAlert(key, incident_id, labels, notes, starts_unix_ns)
        self._alerts[key] = alert
        self._current[incident_id] = key
        return alert

    def _end(self, alert: ActiveAlert, ends_unix_ns: int, now_unix_ns: int) -> None:
        self._alerts[alert.key] = replace(
            alert, ends_unix_ns=ends_unix_ns, resolved_unix_ns=now_unix_ns
        )

    def _hold(self, incident: Incident) -> None:
        self._held[incident.incident_id] = incident
        if len(self._held) > MAX_HELD:
            del self._held[next(iter(self._held))]
            self.dropped_total += 1

    def _forget(self, now_unix_ns: int) -> None:
        ended = [alert for alert in self._alerts.values() if not alert.firing]
        ended.sort(key=lambda alert: alert.resolved_unix_ns or 0)
        old = [a for a in ended if now_unix_ns - (a.resolved_unix_ns or 0) > self._remember_ns]
        over = ended[len(old) : max(len(old), len(ended) - MAX_ENDED)]
        firing = [alert for alert in self._alerts.values() if alert.firing]
        over += firing[: max(0, len(firing) - MAX_OPEN)]
        self.dropped_total += len(over)
        for alert in old + over:
            del self._alerts[alert.key]
            if self._current.get(alert.incident_id) == alert.key:
                del self._current[alert.incident_id]
