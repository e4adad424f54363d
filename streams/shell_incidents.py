"""Incident changes out: to the incidents topic, and to the sender of pages. Each state once.

After a restart the cluster stage derives again, from the log, changes that the worker before it
had already published. Offering these older states anew could page twice (an incident that was
opened, resolved, and now seems to open again). So the last published state of each incident is
read back first, and re-derived changes are held until they have reached it.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.kafka_options import INCIDENTS
from stethoscope.streams.shell_metrics import INCIDENTS as CHANGES
from stethoscope.streams.shell_output import Output

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Incident).decode


class Offering(Protocol):
    """What publishing needs of ``sinks.sender.Sender``."""

    def offer(self, incidents: Iterable[Incident], watermark_unix_ns: int) -> None:
        """Take incidents as known at the watermark."""

    def snapshot(self) -> bytes:
        """What is being sent."""

    def restore(self, state: bytes) -> None:
        """Go on sending that."""

    def clear(self) -> None:
        """Send nothing more: another worker does."""


class IncidentPublisher:
    """Publishes what the cluster stage changes.

    State: one JSON document an incident of the topic's retention, until caught up.
    """

    def __init__(self, output: Output, sender: Offering) -> None:
        self._output = output
        self._sender = sender
        self._published: dict[str, bytes] = {}
        self._held: dict[str, Incident] = {}

    def begin(self, published: Iterable[tuple[bytes, bytes]]) -> None:
        """Start from the incidents topic's messages (key, value), in order."""
        self._held = {}
        self._published = {key.decode(): value for key, value in published if value}

    def snapshot(self) -> bytes:
        """The sender's state."""
        return self._sender.snapshot()

    def restore(self, state: bytes) -> None:
        """The sender's state."""
        self._sender.restore(state)

    def end(self) -> None:
        """The cluster stage went to another worker, whose sender speaks from now on."""
        self._published, self._held = {}, {}
        self._sender.clear()

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

        An incident whose published state was not met again (a changed configuration) is published
        as it is now; those that did not change since the snapshot are offered if they are open.
        """
        held, self._held = self._held, {}
        published, self._published = self._published, {}
        for incident in held.values():
            await self._write(incident, _encode(incident), watermark_unix_ns)
        others = [_decode(body) for key, body in published.items() if key not in held]
        still_open = [incident for incident in others if incident.state == "open"]
        self._sender.offer(still_open, watermark_unix_ns)

    async def _write(self, incident: Incident, body: bytes, watermark_unix_ns: int) -> None:
        CHANGES.inc()
        await self._output.send(INCIDENTS, 0, incident.incident_id.encode(), body)
        self._sender.offer([incident], watermark_unix_ns)
