"""Lines of one read told apart by the reads they came in before."""

from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.spans import Span, Spans
from stethoscope.agents.tail import RawLine, Tailed


def tailed(*offsets: int) -> Tailed:
    return Tailed("a:1.0", [RawLine(offset, b"x") for offset in offsets], modified_unix_ns=7)


def offsets(spans: Spans, *given: int) -> list[tuple[int, list[int]]]:
    """Pairs of (the moment that the lines go by, their offsets)."""
    spans.begin()
    found = spans.split(tailed(*given), now_unix_ns=100, last_read_unix_ns=None)
    return [(span.now_unix_ns, [line.offset for line in lines]) for span, lines in found]


def test_a_line_goes_by_the_read_it_came_in_first() -> None:
    spans = Spans()
    spans.expect(
        [Span("a:1.0", 10, 20, 1, 7), Span("a:1.0", 30, 30, 2, 7), Span("b:1.0", 0, 99, 3, 7)]
    )
    found = offsets(spans, 0, 10, 15, 20, 25, 30, 40)
    assert found == [(100, [0]), (1, [10, 15, 20]), (100, [25]), (2, [30]), (100, [40])]
    assert [(s.first, s.last) for s in spans.used] == [
        (0, 0),
        (10, 20),
        (25, 25),
        (30, 30),
        (40, 40),
    ]
    assert offsets(spans, 50) == [(100, [50])]


def test_an_expected_read_may_come_in_pieces() -> None:
    spans = Spans()
    spans.expect([Span("a:1.0", 10, 30, 1, 7)])
    assert offsets(spans, 10, 20) == [(1, [10, 20])]
    assert offsets(spans, 30, 40) == [(1, [30]), (100, [40])]


def test_a_read_that_finds_nothing_leaves_the_last_spans_standing() -> None:
    spans = Spans()
    assert offsets(spans, 5, 6) == [(100, [5, 6])]
    assert offsets(spans) == []
    assert [(s.first, s.last, s.modified_unix_ns) for s in spans.used] == [(5, 6, 7)]


PAIRS = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted)


@given(st.lists(PAIRS, max_size=5), st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_whatever_is_expected_no_line_is_lost_or_doubled(
    expected: list[list[int]], lines: list[int]
) -> None:
    spans = Spans()
    spans.expect([Span("a:1.0", first, last, 1, 7) for first, last in expected])
    assert [offset for _, group in offsets(spans, *lines) for offset in group] == lines
