"""Two topics come out as the one story they are."""

from stethoscope.streams.shell_merge import Merge
from stethoscope.streams.shell_output import Received

T, L = ("telemetry", 0), ("logs", 0)
FOR_EVER = 1 << 62


def _message(partition: tuple[str, int], offset: int, append_unix_ns: int) -> Received:
    return Received(*partition, offset, b"", append_unix_ns, "")


def _merge(*messages: Received) -> Merge:
    merge = Merge([T, L])
    merge.begin({T: 0, L: 0})
    for message in messages:
        merge.add(message)
    return merge


def _all(merge: Merge, ends: dict[tuple[str, int], int], until: int) -> list[tuple[str, int]]:
    found = []
    while (message := merge.next(ends, until)) is not None:
        found.append((message.topic, message.offset))
    return found


def test_the_broker_s_order_holds_across_topics() -> None:
    merge = _merge(
        *(_message(L, offset, 10 * offset) for offset in range(3)),
        *(_message(T, offset, 10 * offset + 5) for offset in range(3)),
    )
    order = [("logs", 0), ("telemetry", 0), ("logs", 1), ("telemetry", 1), ("logs", 2)]
    assert _all(merge, {}, 0) == order  # the last one waits: an earlier log line may come


def test_at_equal_times_the_order_is_fixed() -> None:
    one = _merge(_message(T, 0, 7), _message(L, 0, 7))
    other = _merge(_message(L, 0, 7), _message(T, 0, 7))
    assert _all(one, {T: 1, L: 1}, 7) == _all(other, {T: 1, L: 1}, 7)


def test_a_message_waits_while_the_other_topic_has_more() -> None:
    merge = _merge(_message(T, 0, 50))
    assert _all(merge, {L: 1}, FOR_EVER) == []
    merge.add(_message(L, 0, 40))
    assert _all(merge, {}, 0) == [("logs", 0)]
    assert _all(merge, {L: 1}, FOR_EVER) == [("telemetry", 0)]


def test_an_end_seen_too_early_proves_nothing() -> None:
    merge = _merge(_message(T, 0, 50))
    assert _all(merge, {L: 0}, 49) == []
    assert _all(merge, {L: 0}, 50) == [("telemetry", 0)]


def test_what_comes_twice_waits_once() -> None:
    merge = _merge(_message(T, 0, 1), _message(T, 1, 2), _message(T, 0, 1))
    assert merge.lengths() == {T: 2, L: 0}


def test_beginning_again_takes_again_what_was_only_waiting() -> None:
    merge = _merge(_message(T, 0, 1), _message(T, 1, 2))
    merge.begin({T: 1, L: 0})
    merge.add(_message(T, 0, 1))
    merge.add(_message(T, 1, 2))
    assert _all(merge, {L: 0}, FOR_EVER) == [("telemetry", 1)]
