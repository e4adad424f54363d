"""The judge, judged: hand-made incidents against hand-made labels."""

from pathlib import Path

import pytest

from stethoscope.replay.labels import Label, Root, read_labels
from stethoscope.replay.score import matches, root_right, score
from stethoscope.schemas.errors import InputError
from stethoscope.schemas.findings import NS, Subject
from stethoscope.schemas.incidents import FindingSummary, Incident, Severity, alertname_of

ROOT = Path(__file__).parents[3]


def incident(
    cause: str = "gpu_lost",
    started: float = 100,
    detected: float | None = None,
    ended: float | None = None,
    *,
    incident_id: str = "",
    severity: Severity = "critical",
    root: Subject | None = None,
    jobs: tuple[str, ...] = ("7",),
    nodes: tuple[str, ...] = ("n1",),
    merged_into: str | None = None,
    raw_events: int = 10,
) -> Incident:
    return Incident(
        incident_id=incident_id or f"{cause}-{started}",
        state="open" if ended is None else "resolved",
        cause=cause,
        alertname=alertname_of(cause),
        severity=severity,
        audience="infra",
        title=cause,
        started_unix_ns=round(started * NS),
        detected_unix_ns=round((started + 2 if detected is None else detected) * NS),
        ended_unix_ns=None if ended is None else round(ended * NS),
        root=root or Subject(node="n1", gpu_index=3, job_id="7"),
        confidence=0.9,
        suspects=[],
        jobs=list(jobs),
        nodes=list(nodes),
        findings=FindingSummary(by_cause={cause: 1}),
        raw_events=raw_events,
        recurrence=0,
        merged_into=merged_into,
        actions=[],
        knowledge="",
    )


def label(
    cause: str = "gpu_lost",
    start: float = 100,
    end: float = 120,
    *,
    label_id: str = "",
    page: bool = True,
    also: tuple[str, ...] = (),
    tolerated: tuple[str, ...] = (),
    optional: bool = False,
    nodes: tuple[str, ...] = ("n1",),
    job_ids: tuple[str, ...] = ("7",),
    root: Root | None = None,
    grace_secs: float = 20,
) -> Label:
    return Label(
        id=label_id or f"{cause}@{start}",
        cause=cause,
        also=list(also),
        start_unix_ns=round(start * NS),
        end_unix_ns=round(end * NS),
        nodes=list(nodes),
        job_ids=list(job_ids),
        root=root or Root(node="n1"),
        page=page,
        tolerated=list(tolerated),
        optional=optional,
        grace_secs=grace_secs,
    )


def test_one_fault_one_page_is_perfect() -> None:
    result = score([incident()], [label()])
    assert result.perfect
    assert (result.total.precision, result.total.recall, result.total.root_accuracy) == (1, 1, 1)
    assert result.total.delay_median_secs == 2
    assert result.total.events_per_page == 10
    assert result.found[0].label_id == "gpu_lost@100"


def test_a_silent_run_misses_the_fault() -> None:
    result = score([], [label()])
    assert result.missed == ["gpu_lost@100"]
    assert not result.perfect
    assert result.total.recall == 0
    assert result.total.precision is None


@pytest.mark.parametrize(
    "quiet",
    [incident(severity="info"), incident(merged_into="other")],
    ids=["info", "merged"],
)
def test_what_is_no_page_neither_finds_nor_disturbs(quiet: Incident) -> None:
    assert score([quiet], [label()]).missed == ["gpu_lost@100"]
    assert score([quiet], [label(page=False)]).perfect


def test_a_page_for_nothing_is_false() -> None:
    result = score([incident(), incident("job_hang", 500)], [label()])
    assert [page.cause for page in result.false_pages] == ["job_hang"]
    assert result.total.precision == 0.5
    assert result.by_cause["job_hang"].false_pages == 1
    assert not result.perfect


def test_another_cause_that_is_right_too() -> None:
    assert score([incident("gpu_xid")], [label(also=("gpu_xid",))]).perfect
    assert not score([incident("gpu_xid")], [label()]).perfect


def test_several_pages_for_one_fault_are_extra_and_not_false() -> None:
    pages = [incident(started=100), incident(started=110), incident("gpu_xid", 101)]
    result = score(pages, [label(also=("gpu_xid",))])
    assert result.perfect
    assert result.total.extra_pages == 2
    assert result.found[0].incident_id == "gpu_lost-100"
    assert result.total.precision == 1


def test_the_very_cause_finds_before_one_that_is_right_too() -> None:
    pages = [incident("gpu_xid", 100), incident("gpu_lost", 105)]
    result = score(pages, [label(also=("gpu_xid",))])
    assert result.found[0].cause == "gpu_lost"
    assert result.extra_pages[0].cause == "gpu_xid"


def test_one_page_cannot_find_two_faults() -> None:
    labels = [label(label_id="a"), label(start=110, end=130, label_id="b")]
    result = score([incident(ended=125)], labels)
    assert len(result.found) == 1
    assert len(result.missed) == 1


def test_pages_are_shared_out_so_that_most_faults_are_found() -> None:
    # The page at 100 could find both; the one at 90 ends before b begins.
    labels = [
        label(start=100, end=104, label_id="a", grace_secs=0),
        label(start=106, end=120, label_id="b", grace_secs=0),
    ]
    pages = [incident(started=101, detected=107), incident(started=90, detected=101)]
    result = score(pages, labels)
    assert {one.label_id: one.incident_id for one in result.found} == {
        "a": "gpu_lost-90",
        "b": "gpu_lost-101",
    }


