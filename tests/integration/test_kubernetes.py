"""The Kubernetes reader against a real API server, built and started here."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stethoscope.agents.clock import SystemClock
from stethoscope.agents.kube_client import KubeError
from stethoscope.agents.kubernetes import KubernetesReader
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import Kubernetes
from stethoscope.schemas.errors import ServiceError
from stethoscope.schemas.events import ClockEvent, Event, JobEvent, TopologyEvent
from tests.integration.kube_server import KubeServer, ended, running, why_not

pytestmark = pytest.mark.integration

START = "2026-01-02T03:04:05Z"
START_NS = 1767323045 * 10**9


class Watch:
    """A reader and all that it told."""

    def __init__(self, server: KubeServer, user: str = "admin") -> None:
        self.reader = KubernetesReader(
            Context("test", "controller", "b"),
            Kubernetes(
                api_url=server.url,
                token_file=str(server.token_file(user)),
                ca_file=str(server.ca_file),
            ),
        )
        self.events: list[Event] = []

    def read(self) -> None:
        self.events.extend(self.reader.read(SystemClock().now()))

    def until(self, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not seen():
            assert time.monotonic() < deadline, self.events[-10:]
            self.read()

    def jobs(self, job_id: str) -> list[JobEvent]:
        return [e for e in self.events if isinstance(e, JobEvent) and e.job_id == job_id]

    def states(self, job_id: str) -> list[tuple[int, str]]:
        return [(job.restart, job.state) for job in self.jobs(job_id)]

    def node(self, name: str) -> str | None:
        seen = [
            e.nodes[name] for e in self.events if isinstance(e, TopologyEvent) if name in e.nodes
        ]
        return seen[-1].state if seen else None


@pytest.fixture(scope="module")
def server() -> Iterator[KubeServer]:
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="kube-") as folder:
        kube = KubeServer(Path(folder))
        kube.start()
        try:
            for name in ("node1", "node2"):
                kube.create_node(name, gpus=8)
            yield kube
        finally:
            kube.stop()


def test_a_pod_from_pending_to_done(server: KubeServer) -> None:
    watch = Watch(server)
    server.create_pod("single", {})
    server.create_pod("no-gpu", {}, gpus=0)
    watch.until(lambda: watch.states("default/single") == [(0, "PENDING")])
    server.bind("single", "node1")
    watch.until(lambda: (0, "CONFIGURING") in watch.states("default/single"))
    server.set_status("single", running(START))
    watch.until(lambda: (0, "RUNNING") in watch.states("default/single"))
    job = watch.jobs("default/single")[-1]
    assert (job.nodes, job.start_unix_ns) == (["node1"], START_NS)
    assert job.gpus == {"node1": list(range(8))}
    assert job.ranks == {"node1": list(range(8))}
    server.set_status("single", ended("Succeeded", START, "2026-01-02T04:00:00Z", "Completed", 0))
    watch.until(lambda: (0, "COMPLETED") in watch.states("default/single"))
    done = watch.jobs("default/single")[-1]
    assert done.end_unix_ns == START_NS + 3355 * 10**9
    assert not watch.jobs("default/no-gpu")
    server.delete_pod("single")
    server.delete_pod("no-gpu")
    watch.read()
    assert watch.states("default/single")[-1] == (0, "COMPLETED")


def test_an_indexed_job_loses_a_pod_and_starts_its_next_run(server: KubeServer) -> None:
    watch = Watch(server)

    def create(name: str, index: int) -> None:
        labels = {
            "batch.kubernetes.io/job-name": "llm",
            "job-name": "llm",
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llm", "uid": "u1"}
        server.create_pod(name, labels, owner=owner | {"controller": True})

    create("llm-0-aaa", 0)
    create("llm-1-bbb", 1)
    server.run_pod("llm-0-aaa", "node2", started=START)
    watch.read()
    assert watch.states("default/llm") == [(0, "CONFIGURING")]
    server.run_pod("llm-1-bbb", "node1", started="2026-01-02T03:04:09Z")
    watch.until(lambda: (0, "RUNNING") in watch.states("default/llm"))
    job = watch.jobs("default/llm")[-1]
    assert job.ranks == {"node2": list(range(8)), "node1": list(range(8, 16))}
    assert job.start_unix_ns == START_NS + 4 * 10**9
    failed = ended("Failed", START, "2026-01-02T03:10:00Z", "Error", 137)
    server.set_status("llm-1-bbb", failed)
    watch.until(lambda: (0, "FAILED") in watch.states("default/llm"))
    server.delete_pod("llm-1-bbb")
    create("llm-1-ccc", 1)
    server.run_pod("llm-1-ccc", "node1", started="2026-01-02T03:12:00Z")
    watch.until(lambda: (1, "RUNNING") in watch.states("default/llm"))
    for name in ("llm-0-aaa", "llm-1-ccc"):
        server.delete_pod(name)
    watch.until(lambda: (1, "CANCELLED") in watch.states("default/llm"))


def test_a_pytorch_job_is_evicted_and_restarted_in_place(server: KubeServer) -> None:
    watch = Watch(server)

    def labels(role: str, index: int) -> dict[str, str]:
        return {
            "training.kubeflow.org/job-name": "gpt",
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": str(index),
        }

    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "gpt", "uid": "u2"}
    for name, role, index in (("gpt-worker-0", "worker", 0), ("gpt-master-0", "master", 0)):
        server.create_pod(name, labels(role, index), gpus=4, owner=owner | {"controller": True})
    server.run_pod("gpt-worker-0", "node1", started=START)
    server.run_pod("gpt-master-0", "node2", started=START)
    watch.until(lambda: (0, "RUNNING") in watch.states("default/gpt"))
    job = watch.jobs("default/gpt")[-1]
    assert job.ranks == {"node2": [0, 1, 2, 3], "node1": [4, 5, 6, 7]}
    assert job.gpus == {}  # half of a node's: the API does not say which
    server.set_status("gpt-worker-0", running("2026-01-02T03:20:00Z", restarts=1))
    watch.until(lambda: (1, "RUNNING") in watch.states("default/gpt"))
    assert (0, "FAILED") in watch.states("default/gpt")
    evicted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "drained",
    }
    server.set_status("gpt-worker-0", {"conditions": [evicted]})
    watch.until(lambda: (1, "PREEMPTED") in watch.states("default/gpt"))
    for name in ("gpt-worker-0", "gpt-master-0"):
        server.delete_pod(name)
    watch.read()
    assert watch.states("default/gpt")[-1] == (1, "PREEMPTED")


def test_nodes(server: KubeServer) -> None:
    watch = Watch(server)
    server.create_node("node3", gpus=4)
    watch.until(lambda: watch.node("node3") == "idle")
    server.set_node("node3", ready=False, gpus=4)
    watch.until(lambda: watch.node("node3") == "down")
    server.set_node("node3", ready=True, gpus=4)
    server.call("PATCH", "/api/v1/nodes/node3", {"spec": {"unschedulable": True}})
    watch.until(lambda: watch.node("node3") == "drained")


def test_a_token_without_rights_says_what_is_missing(server: KubeServer) -> None:
    watch = Watch(server, user="nobody")
    with pytest.raises(
        KubeError, match=r"refused /api/v1/pods \(403\).*cannot list.*grant its role"
    ):
        watch.read()
    assert watch.reader.counters.collector_errors == {"nodes forbidden": 1}


def test_a_wrong_token_is_told_from_one_without_rights(server: KubeServer, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("not-a-token")
    section = Kubernetes(api_url=server.url, token_file=str(wrong), ca_file=str(server.ca_file))
    reader = KubernetesReader(Context("test", "controller", "b"), section)
    with pytest.raises(KubeError, match=r"\(401\).*is the token still good"):
        reader.read(SystemClock().now())


def test_a_watch_that_was_cut_goes_on(server: KubeServer) -> None:
    watch = Watch(server)
    server.create_pod("steady", {})
    server.run_pod("steady", "node1", started=START)
    watch.until(lambda: (0, "RUNNING") in watch.states("default/steady"))
    server.stop()
    with pytest.raises(ServiceError):
        watch.read()
    server.start()
    server.set_status("steady", ended("Failed", START, "2026-01-02T03:10:00Z", "OOMKilled", 137))
    watch.until(lambda: (0, "OUT_OF_MEMORY") in watch.states("default/steady"))
    assert watch.states("default/steady").count((0, "RUNNING")) == 1
    assert isinstance(watch.events[-1], ClockEvent)


def test_a_version_that_the_server_forgot_is_listed_anew(server: KubeServer) -> None:
    server.create_pod("before", {})
    server.stop()
    server.start()  # it remembers nothing from before its start
    watch = Watch(server)
    watch.read()
    assert watch.reader._pods is not None
    watch.reader._pods.resource_version = "2"
    server.create_pod("after", {})
    server.delete_pod("before")
    watch.until(lambda: (0, "PENDING") in watch.states("default/after"))
    assert watch.reader.counters.collector_errors == {"/api/v1/pods expired": 1}
    assert watch.states("default/before")[-1] == (0, "CANCELLED")
