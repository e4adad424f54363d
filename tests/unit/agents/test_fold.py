import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.fold import MAX_STREAMS, Fold, fold_key
from stethoscope.schemas.events import LogEvent

NS = 10**9
XID = "NVRM: Xid (PCI:0000:9b:00): 95, Uncontained: FBHUB. RST: Yes"


def line(seq: int, text: str = XID, secs: float = 0.0) -> LogEvent:
    return LogEvent(
        time_unix_ns=round(secs * NS), node="n", seq=seq, source="kernel", line=text, boot_id="b"
    )


def test_a_hundred_thousand_equal_lines_in_ten_seconds_are_twenty_events_at_most() -> None:
    fold = Fold(quiet_secs=10)
    sent = [
        event
        for seq in range(100_000)
        for event in fold.add(line(seq, secs=seq / 10_000), seq * 100_000)
    ]
    sent += fold.flush(21 * NS)
    assert len(sent) <= 20
    assert sum(event.count for event in sent) == 100_000
    assert [event.seq for event in sent[:4]] == [0, 1, 3, 7]
    assert fold.flush(10**15) == []


def test_two_lines_that_alternate_are_counted_each() -> None:
    fold = Fold(quiet_secs=10)
    sent = [
        event
        for seq in range(1000)
        for event in fold.add(line(seq, f"line {'XY'[seq % 2]}", seq / 1000), 0)
    ]
    sent += fold.drain()
    counts = Counter[str]()
    for event in sent:
        counts[event.line] += event.count
    assert counts == {"line X": 500, "line Y": 500}
    assert len(sent) <= 2 * 11


def test_addresses_do_not_tell_lines_apart_but_processes_and_gpus_do() -> None:
    texts = [
        "NVRM: Xid (PCI:0000:43:00): 13, pid=7, Graphics Exception: ESR 0x52e7b0=0x101000e",
        "NVRM: Xid (PCI:0000:43:00): 13, pid=7, Graphics Exception: ESR 0x9d0730=0x4",
        "NVRM: Xid (PCI:0000:43:00): 13, pid=8, Graphics Exception: ESR 0x52e7b0=0x101000e",
        "NVRM: Xid (PCI:0000:44:00): 13, pid=7, Graphics Exception: ESR 0x52e7b0=0x101000e",
    ]
    keys = [fold_key(line(0, text)) for text in texts]
    assert fold_key(line(0, texts[0].replace("0x52e7b0", "0x777777"))) == keys[0]
    assert len(set(keys)) == 4  # 0x4 is a code, not an address


def test_the_words_of_an_nvlink_error_are_its_meaning() -> None:
    text = "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6)"
    assert fold_key(line(0, text)) != fold_key(line(0, text.replace("0x021425c6", "0x0409a0c2")))


def test_a_line_after_a_quiet_time_is_a_new_first() -> None:
    fold = Fold(quiet_secs=10)
    assert [e.count for e in fold.add(line(0, secs=0), 0)] == [1]
    assert [e.count for e in fold.add(line(1, secs=1), 0)] == [1]
    assert fold.add(line(2, secs=2), 0) == []
    late = fold.add(line(3, secs=13), 0)
    assert [(e.seq, e.count) for e in late] == [(2, 1), (3, 1)]


def test_a_storm_that_lasts_is_told_of_every_minute() -> None:
    fold = Fold(quiet_secs=10)
    sent = [e for seq in range(3600) for e in fold.add(line(seq, secs=seq), seq * NS)]
    gaps = [(b.time_unix_ns - a.time_unix_ns) / NS for a, b in itertools.pairwise(sent)]
    assert max(gaps) <= 60


def test_the_table_is_bounded_and_loses_no_count() -> None:
    fold = Fold(quiet_secs=10)
    sent: list[LogEvent] = []
    for seq in range(3 * 3 * MAX_STREAMS):
        sent += fold.add(line(seq, f"line {seq // 3}"), 0)
    assert len(fold.state()) == MAX_STREAMS
    assert sum(event.count for event in sent + fold.drain()) == 9 * MAX_STREAMS


steps = st.lists(st.tuples(st.sampled_from("ABCD"), st.floats(0, 15)), max_size=80)


@given(steps)
def test_counts_are_exact_and_ids_are_unique(lines: list[tuple[str, float]]) -> None:
    fold, secs = Fold(quiet_secs=10), 0.0
    sent: list[LogEvent] = []
    for seq, (text, gap) in enumerate(lines):
        secs += gap
        sent += fold.add(line(seq, text, secs), 0)
    sent += fold.drain()
    counts = Counter[str]()
    for event in sent:
        counts[event.line] += event.count
    assert counts == Counter(text for text, _ in lines)
    assert len({event.seq for event in sent}) == len(sent)


@given(steps, st.integers(0, 80))
def test_a_restart_anywhere_folds_into_the_same_events(
    lines: list[tuple[str, float]], cut: int
) -> None:
    events, secs = [], 0.0
    for seq, (text, gap) in enumerate(lines):
        secs += gap
        events.append(line(seq, text, secs))
    whole, first, second = Fold(10), Fold(10), Fold(10)
    expected = [e for event in events for e in whole.add(event, 0)] + whole.drain()
    sent = [e for event in events[:cut] for e in first.add(event, 0)]
    second.restore(first.state(), 0)
    sent += [e for event in events[cut:] for e in second.add(event, 0)]
    assert sent + second.drain() == expected
