import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.job_changes import Seen
from stethoscope.agents.kube_client import in_cluster
from stethoscope.agents.kube_jobs import KubeJobs
from stethoscope.agents.kube_pods import Pod, gpu_count, job_name, parse_time, pod_state
from stethoscope.schemas.events import JobEvent

NS = 10**9
NOW_NS = 1_800_000_000 * NS
GPUS = ["nvidia.com/gpu*", "nvidia.com/mig-*"]
START = "2026-01-02T03:04:05Z"


def pod(
    name: str = "p",
    uid: str = "u",
    labels: dict[str, str] | None = None,
    *,
    gpus: int = 8,
    node: str = "",
    status: dict[str, object] | None = None,
    env: dict[str, str] | None = None,
    created: str = START,
    **metadata: object,
) -> Pod:
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    limits = {"nvidia.com/gpu": str(gpus), "cpu": "500m"}
    body = {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": uid,
            "labels": labels or {},
            "creationTimestamp": created,
            **metadata,
        },
        "spec": {
            "nodeName": node,
            "containers": [{"env": variables, "resources": {"limits": limits}}],
        },
        "status": status or {"phase": "Pending"},
    }
    return msgspec.convert(body, Pod)


def up(restarts: int = 0, started: str = START) -> dict[str, object]:
    container = {"restartCount": restarts, "state": {"running": {"startedAt": started}}}
    return {"phase": "Running", "startTime": started, "containerStatuses": [container]}


def down(phase: str, reason: str = "", finished: str = "2026-01-02T04:00:00Z") -> dict[str, object]:
    over = {"startedAt": START, "finishedAt": finished, "reason": reason}
    return {"phase": phase, "containerStatuses": [{"state": {"terminated": over}}]}


def jobs_of(*pods: Pod) -> JobEvent:
    jobs = KubeJobs("c", GPUS)
    jobs.replace_all(pods)
    (event,) = jobs.jobs({"n1": 8, "n2": 8}, NOW_NS)
    return event


def test_a_jobs_name_comes_from_the_widest_owner() -> None:
    owner = [{"kind": "Job", "name": "set-workers-0", "uid": "o", "controller": True}]
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "set",
        "jobset.sigs.k8s.io/restart-attempt": "2",
        "batch.kubernetes.io/job-name": "set-workers-0",
    }
    assert job_name(pod(labels=labels, ownerReferences=owner)).job_id == "ml/set"
    assert job_name(pod(labels=labels)).attempt == 2
    assert job_name(pod(ownerReferences=owner)).job_id == "ml/set-workers-0"
    assert job_name(pod(labels={"volcano.sh/job-name": "v"})).job_id == "ml/v"
    assert job_name(pod("bare")).job_id == "ml/bare"


def test_gpus_are_counted_by_resource() -> None:
    assert gpu_count(pod(gpus=4), GPUS) == 4
    assert gpu_count(pod(gpus=4), ["huawei.com/Ascend*"]) == 0
    assert KubeJobs("c", ["x"]).jobs({}, 0) == []


def test_states_in_slurms_words() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    taint = target | {"reason": "DeletionByTaintManager"}
    cases = [
        (pod(), "PENDING"),
        (pod(node="n1"), "CONFIGURING"),
        (pod(node="n1", status=up()), "RUNNING"),
        (pod(status=down("Succeeded")), "COMPLETED"),
        (pod(status=down("Failed", "Error")), "FAILED"),
        (pod(status=down("Failed", "OOMKilled")), "OUT_OF_MEMORY"),
        (pod(status={"phase": "Failed", "reason": "DeadlineExceeded"}), "TIMEOUT"),
        (pod(status={"phase": "Failed", "reason": "Evicted"}), "PREEMPTED"),
        (pod(status={"phase": "Failed", "reason": "NodeLost"}), "NODE_FAIL"),
        (pod(node="n1", status=up() | {"conditions": [target]}), "PREEMPTED"),
        (pod(node="n1", status=up() | {"conditions": [taint]}), "NODE_FAIL"),
        (pod(node="n1", status=up(), deletionTimestamp=START), "CANCELLED"),
    ]
    for made, state in cases:
        assert pod_state(made) == state


def test_ranks_follow_the_leader_then_the_index() -> None:
    def worker(role: str, index: int, node: str) -> Pod:
        labels = {
            "training.kubeflow.org/job-name": "gpt",
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": str(index),
        }
        return pod(f"{role}-{index}", f"{role}{index}", labels, gpus=2, node=node, status=up())

    event = jobs_of(worker("worker", 0, "n1"), worker("worker", 1, "n1"), worker("master", 0, "n2"))
    assert event.ranks == {"n2": [0, 1], "n1": [2, 3, 4, 5]}
    assert (event.nodes, event.state, event.name) == (["n2", "n1"], "RUNNING", "gpt")
    assert event.gpus == {}


