"""Incident changes out: to the incidents topic, the sender of pages, and agents. Each page once.

After a restart the cluster stage derives again, from the log, changes that the worker before it
had already published; and that worker may have told Alertmanager more than the last snapshot
knows. Two rules keep a page from being lost or doubled (docs/decisions/013):

- A change derived again is held until it equals the published one.
- An end is told only when the incident has fired for `min_firing_secs` and a snapshot says so. So
  whoever restores that snapshot knows of every alert that Alertmanager may think has ended.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from stethoscope.schemas.control import control_for, encode_control
from stethoscope.schemas.findings import NS
from stethoscope.schemas.incidents import Incident, is_page
from stethoscope.schemas.kafka_options import CONTROL, INCIDENTS
from stethoscope.streams.shell_metrics import INCIDENTS as CHANGES
from stethoscope.streams.shell_output import Output

# Longer than Alertmanager's usual `group_wait` of 30 s: what ends before that passed never pages.
MIN_FIRING_SECS = 45.0
RENEW_WISH_SECS = 300.0  # half of what a wish holds
_MAX_ENDED = 10_000
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Incident).decode


class Offering(Protocol):
    """What publishing needs of ``sinks.sender.Sender``."""

    def offer(self, incidents: Iterable[Incident], watermark_unix_ns: int) -> None:
        """Take incidents as known at the watermark."""

    def clear(self) -> None:
        """Say nothing more of anything."""

    def snapshot(self) -> bytes:
        """What is being sent."""

    def restore(self, state: bytes) -> None:
        """Go on sending that."""


class Told(Struct):
    """What the sender was told. Bounds: open incidents; the last 10,000 ended ones.

    ``firing``: wall time, seconds, of the first offer that paged. ``ending``: those that ended, of
    which the sender does not know yet.
    """

    sender: bytes = b""
    firing: dict[str, float] = field(default_factory=dict)
    ending: dict[str, Incident] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)


class IncidentPublisher:
    """Publishes what the cluster stage changes.

    State besides ``Told``: one document an incident of the topic's retention, until caught up.
    ``history_secs``: events older than this are history, whose ended incidents page nobody.
    """

    def __init__(
        self,
        output: Output,
        sender: Offering,
        wall_secs: Callable[[], float],
        history_secs: float,
        min_firing_secs: float = MIN_FIRING_SECS,
    ) -> None:
        self._output = output
        self._sender = sender
        self._wall_secs = wall_secs
        self._history_secs = history_secs
        self._min_firing_secs = min_firing_secs
        self._reset()

    def end(self) -> None:
        """The cluster stage went to another worker: its sender speaks now."""
        self._reset()
        self._sender.clear()

    def _reset(self) -> None:
        self._told = Told()
        self._kept: set[str] = set()  # fires, and a snapshot says so
        self._keeping: set[str] = set()
        self._published: dict[str, bytes] = {}
        self._held: dict[str, Incident] = {}
        self._wished: dict[str, tuple[Incident, float]] = {}

    def snapshot(self) -> bytes:
        """What was told, the sender's own memory included."""
        self._keeping = set(self._told.firing)
        return msgspec.msgpack.encode(replace(self._told, sender=self._sender.snapshot()))

    def saved(self) -> None:
        """The last snapshot is in Kafka."""
        self._kept = set(self._keeping)

    def restore(self, state: bytes) -> None:
        """Become what ``snapshot`` described."""
        self._told = msgspec.msgpack.decode(state, type=Told)
        self._kept = set(self._told.firing)
        self._sender.restore(self._told.sender)

    def begin(self, published: Iterable[tuple[bytes, bytes]], watermark_unix_ns: int) -> None:
        """Start from the incidents topic's messages (key, value), before anything is derived."""
        self._published = {key.decode(): value for key, value in published}
        for incident_id, body in self._published.items():
            incident = _decode(body)
            if not _ended(incident) or incident_id in self._told.firing:
                self._tell(incident, watermark_unix_ns)
            if not _ended(incident):
                self._wished[incident_id] = incident, 0.0  # whoever asked before may be gone

    async def publish(self, incident: Incident, watermark_unix_ns: int) -> None:
        """One change of one incident."""
        body = _encode(incident)
        known = self._published.get(incident.incident_id)
        if known is not None and known != body:
            self._held[incident.incident_id] = incident
            return
        self._published.pop(incident.incident_id, None)
        self._held.pop(incident.incident_id, None)
        await self._write(incident, body, watermark_unix_ns)

    async def caught_up(self, watermark_unix_ns: int) -> None:
        """The log is read as far as the worker before had read it: from here all is new.

        What was held until now did not come to its published state (a changed configuration) and
        is published as it is.
        """
        held, self._held, self._published = self._held, {}, {}
        for incident in held.values():
            await self._write(incident, _encode(incident), watermark_unix_ns)

    def beat(self, watermark_unix_ns: int) -> None:
        """Tell the ends that are due, and how far time has come."""
        now = self._wall_secs()
        due = [
            incident
            for key, incident in self._told.ending.items()
            if key in self._kept and now - self._told.firing[key] >= self._min_firing_secs
        ]
        for incident in due:
            self._forget(incident.incident_id)
        self._sender.offer(due, watermark_unix_ns)

    async def _write(self, incident: Incident, body: bytes, watermark_unix_ns: int) -> None:
        CHANGES.inc()
        await self._output.send(INCIDENTS, 0, incident.incident_id.encode(), body)
        self._tell(incident, watermark_unix_ns)
        await self._wish(incident)

    async def renew_wishes(self) -> None:
        """Ask the agents of open incidents again, before what was asked runs out."""
        now = self._wall_secs()
        due = [i for i, asked in self._wished.values() if now - asked >= RENEW_WISH_SECS]
        for incident in due:
            await self._wish(incident)

    async def _wish(self, incident: Incident) -> None:
        """Let the incident's nodes sample finely while it is open."""
        now = self._wall_secs()
        wishes = control_for(incident, int(now * NS))
        if not wishes:
            self._wished.pop(incident.incident_id, None)
            return
        self._wished[incident.incident_id] = incident, now
        for wish in wishes:
            key, value = encode_control(wish)
            await self._output.send(CONTROL, 0, key, value)

    def _tell(self, incident: Incident, watermark_unix_ns: int) -> None:
        key, told = incident.incident_id, self._told
        if key in told.ended:
            return
        if not _ended(incident):
            if _pages(incident):
                told.firing.setdefault(key, self._wall_secs())
            told.ending.pop(key, None)
            self._sender.offer([incident], watermark_unix_ns)
        elif key in told.firing:
            told.ending[key] = incident
        elif _pages(incident) and not self._is_history(watermark_unix_ns):
            # It came and went unseen, while no worker ran: it fires first, or nobody hears of it.
            told.firing[key] = self._wall_secs()
            told.ending[key] = incident
            self._sender.offer([replace(incident, state="open")], watermark_unix_ns)

    def _is_history(self, watermark_unix_ns: int) -> bool:
        return self._wall_secs() - watermark_unix_ns / 1e9 > self._history_secs

    def _forget(self, key: str) -> None:
        told = self._told
        del told.firing[key], told.ending[key]
        told.ended[key] = None
        while len(told.ended) > _MAX_ENDED:
            del told.ended[next(iter(told.ended))]


def _pages(incident: Incident) -> bool:
    return incident.paged_unix_ns is not None and is_page(incident)


def _ended(incident: Incident) -> bool:
    return incident.state == "resolved" or incident.merged_into is not None