def test_required_faults_are_served_before_optional_ones() -> None:
    labels = [label(label_id="maybe", optional=True), label(label_id="must", start=101)]
    result = score([incident()], labels)
    assert [one.label_id for one in result.found] == ["must"]
    assert result.perfect


def test_an_optional_fault_may_be_missed_and_may_be_found() -> None:
    optional = label(optional=True)
    assert score([], [optional]).perfect
    found = score([incident()], [optional])
    assert found.perfect
    assert found.total.faults == 0
    assert found.total.pages == 1
    assert found.total.false_pages == 0


@pytest.mark.parametrize(
    ("cause", "tolerated", "false"),
    [
        ("gpu_contention", (), 1),
        ("gpu_contention", ("gpu_contention",), 0),
        ("straggler", ("gpu_contention",), 1),
    ],
)
def test_decoys(cause: str, tolerated: tuple[str, ...], false: int) -> None:
    decoy = label("gpu_contention", page=False, tolerated=tolerated)
    result = score([incident(cause)], [decoy])
    assert result.total.false_pages == false
    assert result.missed == []
    if false:
        assert result.false_pages[0].near == decoy.id


@pytest.mark.parametrize(
    ("started", "detected", "ended", "hit"),
    [
        (50, 60, None, False),  # over before it began
        (50, 101, None, True),  # an early onset, seen inside
        (50, 60, 105, True),  # lasted into it
        (120, 121, None, True),
        (140, 141, None, True),  # on the last moment of the grace
        (141, 142, None, False),
    ],
)
def test_time_must_overlap(started: float, detected: float, ended: float | None, hit: bool) -> None:
    assert matches(incident("gpu_lost", started, detected, ended), label()) is hit


@pytest.mark.parametrize(
    ("jobs", "nodes", "label_jobs", "label_nodes", "hit"),
    [
        (("7", "9"), ("n1",), ("7",), ("n2",), True),  # jobs decide where both name some
        (("8",), ("n1",), ("7",), ("n1",), False),
        ((), ("n1",), ("7",), ("n1", "n2"), True),  # else nodes
        ((), ("n3",), ("7",), ("n1",), False),
        (("8",), ("n1",), (), ("n1",), True),
        ((), ("n1",), ("7",), (), True),  # the root's node stands in
    ],
)
def test_place_must_overlap(
    jobs: tuple[str, ...],
    nodes: tuple[str, ...],
    label_jobs: tuple[str, ...],
    label_nodes: tuple[str, ...],
    hit: bool,
) -> None:
    one = incident(jobs=jobs, nodes=nodes, root=Subject(node=nodes[0]))
    assert matches(one, label(job_ids=label_jobs, nodes=label_nodes)) is hit


@pytest.mark.parametrize(
    ("truth", "right"),
    [
        (Root(), True),
        (Root(node="n1", gpu_index=3, job_id="7"), True),
        (Root(node="n2"), False),
        (Root(node="n1", gpu_index=0), False),
        (Root(node="n1", rank=3), False),
        (Root(job_id="8"), False),
    ],
)
def test_root(truth: Root, right: bool) -> None:
    assert root_right(incident(), label(root=truth)) is right


def test_gpu_zero_is_a_gpu() -> None:
    one = incident(root=Subject(node="n1", gpu_index=1))
    assert not root_right(one, label(root=Root(node="n1", gpu_index=0)))


def test_a_root_without_a_node_is_right_only_where_one_node_is_named() -> None:
    truth = label(root=Root(node="n1"))
    assert root_right(incident(root=Subject(job_id="7"), nodes=("n1",)), truth)
    assert not root_right(incident(root=Subject(job_id="7"), nodes=("n1", "n2")), truth)


def test_a_wrong_root_still_finds_but_counts_against_accuracy() -> None:
    result = score([incident()], [label(root=Root(node="n1", gpu_index=5))])
    assert result.perfect
    assert result.total.root_accuracy == 0


def test_tallies_by_cause_add_up() -> None:
    labels = [label(), label("job_hang", 300, 320), label("loss_nan", 500, 510)]
    pages = [incident(), incident("job_hang", 301), incident("loss_spike", 900)]
    result = score(pages, labels)
    assert sum(t.faults for t in result.by_cause.values()) == result.total.faults == 3
    assert sum(t.found for t in result.by_cause.values()) == result.total.found == 2
    assert sum(t.pages for t in result.by_cause.values()) == result.total.pages == 3
    assert result.by_cause["loss_nan"].recall == 0
    assert result.total.recall == pytest.approx(2 / 3, abs=1e-5)


def test_the_order_of_incidents_does_not_matter() -> None:
    pages = [incident(), incident("job_hang", 301), incident(started=110)]
    labels = [label(), label("job_hang", 300, 320)]
    assert score(pages, labels) == score(pages[::-1], labels)


def test_the_packaged_labels_are_read() -> None:
    labels = {x.id: x for x in read_labels(ROOT / "replay/recordings/h200x2_a.labels.jsonl")}
    assert len(labels) == 15
    assert labels["f02-straggler"].root == Root(node="node01", gpu_index=1, rank=1, job_id="1961")
    assert not labels["f05-pcie_traffic"].page
    assert labels["f05-pcie_traffic"].tolerated == ["gpu_contention"]
    assert labels["o01-orphan"].optional


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no label"),
        ('{"id":"a"}', ":1: not a label: Object missing required field"),
        ("\n{", ":2: not a label"),
    ],
)
def test_bad_label_files(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_labels(path)
    assert says in str(caught.value)


def test_missing_label_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_labels(tmp_path / "none.jsonl")