def test_ranks_by_environment_and_none_where_places_are_unknown() -> None:
    labels = {"job-name": "j"}
    first = pod("a", "a", labels, node="n1", status=up(), env={"NODE_RANK": "1"})
    second = pod("b", "b", labels, node="n2", status=up(), env={"NODE_RANK": "0"})
    assert jobs_of(first, second).ranks == {"n2": list(range(8)), "n1": list(range(8, 16))}
    unknown = pod("b", "b", labels, node="n2", status=up())
    assert jobs_of(first, unknown).ranks == {}


def test_a_job_with_some_of_its_pods_up_is_not_yet_running() -> None:
    labels = {"job-name": "j"}
    waiting, running = pod("a", "a", labels), pod("b", "b", labels, node="n1", status=up())
    event = jobs_of(waiting, running)
    assert (event.state, event.start_unix_ns) == ("CONFIGURING", None)


def test_runs_are_counted_by_restarts_and_by_pods_in_ones_place() -> None:
    jobs = KubeJobs("c", GPUS)
    labels = {"job-name": "j", "batch.kubernetes.io/job-completion-index": "0"}
    seen = []
    jobs.put(pod("a", "1", labels, node="n1", status=up()))
    seen += jobs.jobs({}, NOW_NS)
    jobs.put(pod("a", "1", labels, node="n1", status=up(2, "2026-01-02T05:00:00Z")))
    seen += jobs.jobs({}, NOW_NS)
    jobs.put(pod("b", "2", labels, node="n2", status=up(), created="2026-01-02T06:00:00Z"))
    seen += jobs.jobs({}, NOW_NS)
    assert [event.restart for event in seen] == [0, 2, 3]
    assert [event.nodes for event in seen] == [["n1"], ["n1"], ["n2"]]


def test_runs_are_counted_on_after_a_restart() -> None:
    running = pod("a", "1", {"job-name": "j"}, node="n1", status=up())
    start_ns = 1767323045 * NS
    for known, restart in (
        (Seen("ml/j", 3, "RUNNING", start_ns), 3),
        (Seen("ml/j", 3, "PENDING", None), 3),
        (Seen("ml/j", 3, "RUNNING", start_ns - NS), 4),
        (Seen("ml/other", 3, "RUNNING", start_ns), 0),
    ):
        jobs = KubeJobs("c", GPUS)
        jobs.resume([known])
        jobs.put(running)
        assert [event.restart for event in jobs.jobs({}, NOW_NS)] == [restart]
        assert [event.restart for event in jobs.jobs({}, NOW_NS)] == [restart]


def test_an_end_without_a_time_keeps_the_moment_it_was_seen() -> None:
    jobs = KubeJobs("c", GPUS)
    jobs.put(pod(node="n1", status={"phase": "Failed", "reason": "NodeLost"}))
    first, second = jobs.jobs({}, NOW_NS), jobs.jobs({}, NOW_NS + NS)
    assert first == second
    assert first[0].end_unix_ns == NOW_NS


def test_a_job_whose_pods_are_gone_was_deleted_or_taken_away() -> None:
    jobs = KubeJobs("c", GPUS)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    taken = pod("t", "1", node="n1", status=up() | {"conditions": [target]})
    deleted = pod("d", "2", node="n1", status=up())
    jobs.replace_all([taken, deleted])
    jobs.jobs({}, NOW_NS)
    jobs.drop(taken)
    jobs.drop(deleted)
    assert (jobs.end_state("ml/t"), jobs.end_state("ml/d")) == ("PREEMPTED", "CANCELLED")
    assert jobs.jobs({}, NOW_NS) == []
    jobs.jobs({}, NOW_NS + 4000 * NS)
    assert jobs._memory == {}


def test_outside_of_a_pod_there_is_no_server() -> None:
    assert in_cluster({}, 1.0) is None


def test_times() -> None:
    assert parse_time("2026-01-02T03:04:05Z") == 1767323045 * NS
    assert parse_time("2026-01-02T03:04:05.25+01:00") == 1767319445 * NS + NS // 4
    assert parse_time(None) is None
    assert parse_time("2026-01-02") is None


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_none(text: str) -> None:
    parse_time(text)


label = st.sampled_from(
    ["job-name", "batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-type"]
)
made = st.builds(
    pod,
    st.sampled_from("ab"),
    st.sampled_from("uvw"),
    st.dictionaries(label, st.sampled_from(["0", "1", "x", "²", ""]), max_size=3),
    gpus=st.integers(0, 9),
    node=st.sampled_from(["", "n1", "n2"]),
    status=st.sampled_from([{"phase": "Pending"}, up(), up(3), down("Failed"), down("Succeeded")]),
)


@given(st.lists(st.lists(made, max_size=4), max_size=6))
def test_any_pods_make_jobs(rounds: list[list[Pod]]) -> None:
    jobs = KubeJobs("c", GPUS)
    for index, pods in enumerate(rounds):
        jobs.replace_all(pods)
        events = jobs.jobs({"n1": 8}, NOW_NS + index)
        assert len({event.job_id for event in events}) == len(events)
        for event in events:
            assert event.time_unix_ns <= NOW_NS + index
