"""Wishes of the cluster to its agents: sample this node finely for a while.

On the topic ``steth.control.v1``: key the node, value JSON, compacted.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from stethoscope.schemas.errors import BadEvent
from stethoscope.schemas.incidents import Incident, is_page

WISH_PERIOD_SECS = 1.0
WISH_HOLD_SECS = 600.0
MAX_NODES = 128
_NS = 1_000_000_000


class ControlMessage(Struct, frozen=True):
    """Sample ``node`` every ``period_secs`` until ``until_unix_ns``."""

    node: str
    period_secs: Annotated[float, Meta(gt=0)]
    until_unix_ns: int


_decoder = msgspec.json.Decoder(ControlMessage)


def control_for(incident: Incident, now_unix_ns: int) -> list[ControlMessage]:
    """What to ask of the agents of an incident's nodes: 1 s for ten minutes from now.

    Nothing for an incident that is resolved, merged or no page: a wish runs out by itself. Call it
    at each change of an incident and every five minutes while it is open. At most 128 nodes, the
    root's first: a fault of a whole fabric is seen well enough through some of its nodes.
    """
    if incident.state != "open" or not is_page(incident):
        return []
    root = [incident.root.node] if incident.root.node else []
    nodes = list(dict.fromkeys([*root, *sorted(incident.nodes)]))[:MAX_NODES]
    until_unix_ns = now_unix_ns + round(WISH_HOLD_SECS * _NS)
    return [ControlMessage(node, WISH_PERIOD_SECS, until_unix_ns) for node in nodes]


def encode_control(message: ControlMessage) -> tuple[bytes, bytes]:
    """Key and value for Kafka."""
    return message.node.encode(), msgspec.json.encode(message)


def decode_control(body: bytes) -> ControlMessage:
    """The message.

    Raises:
        BadEvent: not JSON, or a field absent, of the wrong type or out of range.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = "wrong_type"
        raise BadEvent(reason, str(error)) from error
