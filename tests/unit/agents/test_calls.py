"""One call and its outcome, and how both travel between processes."""

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stethoscope.agents import registry
from stethoscope.agents.calls import (
    MAX_FRAME_BYTES,
    Call,
    Result,
    build,
    frame,
    perform,
    unframe,
)
from stethoscope.agents.clock import Now
from stethoscope.agents.reader import Context, Counters
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Event, NodeEvent

NOW = Now(1, 2, 3)


class FakeReader:
    name = "host"
    period_secs = 1.0
    hazardous = False

    def __init__(self, problem: Exception | None = None) -> None:
        self.counters = Counters(invalid_samples_total=4)
        self.problem = problem
        self.said: list[str] = []

    def probe(self) -> None:
        self.said.append("probe")

    def read(self, now: Now) -> list[Event]:
        self.said.append("read")
        if self.problem is not None:
            raise self.problem
        return [NodeEvent(time_unix_ns=now.unix_ns, node="n")]

    def close(self) -> None:
        """Nothing is held."""


class Resumable(FakeReader):
    def checkpoint(self) -> str:
        return f"after {self.said}"

    def restore(self, state: str) -> None:
        self.said.append(f"restore {state}")


def test_a_fresh_reader_is_probed_then_restored_then_read() -> None:
    reader = Resumable()
    result = perform(reader, Call("host", "read", NOW, "7"), fresh=True)
    assert reader.said == ["probe", "restore 7", "read"]
    assert (result.state, len(result.events)) == ("ok", 1)
    assert result.checkpoint == "after ['probe', 'restore 7', 'read']"
    assert result.counters == Counters(invalid_samples_total=4)


def test_a_reader_that_repeats_is_told_what_may_be_out() -> None:
    class Repeating(Resumable):
        def expect(self, checkpoints: list[str]) -> None:
            self.said.append(f"expect {checkpoints}")

    reader = Repeating()
    perform(reader, Call("host", "read", NOW, "7", ["8", "9"]), fresh=True)
    assert reader.said == ["probe", "restore 7", "expect ['8', '9']", "read"]
    simple = Resumable()
    perform(simple, Call("host", "read", NOW, None, ["8"]), fresh=True)
    assert simple.said == ["probe", "read"]


@pytest.mark.parametrize(
    ("problem", "state", "detail"),
    [
        (ReaderUnsupported("no device"), "unsupported", "no device"),
        (ServiceError("away\nand more"), "failing", "away"),
        (OSError(5, "Input/output error"), "failing", "[Errno 5] Input/output error"),
        (KeyError("x"), "failing", "KeyError: 'x'"),
        (ValueError(), "failing", "ValueError: ValueError"),
    ],
)
def test_whatever_is_raised_becomes_a_state(problem: Exception, state: str, detail: str) -> None:
    result = perform(FakeReader(problem), Call("host", "read", NOW))
    assert (result.state, result.detail, result.events) == (state, detail, [])


def test_a_result_comes_back_from_its_bytes_as_it_was() -> None:
    result = perform(FakeReader(), Call("host", "read", NOW))
    body = unframe(bytearray(frame(result)))
    assert body is not None
    assert msgspec.msgpack.decode(body, type=Result) == result


@given(
    texts=st.lists(st.text(max_size=20), max_size=5), cuts=st.lists(st.integers(1, 30), max_size=60)
)
@settings(deadline=None)
def test_messages_come_out_whole_however_they_arrive(texts: list[str], cuts: list[int]) -> None:
    calls = [Call(text, "probe", NOW) for text in texts]
    data = b"".join(frame(call) for call in calls)
    buffer, found = bytearray(), []
    for size in [*cuts, len(data)]:
        buffer += data[:size]
        data = data[size:]
        while (body := unframe(buffer)) is not None:
            found.append(msgspec.msgpack.decode(body, type=Call))
    assert found == calls
    assert not buffer


def test_a_length_beyond_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        unframe(bytearray(struct.pack("<I", MAX_FRAME_BYTES + 1)))


def test_a_reader_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.READERS, "host", "stethoscope.agents.absent:X")
    why = build("host", Context(), AgentConfig())
    assert isinstance(why, str)
    assert "absent" in why
