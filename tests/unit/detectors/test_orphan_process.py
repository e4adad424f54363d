"""Processes that outlived their job."""

from stethoscope.detectors.job_context import take_host
from stethoscope.detectors.orphan_process import OrphanProcess, OrphanProcessConfig
from stethoscope.schemas.events import Process
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.views import HostView

from .build import Job, at

LEFT = Process(name="python3", pid=674, job_id="77", rank=1)


class Ended:
    """A job that ended at second 10, watched on."""

    def __init__(self) -> None:
        self.job = Job()
        self.job.run(10)
        self.job.end("FAILED")
        self.detector = OrphanProcess(OrphanProcessConfig())
        self.second = 10

    def watch(self, secs: int, *processes: Process) -> list[Finding]:
        found: list[Finding] = []
        for _ in range(secs):
            self.second += 1
            view = HostView(
                job=self.job.context.key,
                node="node01",
                second_unix_ns=at(self.second),
                metrics={},
                processes=list(processes),
            )
            take_host(self.job.context, view)
            found += self.detector.after(self.job.context, at(self.second))
        return found


def test_a_process_that_is_there_after_a_minute_is_told_of_its_gpu() -> None:
    ended = Ended()
    assert ended.watch(59, LEFT) == []
    (only,) = ended.watch(5, LEFT)
    assert (only.cause, only.subject.gpu_index, only.subject.job_id) == ("gpu_contention", 1, None)
    assert only.started_unix_ns == at(10)
    assert only.score == 1.0
    assert "pid 674" in only.evidence


def test_one_that_goes_within_the_minute_is_none() -> None:
    ended = Ended()
    assert ended.watch(50, LEFT) == []
    assert ended.watch(60) == []


def test_it_clears_when_the_process_goes() -> None:
    ended = Ended()
    ended.watch(70, LEFT)
    assert [f.cleared for f in ended.watch(20)] == [True]


def test_processes_of_other_jobs_and_dead_ones_are_none() -> None:
    other = Process(name="python3", pid=1, job_id="78", rank=0)
    dead = Process(name="python3", pid=2, job_id="77", rank=0, alive=False)
    stranger = Process(name="python3", pid=3)
    assert Ended().watch(120, other, dead, stranger) == []


def test_without_a_rank_the_process_is_the_subject() -> None:
    nameless = Process(name="python3", pid=9, job_id="77")
    (only,) = Ended().watch(70, nameless)
    assert (only.subject.pid, only.subject.node) == (9, "node01")


def test_several_on_one_node_are_one_finding_and_stay_one() -> None:
    ended = Ended()
    other = Process(name="python3", pid=673, job_id="77", rank=0)
    (only,) = ended.watch(70, other, LEFT)
    assert (only.subject.node, only.subject.gpu_index, only.subject.pid) == ("node01", None, None)
    assert "pid 673, 674" in only.evidence
    assert ended.watch(30, LEFT) == []


def test_a_node_that_fell_silent_says_nothing_of_its_processes() -> None:
    ended = Ended()
    ended.watch(20, LEFT)
    later = range(ended.second + 1, ended.second + 200)
    assert [f for s in later for f in ended.detector.after(ended.job.context, at(s))] == []


def test_a_host_that_is_heard_once_a_minute_is_one_finding() -> None:
    ended = Ended()
    found = []
    for _ in range(6):
        found += ended.watch(1, LEFT)
        for _ in range(59):
            ended.second += 1
            found += ended.detector.after(ended.job.context, at(ended.second))
    assert [f.cleared for f in found] == [False]


def test_a_process_that_was_last_seen_before_it_was_due_is_none() -> None:
    ended = Ended()
    ended.watch(40, LEFT)  # Slurm kills 30 s after the end; then the node is switched off
    later = range(ended.second + 1, ended.second + 300)
    assert [f for s in later for f in ended.detector.after(ended.job.context, at(s))] == []


def test_forgetting_the_job_ends_what_is_open() -> None:
    ended = Ended()
    ended.watch(70, LEFT)
    found = ended.detector.forget(ended.job.context, at(700))
    assert [f.cleared for f in found] == [True]
    assert ended.detector.state.jobs == {}
