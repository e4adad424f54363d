"""Control messages on the agent's side."""

import pytest

from stethoscope.agents import control
from stethoscope.agents.control import MAX_WAITING, ControlListener
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.control import ControlMessage, encode_control
from stethoscope.schemas.errors import ServiceError

MINE = ControlMessage("node01", 1.0, 5)


@pytest.fixture
def listener() -> ControlListener:
    return ControlListener(Kafka(), "node01")


def test_only_messages_for_this_node_are_kept(listener: ControlListener) -> None:
    for message in (MINE, ControlMessage("node02", 1.0, 5)):
        listener.hear(encode_control(message)[1])
    assert listener.take() == [MINE]
    assert listener.take() == []


def test_bad_messages_are_counted(listener: ControlListener) -> None:
    for body in (b"", b"{", b'{"node": 1}'):
        listener.hear(body)
    assert listener.take() == []
    assert listener.stats.bad_total == 3


def test_a_flood_keeps_the_newest(listener: ControlListener) -> None:
    for i in range(MAX_WAITING + 5):
        listener.hear(encode_control(ControlMessage("node01", 1.0, i))[1])
    taken = listener.take()
    assert (len(taken), taken[-1].until_unix_ns) == (MAX_WAITING, MAX_WAITING + 4)


class FakeSource:
    """Gives one message, then asks the listener to stop; fails the first time it is made."""

    made = 0
    closed = 0

    def __init__(self, _kafka: Kafka) -> None:
        type(self).made += 1
        if type(self).made == 1:
            msg = "away"
            raise ServiceError(msg)

    listener: ControlListener

    def poll(self, timeout_secs: float) -> list[bytes]:
        self.listener.stop()
        return [encode_control(MINE)[1]]

    def close(self) -> None:
        type(self).closed += 1


def test_it_tries_again_when_kafka_is_away(
    listener: ControlListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "RETRY_SECS", 0.0)
    monkeypatch.setattr(control, "KafkaSource", FakeSource)
    FakeSource.listener = listener
    listener.run()
    assert listener.take() == [MINE]
    assert (FakeSource.made, FakeSource.closed, listener.stats.failures_total) == (2, 1, 1)
