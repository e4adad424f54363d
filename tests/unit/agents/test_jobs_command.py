import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.job_changes import JobChanges, end_of
from stethoscope.agents.jobs_command import JobsCommandReader
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import JobsCommand
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import ClockEvent, JobEvent, event_id
from stethoscope.schemas.job_states import ENDED

NS = 10**9


def line(job_id: str, state: str = "RUNNING", **fields: object) -> str:
    return json.dumps({"kind": "job", "time_unix_ns": 5, "job_id": job_id, "state": state} | fields)


class Scheduler:
    """A reader of a file that stands for a scheduler."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader = JobsCommandReader(Context("mine", "n", "b"), JobsCommand(file=str(path)))
        self.clock = FakeClock()

    def told(self, *lines: str) -> list[JobEvent]:
        self.path.write_text("".join(f"{text}\n" for text in lines))
        self.clock.advance(1)
        *jobs, clock = self.reader.read(self.clock.now())
        assert isinstance(clock, ClockEvent)
        return [event for event in jobs if isinstance(event, JobEvent)]


@pytest.fixture
def scheduler(tmp_path: Path) -> Scheduler:
    return Scheduler(tmp_path / "jobs.jsonl")


def test_only_changes_are_told(scheduler: Scheduler) -> None:
    (first,) = scheduler.told(line("a", nodes=["n1"]))
    assert (first.cluster, first.state) == ("mine", "RUNNING")
    assert scheduler.told(line("a", nodes=["n1"], time_unix_ns=99)) == []
    (moved,) = scheduler.told(line("a", nodes=["n2"]))
    assert moved.time_unix_ns == scheduler.clock.now().unix_ns
    (ended, other) = scheduler.told(line("b"))
    assert (ended.job_id, ended.state, other.job_id) == ("a", "COMPLETED", "b")
    assert ended.end_unix_ns == scheduler.clock.now().unix_ns


def test_bad_lines_are_counted_and_the_rest_counts(scheduler: Scheduler) -> None:
    clock = '{"kind": "clock", "time_unix_ns": 1}'
    assert [job.job_id for job in scheduler.told("{", line("a"), clock)] == ["a"]
    errors = scheduler.reader.counters.collector_errors
    assert errors == {"truncated": 1, "not_a_job": 1}


def test_a_command_is_asked(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"print({line('x')!r})"]
    reader = JobsCommandReader(Context("c", "n", "b"), JobsCommand(command=command))
    reader.probe()
    first = reader.read(FakeClock().now())[0]
    assert isinstance(first, JobEvent)
    assert first.job_id == "x"
    again = JobsCommandReader(Context("c", "n", "b"), JobsCommand(file=str(tmp_path / "none")))
    again.restore("bad")
    again.restore(reader.checkpoint())
    with pytest.raises(ServiceError, match="No such file"):
        again.read(FakeClock().now())
    (tmp_path / "none").touch()
    ended = again.read(FakeClock().now())[0]
    assert isinstance(ended, JobEvent)
    assert ended.state == "COMPLETED"


def test_one_of_both_must_be_set() -> None:
    for section in (JobsCommand(), JobsCommand(file="a", command=["b"])):
        with pytest.raises(ReaderUnsupported, match="set one of"):
            JobsCommandReader(Context("c", "n", "b"), section).probe()


def test_what_follows_is_never_dated_before() -> None:
    changes = JobChanges()
    steps = [
        ("PENDING", 10.5, 10.5),
        ("RUNNING", 10, 12),
        ("SUSPENDED", 10, 20),
        ("RUNNING", 10, 30),
    ]
    times = []
    for state, own_secs, now_secs in [*steps, ("FAILED", 30, 31)]:
        job = JobEvent(time_unix_ns=round(own_secs * NS), job_id="a", state=state)
        (event,) = changes.update([job], round(now_secs * NS))
        times.append(event.time_unix_ns / NS)
    assert times == sorted(times)
    assert times[2:4] == [20.0, 30.0]
    assert times[4] == pytest.approx(30.0)


listings = st.lists(
    st.dictionaries(
        st.sampled_from("abc"), st.sampled_from(["PENDING", "RUNNING", "FAILED", "COMPLETED"])
    ),
    max_size=8,
)


@given(listings)
def test_whatever_is_listed_every_open_run_is_told_and_ends_once(
    rounds: list[dict[str, str]],
) -> None:
    changes = JobChanges()
    state: dict[str, str] = {}
    ids: list[str] = []
    for index, listing in enumerate([*rounds, {}]):
        now_ns = (index + 1) * NS
        jobs = [
            JobEvent(time_unix_ns=now_ns, job_id=job_id, state=word)
            for job_id, word in listing.items()
        ]
        gone = changes.missing(jobs)
        assert not [job for job in gone if state[job.job_id] in ENDED]
        ends = [end_of(job, "COMPLETED", now_ns) for job in gone]
        for event in changes.update([*ends, *jobs], now_ns):
            state[event.job_id] = event.state
            ids.append(event_id(event))
        assert {job.job_id: state[job.job_id] for job in jobs} == listing
    assert len(set(ids)) == len(ids)
    assert not [word for word in state.values() if word not in ENDED]
