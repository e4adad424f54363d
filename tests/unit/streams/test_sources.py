"""Envelopes of several sources as whole seconds that all of them have passed."""

import random
from itertools import pairwise

from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.views import Envelope, HostView, LogView
from stethoscope.streams.sources import Sources, SourcesState
from stethoscope.streams.state_codec import decode_state, encode_state


def view(job: str, node: str = "n1", secs: int = 0) -> HostView:
    return HostView(job=job, node=node, second_unix_ns=secs * NS, metrics={"load1": float(secs)})


def found(name: str, secs: int) -> Finding:
    return Finding(name, "d", "straggler", Subject(), secs * NS, secs * NS)


def envelope(source: str, secs: int, *said: Finding | HostView, idle: bool = False) -> Envelope:
    return Envelope(
        source=source,
        watermark_unix_ns=secs * NS,
        views=[s for s in said if isinstance(s, HostView)],
        findings=[s for s in said if isinstance(s, Finding)],
        idle=idle,
    )


def seconds(sources: Sources, frontier: int | None = None) -> list[int]:
    limit = None if frontier is None else frontier * NS
    return [second // NS for second, _ in sources.views_upto(limit)]


def test_nothing_before_every_source_has_spoken() -> None:
    sources = Sources(["a", "b"], "views")
    sources.push(envelope("a", 10))
    assert seconds(sources) == []
    sources.push(envelope("b", 10))
    assert seconds(sources) == [10]


def test_every_second_is_given_once_and_in_order() -> None:
    sources = Sources(["a", "b"], "views")
    given: list[int] = []
    for secs in range(10, 30):
        sources.push(envelope("a", secs))
        if secs % 4 == 0:
            for late in range(secs - 3, secs + 1):
                sources.push(envelope("b", late))
        given += seconds(sources)
    assert given == list(range(given[0], 29))
    assert len(given) > 10
    assert all(b == a + 1 for a, b in pairwise(given))


def test_the_first_second_is_the_first_that_says_anything() -> None:
    sources = Sources(["a", "b"], "views")
    for secs in range(5, 13):
        sources.push(envelope("a", secs, view("j", secs=secs)))
    sources.push(envelope("b", 12))
    assert seconds(sources) == list(range(5, 13))


def test_what_a_restarted_source_says_twice_is_dropped() -> None:
    sources = Sources(["a"], "findings")
    for secs in (10, 11, 12, 11, 12, 13):
        sources.push(envelope("a", secs, found(f"f{secs}", secs)))
    given = [f.finding_id for _, findings, _ in sources.findings_upto(None) for f in findings]
    assert given == ["f10", "f11", "f12", "f13"]


def test_an_idle_source_is_not_waited_for_until_it_speaks() -> None:
    sources = Sources(["a", "b"], "views")
    sources.push(envelope("b", 0, idle=True))
    sources.push(envelope("a", 10))
    assert seconds(sources) == [10]
    sources.push(envelope("b", 11))
    sources.push(envelope("a", 12))
    assert seconds(sources) == [11]


def test_the_watermark_of_an_idle_envelope_does_not_count() -> None:
    sources = Sources(["a", "b"], "views")
    sources.push(envelope("b", 99, idle=True))
    for secs in (10, 11):
        sources.push(envelope("a", secs))
        sources.push(envelope("b", secs, view("j", secs=secs)))
    assert seconds(sources) == [10, 11]


def test_when_all_are_idle_time_stands() -> None:
    sources = Sources(["a"], "views")
    sources.push(envelope("a", 10))
    sources.push(envelope("a", 10, idle=True))
    assert seconds(sources) == []


def test_late_views_come_with_the_next_second() -> None:
    sources = Sources(["a", "b"], "views")
    sources.push(envelope("b", 0, idle=True))
    for secs in range(10, 15):
        sources.push(envelope("a", secs, view("j", secs=secs)))
    assert seconds(sources) == list(range(10, 15))
    for secs in range(8, 17):
        sources.push(envelope("b", secs, view("j", secs=secs)))
    sources.push(envelope("a", 16))
    given = {s // NS: len(views) for s, views in sources.views_upto(None)}
    assert given == {15: 8, 16: 1}


def test_the_frontier_holds_all_back() -> None:
    sources = Sources(["a"], "views")
    for secs in range(10, 20):
        sources.push(envelope("a", secs, view("j", secs=secs)))
    assert seconds(sources, 12) == [10, 11, 12]
    assert seconds(sources, 12) == []
    assert seconds(sources, None) == list(range(13, 20))


def test_the_order_within_a_second_does_not_depend_on_arrival() -> None:
    said: list[tuple[str, HostView]] = [
        (source, view(job, node, 10))
        for source, node in (("a", "n1"), ("b", "n2"), ("c", "n3"))
        for job in ("j2", "j1")
    ]
    orders = set()
    for seed in range(10):
        rng = random.Random(seed)  # noqa: S311 - test data
        sources = Sources(["a", "b", "c"], "views")
        names = ["a", "b", "c"]
        rng.shuffle(names)
        for name in names:
            sources.push(envelope(name, 10, *(v for s, v in said if s == name)))
        ((_, views),) = sources.views_upto(None)
        orders.add(tuple((v.job, v.node) for v in views))
    assert orders == {tuple(sorted((v.job, v.node) for _, v in said))}


def test_findings_are_ordered_by_time_clear_and_id() -> None:
    sources = Sources(["a"], "findings")
    sources.push(envelope("a", 12, found("b", 12), found("a", 12), found("z", 11)))
    ((_, findings, _),) = sources.findings_upto(None)
    assert [f.finding_id for f in findings] == ["z", "a", "b"]


def test_what_is_not_kept_takes_no_room() -> None:
    sources = Sources(["a", "b"], "findings")
    sources.push(envelope("a", 10, view("j")))
    assert sources.state.views == {}
    log = LogView(job="j", node="n", second_unix_ns=NS)
    kept = Sources(["a", "b"], "views")
    kept.push(Envelope(source="a", watermark_unix_ns=NS, views=[log], findings=[found("f", 1)]))
    assert kept.state.findings == {}
    assert len(kept.state.views) == 1


def test_who_was_heard_comes_with_the_second() -> None:
    sources = Sources(["a", "b"], "findings")
    sources.push(Envelope(source="a", watermark_unix_ns=10 * NS, heard={"c/n1": 9}))
    sources.push(Envelope(source="b", watermark_unix_ns=10 * NS, heard={"c/n2": 8, "c/n1": 3}))
    ((_, _, heard),) = sources.findings_upto(None)
    assert heard == {"c/n1": 9, "c/n2": 8}


def test_a_restart_changes_nothing() -> None:
    sources = Sources(["a", "b"], "views")
    for secs in range(10, 15):
        sources.push(envelope("a", secs, view("j", secs=secs)))
    sources.push(envelope("b", 10))
    assert seconds(sources) == [10]
    fresh = Sources(["a", "b"], "views")
    fresh.state = decode_state(encode_state(sources.state), SourcesState)
    for one in (sources, fresh):
        for secs in range(9, 14):
            one.push(envelope("b", secs))
    assert fresh.views_upto(None) == sources.views_upto(None)
