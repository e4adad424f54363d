"""Which job is where, and since when."""

import pytest

from stethoscope.correlation.placement import Placement, job_key, unknown_key
from stethoscope.schemas.events import JobEvent

from .build import at, job

NOWHERE = (None, None)


def placed(*events: JobEvent) -> Placement:
    placement = Placement()
    for event in events:
        placement.apply(event)
    return placement


def test_a_run_is_known_by_cluster_id_restart_and_start() -> None:
    assert job_key(job("77", restart=2, start=5)) == f"default/77.2@{at(5)}"


def test_a_job_that_waits_is_nowhere() -> None:
    placement = Placement()
    assert placement.apply(job(state="PENDING", start=None)) is None
    assert placement.key_of("default", "77") == unknown_key("default", "77")
    assert placement.running_on("node01") == []


def test_lookups_in_time() -> None:
    placement = placed(job(start=10, secs=10), job(state="COMPLETED", secs=50, start=10, end=50))
    key = placement.key_of("default", "77")
    assert placement.at("node01", at(9), NOWHERE) == []
    assert placement.at("node01", at(10), NOWHERE) == [key]
    assert placement.at("node01", at(50), NOWHERE) == [key]
    assert placement.at("node01", at(51), NOWHERE) == []
    assert placement.at("node02", at(20), NOWHERE) == []
    assert placement.running_on("node01") == []


def test_lookups_by_gpu() -> None:
    placement = placed(
        job("1", gpus={"node01": [0, 1]}),
        job("2", gpus={"node01": ["GPU-c", "GPU-d"]}),
        job("3", nodes=["node02"]),
    )
    one, two, three = (placement.key_of("default", i) for i in "123")
    assert placement.at("node01", at(1), (1, "GPU-b")) == [one]
    assert placement.at("node01", at(1), (2, "GPU-c")) == [two]
    assert placement.at("node01", at(1), NOWHERE) == [one, two]
    assert placement.at("node02", at(1), (5, "GPU-x")) == [three]


def test_a_requeued_job_is_another_run_and_ends_the_first() -> None:
    placement = placed(
        job(secs=0, start=0),
        job(state="PENDING", secs=20, start=None, restart=1),
        job(secs=30, start=30, restart=1, nodes=["node02"]),
    )
    first = f"default/77.0@{at(0)}"
    assert placement.jobs[first].state == "REQUEUED"
    assert placement.jobs[first].end_unix_ns == at(20)
    assert placement.running_on("node01") == []
    assert placement.running_on("node02") == [placement.key_of("default", "77")]
    assert placement.at("node01", at(10), NOWHERE) == [first]


def test_a_newer_run_ends_an_older_one_whose_end_was_never_told() -> None:
    placement = placed(job(secs=0, start=0), job(secs=99, start=95, restart=1))
    assert placement.jobs[f"default/77.0@{at(0)}"].end_unix_ns == at(95)
    assert len(placement.running_on("node01")) == 1


def test_a_job_id_that_comes_back_is_another_job() -> None:
    placement = placed(
        job(secs=0, start=0, restart=2),
        job(state="FAILED", secs=10, start=0, restart=2, end=10),
        job(secs=5000, start=5000, restart=0),
    )
    assert placement.key_of("default", "77") == f"default/77.0@{at(5000)}"


def test_the_late_end_of_an_older_run_does_not_become_the_newest() -> None:
    placement = placed(
        job(secs=0, start=0),
        job(secs=30, start=30, restart=1),
        job(state="FAILED", secs=31, start=0, end=29),
    )
    assert placement.key_of("default", "77") == f"default/77.1@{at(30)}"
    assert placement.jobs[f"default/77.0@{at(0)}"].state == "FAILED"
    assert placement.jobs[f"default/77.0@{at(0)}"].end_unix_ns == at(29)


def test_an_end_that_does_not_say_when_the_run_began_ends_it() -> None:
    placement = placed(job(secs=0, start=0), job(state="FAILED", secs=9, start=None, nodes=[]))
    assert placement.running_on("node01") == []
    assert list(placement.jobs) == [f"default/77.0@{at(0)}"]


def test_what_is_not_said_again_stays_known() -> None:
    placement = placed(
        job(gpus={"node01": [0, 1]}), job(state="COMPLETED", secs=9, nodes=[], end=9)
    )
    (event,) = placement.jobs.values()
    assert event.nodes == ["node01"]
    assert event.gpus == {"node01": [0, 1]}


def test_a_node_list_is_expanded() -> None:
    event = JobEvent(
        time_unix_ns=at(0), job_id="7", state="RUNNING", nodelist="gpu[01-02]", start_unix_ns=at(0)
    )
    placement = placed(event)
    assert placement.running_on("gpu02") == [placement.key_of("default", "7")]


@pytest.mark.parametrize("nodelist", ["gpu[01-", "(null)"])
def test_a_bad_node_list_places_the_job_nowhere(nodelist: str) -> None:
    event = JobEvent(time_unix_ns=at(0), job_id="7", state="RUNNING", nodelist=nodelist)
    assert placed(event).on_node == {}


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "COMPLETED", "NODE_FAIL", "TIMEOUT"])
def test_ends_are_read_whatever_slurm_adds(state: str) -> None:
    assert placed(job(), job(state=state, secs=9, end=9)).running_on("node01") == []


def test_jobs_are_forgotten_a_day_after_their_end() -> None:
    placement = placed(job("1"), job("1", state="COMPLETED", secs=9, end=9), job("2"))
    placement.prune(at(86_000))
    assert len(placement.jobs) == 2
    placement.prune(at(86_400 + 10))
    assert list(placement.latest) == ["default/2"]
    assert placement.on_node == {"node01": [placement.key_of("default", "2")]}
