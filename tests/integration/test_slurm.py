"""The Slurm reader against a real Slurm, started here."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stethoscope.agents.clock import SystemClock
from stethoscope.agents.reader import Context
from stethoscope.agents.slurm import SlurmReader
from stethoscope.schemas.agent_config import Slurm
from stethoscope.schemas.events import ClockEvent, Event, JobEvent, TopologyEvent, event_id
from tests.integration.slurm_cluster import SlurmCluster, missing_programs

pytestmark = pytest.mark.integration


class Watch:
    """Reads until something is seen; keeps all events."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.reader = SlurmReader(Context("test", "controller", "b"), Slurm(conf=str(cluster.conf)))
        self.events: list[Event] = []

    def until(self, seen: Callable[[], bool], timeout_secs: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_secs
        while not seen():
            assert time.monotonic() < deadline, self.events[-20:]
            self.events.extend(self.reader.read(SystemClock().now()))
            time.sleep(0.2)

    def states(self, job_id: str) -> list[tuple[int, str]]:
        return [
            (event.restart, event.state)
            for event in self.events
            if isinstance(event, JobEvent) and event.job_id == job_id
        ]

    def last(self, job_id: str, state: str) -> JobEvent:
        return next(
            event
            for event in reversed(self.events)
            if isinstance(event, JobEvent) and (event.job_id, event.state) == (job_id, state)
        )

    def node_state(self, name: str) -> str | None:
        states = [
            event.nodes[name].state
            for event in self.events
            if isinstance(event, TopologyEvent) and name in event.nodes
        ]
        return states[-1] if states else None


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if missing := missing_programs():
        pytest.fail(
            f"Slurm is not installed here ({', '.join(missing)}): scripts/install-system.sh"
        )
    if os.geteuid() != 0:
        pytest.skip("slurmd starts jobs as root only")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        slurm = SlurmCluster(Path(folder))
        try:
            slurm.start()
            yield slurm
        finally:
            slurm.stop()


@pytest.fixture(scope="module", autouse=True)
def limited_job(cluster: SlurmCluster) -> str:
    """A job of the shortest limit that Slurm knows, a minute, which passes during the others."""
    return cluster.submit("-w", "gpu01", "--gres=gpu:1", "--time=1")


@pytest.fixture
def watch(cluster: SlurmCluster) -> Watch:
    return Watch(cluster)


def test_a_job_starts_with_its_gpus_ranks_and_limit_and_ends(watch: Watch) -> None:
    job_id = watch.cluster.submit(
        "-N2", "-n14", "--gres=gpu:7", "--time=30", "--comment=run=7,checkpoint_dir=/ck/7",
        "--job-name=pre train", script="sleep 3",
    )  # fmt: skip
    watch.until(lambda: (0, "COMPLETED") in watch.states(job_id))
    running, done = watch.last(job_id, "RUNNING"), watch.last(job_id, "COMPLETED")
    assert running.nodes == ["gpu01", "gpu02"]
    assert {node: len(gpus) for node, gpus in running.gpus.items()} == {"gpu01": 7, "gpu02": 7}
    assert running.ranks == {"gpu01": list(range(7)), "gpu02": list(range(7, 14))}
    assert (running.name, running.time_limit_secs) == ("pre train", 1800.0)
    assert running.checkpoint_dir == "/ck/7"
    assert done.start_unix_ns == running.start_unix_ns
    assert done.gpus == running.gpus
    assert done.end_unix_ns is not None
    assert done.end_unix_ns - (done.start_unix_ns or 0) in range(2 * 10**9, 20 * 10**9)


def test_a_requeued_job_is_a_new_run_and_its_first_run_ends(watch: Watch) -> None:
    job_id = watch.cluster.submit("--gres=gpu:2")
    watch.until(lambda: (0, "RUNNING") in watch.states(job_id))
    watch.cluster.run("scontrol", "requeue", job_id)
    watch.until(lambda: (1, "PENDING") in watch.states(job_id))
    states = watch.states(job_id)
    assert (0, "REQUEUED") in states
    assert states.index((0, "REQUEUED")) < states.index((1, "PENDING"))
    watch.cluster.run("scancel", job_id)
    watch.until(lambda: (1, "CANCELLED") in watch.states(job_id))


def test_a_cancelled_job(watch: Watch) -> None:
    job_id = watch.cluster.submit("--gres=gpu:1")
    watch.until(lambda: (0, "RUNNING") in watch.states(job_id))
    watch.cluster.run("scancel", job_id)
    watch.until(lambda: (0, "CANCELLED") in watch.states(job_id))


def test_a_job_that_fails_at_once_is_told_running_before_failed(watch: Watch) -> None:
    job_id = watch.cluster.submit(script="exit 3")
    watch.until(lambda: (0, "FAILED") in watch.states(job_id))
    ids = [event_id(event) for event in watch.events if not isinstance(event, ClockEvent)]
    assert len(ids) == len(set(ids))


def test_both_ways_of_asking_agree(watch: Watch) -> None:
    job_id = watch.cluster.submit("-N2", "--gres=gpu:h100:3", "--comment=it is = odd")
    watch.until(lambda: (0, "RUNNING") in watch.states(job_id))
    by_json = {job.job_id: job for job in watch.reader._by_json()[0]}
    by_text = {job.job_id: job for job in watch.reader._by_scontrol()[0]}
    by_format = {job.job_id: job for job in watch.reader._by_squeue()[0]}
    for job in (by_text[job_id], by_format[job_id]):
        assert (job.state, job.nodelist) == ("RUNNING", by_json[job_id].nodelist)
        assert job.start_secs == by_json[job_id].start_secs
        assert (job.name, job.user) == (by_json[job_id].name, by_json[job_id].user)
    assert by_text[job_id].gpus == by_json[job_id].gpus
    assert {node: len(gpus) for node, gpus in by_text[job_id].gpus.items()} == {
        "gpu01": 3,
        "gpu02": 3,
    }
    watch.cluster.run("scancel", job_id)


def test_an_agent_that_restarts_tells_the_end_it_did_not_see(watch: Watch) -> None:
    job_id = watch.cluster.submit("--gres=gpu:1")
    watch.until(lambda: (0, "RUNNING") in watch.states(job_id))
    kept = watch.reader.checkpoint()
    watch.cluster.run("scancel", job_id)
    other = Watch(watch.cluster)
    other.reader.restore(kept)
    other.until(lambda: (0, "CANCELLED") in other.states(job_id))


def test_a_node_goes_down_and_takes_its_job_with_it(watch: Watch) -> None:
    job_id = watch.cluster.submit("-w", "gpu02", "--gres=gpu:1", "--no-requeue")
    watch.until(lambda: (0, "RUNNING") in watch.states(job_id))
    watch.cluster.kill_node("gpu02")
    watch.until(lambda: (0, "NODE_FAIL") in watch.states(job_id))
    watch.until(lambda: watch.node_state("gpu02") == "down")
    down = next(e for e in reversed(watch.events) if isinstance(e, TopologyEvent))
    assert down.nodes["gpu02"].reason == "lost power"
    assert down.nodes["gpu02"].gpu_count == 8
    watch.cluster.start_node("gpu02")
    watch.until(lambda: watch.node_state("gpu02") == "idle")
    watch.cluster.run("scontrol", "update", "nodename=gpu01", "state=drain", "reason=xid 79")
    watch.until(lambda: watch.node_state("gpu01") in {"draining", "drained"})


def test_the_clock_lags_behind_what_may_still_come(watch: Watch) -> None:
    now = SystemClock().now()
    clock = watch.reader.read(now)[-1]
    assert isinstance(clock, ClockEvent)
    assert clock.time_unix_ns == now.unix_ns - 10**9


def test_a_job_over_its_time_limit(watch: Watch, limited_job: str) -> None:
    watch.until(lambda: (0, "TIMEOUT") in watch.states(limited_job), timeout_secs=150)
