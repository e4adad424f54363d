import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.command import CommandError, run
from stethoscope.agents.reader import Context
from stethoscope.agents.slurm import SlurmReader
from stethoscope.agents.slurm_json import JobFacts, gpu_indices, gpus_of, parse_queue, to_event
from stethoscope.agents.slurm_text import (
    node_state,
    parse_duration,
    parse_fields,
    parse_jobs,
    parse_nodes,
    parse_sacct,
    parse_squeue,
    parse_time,
)
from stethoscope.schemas.agent_config import Slurm
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import ClockEvent, Event, JobEvent, TopologyEvent, event_id

NS = 10**9
SHARED = Path(__file__).parents[4] / "shared" / "data" / "slurm"
START = 1_700_000_000


def listed(**fields: object) -> dict[str, object]:
    job: dict[str, object] = {
        "job_id": 7,
        "job_state": "RUNNING",
        "name": "llm",
        "user_name": "ada",
        "partition": "train",
        "nodes": "gpu[01-02]",
        "restart_cnt": 0,
        "start_time": START,
        "end_time": START + 7200,
        "submit_time": START - 60,
        "time_limit": 120,
        "tasks": 16,
        "gres_detail": ["gpu:h100:8(IDX:0-7)", "gpu:h100:8(IDX:0-7)"],
    }
    return job | fields


def event_of(**fields: object) -> JobEvent:
    jobs, wrong = parse_queue(json.dumps({"jobs": [listed(**fields)]}).encode())
    assert wrong == 0
    return to_event(jobs[0], "c", "checkpoint_dir", (START + 100) * NS)


def test_a_running_job() -> None:
    event = event_of(comment="a=b, checkpoint_dir=/ck/7")
    assert (event.job_id, event.state, event.restart) == ("7", "RUNNING", 0)
    assert event.nodes == ["gpu01", "gpu02"]
    assert event.gpus == {"gpu01": list(range(8)), "gpu02": list(range(8))}
    assert event.ranks == {"gpu01": list(range(8)), "gpu02": list(range(8, 16))}
    assert (event.start_unix_ns, event.end_unix_ns) == (START * NS, None)
    assert (event.time_limit_secs, event.checkpoint_dir) == (7200.0, "/ck/7")


def test_ranks_are_told_only_where_they_are_certain() -> None:
    assert event_of(tasks=2).ranks == {}
    assert event_of(tasks=11, gres_detail=["gpu:8(IDX:0-7)", "gpu:3(IDX:0-2)"]).ranks == {}


def test_newer_versions_write_numbers_as_objects_and_states_as_lists() -> None:
    number = {"set": True, "infinite": False, "number": START}
    event = event_of(
        job_state=["COMPLETED", "COMPLETING"],
        start_time=number,
        end_time=number | {"number": START + 50},
        time_limit=number | {"infinite": True},
        tasks={"set": False, "infinite": False, "number": 0},
    )
    assert (event.state, event.time_limit_secs) == ("COMPLETED", None)
    assert event.end_unix_ns == (START + 50) * NS


def test_a_pending_job_has_no_start_though_slurm_expects_one() -> None:
    event = event_of(job_state="PENDING", nodes="", gres_detail=[])
    assert (event.nodes, event.start_unix_ns, event.end_unix_ns) == (None, None, None)
    assert event.time_unix_ns == (START - 60) * NS


def test_one_bad_job_does_not_cost_the_others() -> None:
    queue = {"jobs": [listed(), {"job_id": "seven"}, listed(nodes="gpu[1-"), listed(job_id=8)]}
    jobs, wrong = parse_queue(json.dumps(queue).encode())
    assert ([job.job_id for job in jobs], wrong) == (["7", "8"], 2)
    with pytest.raises(ValueError, match="squeue --json"):
        parse_queue(b"slurm_load_jobs error")


@pytest.mark.parametrize(
    ("detail", "indices"),
    [
        ("gpu:h100:8(IDX:0-7)", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("gpu:a100:2(IDX:0,3),nic:1(IDX:0)", [0, 3]),
        ("gpu:1(IDX:5)", [5]),
        ("gpu:2(IDX:N/A)", []),
        ("(null)", []),
        ("", []),
    ],
)
def test_gpu_indices(detail: str, indices: list[int]) -> None:
    assert gpu_indices(detail) == indices


def test_gpus_run_along_the_nodes() -> None:
    assert gpus_of(["a", "b"], ["gpu:1(IDX:2)", ""]) == {"a": [2]}


def test_jobs_by_scontrol() -> None:
    line = (
        "JobId=7 JobName=my job UserId=ada(1000) GroupId=x Priority=4 JobState=RUNNING Reason=None "
        "Requeue=1 Restarts=2 TimeLimit=1-02:00:00 SubmitTime=2023-11-14T22:13:00 "
        "StartTime=2023-11-14T22:13:20 EndTime=Unknown Partition=train NodeList=gpu[01-03] "
        "NumNodes=3 NumTasks=3 Account=(null) JOB_GRES=gpu:h100:10 "
        "Nodes=gpu[01-02] CPU_IDs=0 Mem=0 GRES=gpu:h100:4(IDX:0-3) "
        "Nodes=gpu03 CPU_IDs=0 Mem=0 GRES=gpu:h100:2(IDX:6-7) "
        "Command=/a b/job.sh Comment=checkpoint_dir=/ck x=1"
    )
    (job,), wrong = parse_jobs(line + "\nJobId=x\n\n")
    assert wrong == 1
    assert (job.job_id, job.restart, job.name, job.user) == ("7", 2, "my job", "ada")
    assert (job.start_secs, job.end_secs, job.time_limit_secs) == (START, None, 93600.0)
    assert job.gpus == {"gpu01": [0, 1, 2, 3], "gpu02": [0, 1, 2, 3], "gpu03": [6, 7]}
    assert job.account is None
    event = to_event(job, "c", "checkpoint_dir", (START + 9) * NS)
    assert event.checkpoint_dir == "/ck"


def test_jobs_by_squeue() -> None:
    text = (
        "7|RUNNING|ada|(null)|train|gpu[01-02]|2023-11-14T22:12:20|2023-11-14T22:13:20|N/A"
        "|2:00:00|a|name\nnonsense\n"
    )
    (job,), wrong = parse_squeue(text)
    assert wrong == 1
    assert (job.name, job.start_secs, job.nodelist) == ("a|name", START, "gpu[01-02]")


def test_the_last_state_by_sacct() -> None:
    text = (
        "7|NODE_FAIL|2023-11-14T22:00:00|2023-11-14T22:01:00\n"
        "7|CANCELLED by 1000|2023-11-14T22:13:20|2023-11-14T22:13:30\n"
    )
    assert parse_sacct(text) == ("CANCELLED", START, START + 10)
    assert parse_sacct("") is None


def test_nodes() -> None:
    text = (
        "NodeName=gpu01 Arch=x86_64 Gres=gpu:h100:8(S:0-1),nic:2 NodeAddr=192.0.2.1 State=IDLE\n"
        "NodeName=gpu02 NodeAddr=gpu02 Gres=(null) State=IDLE+DRAIN "
        "Reason=xid 79 [root@2026-11-29T16:33:18]\nnonsense\n"
    )
    nodes = parse_nodes(text)
    assert (nodes["gpu01"].ip, nodes["gpu01"].gpu_count, nodes["gpu01"].state) == (
        "192.0.2.1",
        8,
        "idle",
    )
    assert (nodes["gpu02"].ip, nodes["gpu02"].gpu_count) == (None, None)
    assert (nodes["gpu02"].state, nodes["gpu02"].reason) == ("drained", "xid 79")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("IDLE", "idle"),
        ("MIXED", "mixed"),
        ("ALLOCATED+DRAIN", "draining"),
        ("IDLE+DRAIN", "drained"),
        ("DOWN*", "down"),
        ("DOWN+NOT_RESPONDING", "down"),
        ("IDLE+NOT_RESPONDING", "down"),
        ("IDLE+MAINTENANCE", "maintenance"),
        ("IDLE+POWERED_DOWN", "powered_down"),
    ],
)
def test_node_states(text: str, state: str) -> None:
    assert node_state(text) == state


def test_the_recorded_outputs() -> None:
    if not SHARED.is_dir():
        pytest.skip("the recorded outputs of Slurm are not here")
    now_ns = 2 * START * NS
    by_json, wrong = parse_queue((SHARED / "squeue.json").read_bytes())
    assert wrong == 0
    running = to_event(by_json[0], "c", "run", now_ns)
    assert running.gpus == {"gpu01": list(range(8)), "gpu02": list(range(8))}
    assert running.checkpoint_dir == "abc"
    assert [job.state for job in by_json] == ["RUNNING", "PENDING", "PENDING", "PENDING"]
    blocks = (SHARED / "scontrol_show_job.txt").read_text().split("\n\n")
    flat = "\n".join(" ".join(block.split()) for block in blocks)
    by_text, wrong = parse_jobs(flat)
    assert wrong == 0
    assert {(job.job_id, job.state) for job in by_text} == {(j.job_id, j.state) for j in by_json}
    nodes = (SHARED / "scontrol_show_node_drained.txt").read_text().split("\n\n")
    states = parse_nodes("\n".join(" ".join(block.split()) for block in nodes))
    assert {name: node.state for name, node in states.items()} == {
        "gpu01": "idle",
        "gpu02": "drained",
    }


class Controller:
    """A made-up Slurm behind the reader's commands."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, object]] = []
        self.nodes = "NodeName=gpu01 State=IDLE\n"
        self.old: dict[str, str] = {}
        self.has_json = True
        self.reader = SlurmReader(Context("c", "ctl", "b"), Slurm())
        self.reader._run = self._run  # type: ignore[method-assign]  # in place of the commands
        self.clock = FakeClock(unix_ns=(START + 100) * NS)

    def read(self) -> list[Event]:
        self.clock.advance(5)
        return self.reader.read(self.clock.now())

    def states(self) -> list[tuple[str, int, str]]:
        events = (event for event in self.read() if isinstance(event, JobEvent))
        return [(event.job_id, event.restart, event.state) for event in events]

    def _run(self, program: str, *arguments: str) -> bytes:
        if program == "squeue" and "--json" in arguments:
            if not self.has_json:
                raise CommandError("squeue: unrecognized option '--json'", "")
            return json.dumps({"jobs": self.jobs}).encode()
        if program == "scontrol" and "node" in arguments:
            return self.nodes.encode()
        if program == "scontrol" and arguments[-1] in self.old:
            return self.old[arguments[-1]].encode()
        if program == "scontrol" and arguments[-1] == "job":
            return b"JobId=7 JobState=RUNNING NodeList=gpu01 StartTime=2023-11-14T22:13:20\n"
        message = f"{program}: Invalid job id specified"
        raise CommandError(message, "")


def test_only_changes_are_told_and_the_clock_always() -> None:
    slurm = Controller()
    slurm.jobs = [listed()]
    first = slurm.read()
    assert [type(event) for event in first] == [TopologyEvent, JobEvent, ClockEvent]
    assert [type(event) for event in slurm.read()] == [ClockEvent]
    slurm.nodes = "NodeName=gpu01 State=DOWN* Reason=dead [a@b]\n"
    changed = slurm.read()[0]
    assert isinstance(changed, TopologyEvent)
    assert changed.nodes["gpu01"].state == "down"


def test_a_requeued_job_ends_its_first_run() -> None:
    slurm = Controller()
    slurm.jobs = [listed()]
    slurm.read()
    slurm.jobs = [listed(job_state="COMPLETING", restart_cnt=1, nodes="gpu01")]
    assert slurm.states() == [("7", 0, "REQUEUED")]
    slurm.jobs = [listed(job_state="PENDING", restart_cnt=1, nodes="", gres_detail=[])]
    assert slurm.states() == [("7", 1, "PENDING")]


def test_a_job_requeued_off_a_dead_node_failed_with_it() -> None:
    slurm = Controller()
    slurm.jobs = [listed()]
    slurm.read()
    slurm.nodes = "NodeName=gpu02 State=DOWN*\n"
    slurm.jobs = [listed(job_state="PENDING", restart_cnt=1, nodes="", gres_detail=[])]
    assert slurm.states() == [("7", 0, "NODE_FAIL"), ("7", 1, "PENDING")]


def test_a_job_that_is_listed_no_more_is_asked_for() -> None:
    slurm = Controller()
    slurm.jobs = [listed()]
    slurm.read()
    slurm.jobs = []
    slurm.old["7"] = (
        "JobId=7 JobState=TIMEOUT Restarts=0 NodeList=gpu01 StartTime=2023-11-14T22:13:20 "
        "EndTime=2023-11-14T22:14:30\n"
    )
    (end,) = [event for event in slurm.read() if isinstance(event, JobEvent)]
    assert (end.state, end.end_unix_ns) == ("TIMEOUT", (START + 70) * NS)
    assert end.gpus == {"gpu01": list(range(8)), "gpu02": list(range(8))}
    assert slurm.states() == []


def test_a_job_that_nobody_knows_any_more_has_ended_all_the_same() -> None:
    slurm = Controller()
    slurm.jobs = [listed()]
    slurm.read()
    slurm.jobs = []
    assert slurm.states() == [("7", 0, "COMPLETED")]
    assert slurm.reader.counters.collector_errors == {"end_unseen": 1}


def test_a_restarted_reader_repeats_ids_and_ends_what_ended() -> None:
    slurm, again = Controller(), Controller()
    slurm.jobs = again.jobs = [listed()]
    first = slurm.read()
    again.reader.restore("not json")
    repeated = again.read()
    assert event_id(repeated[1]) == event_id(first[1])
    assert repeated[1] == first[1]
    late = Controller()
    late.reader.restore(slurm.reader.checkpoint())
    assert late.states() == [("7", 0, "COMPLETED")]


def test_without_json_scontrol_is_asked() -> None:
    slurm = Controller()
    slurm.has_json = False
    assert slurm.states() == [("7", 0, "RUNNING")]


def test_no_slurm_here(tmp_path: Path) -> None:
    reader = SlurmReader(Context("c", "ctl", "b"), Slurm(bin_dir=str(tmp_path)))
    with pytest.raises(ReaderUnsupported, match=r"slurm\.bin_dir"):
        reader.probe()
    with pytest.raises(ServiceError, match="squeue is not here"):
        reader.read(FakeClock().now())


def test_commands_fail_in_one_line() -> None:
    assert run(["sh", "-c", "echo $X"], 5, {"X": "y"}) == b"y\n"
    with pytest.raises(CommandError, match="sh ended with 3: no"):
        run(["sh", "-c", "echo first >&2; echo no >&2; exit 3"], 5)
    with pytest.raises(ServiceError, match=r"no answer within 0\.1 s"):
        run(["sleep", "60"], 0.1)
    with pytest.raises(ServiceError, match="none: No such file"):
        run(["/none"], 5)


@given(st.text(max_size=300))
def test_any_text_is_read_or_counted(text: str) -> None:
    parse_fields(text)
    parse_jobs(text)
    parse_squeue(text)
    parse_nodes(text)
    parse_sacct(text)
    parse_time(text)
    parse_duration(text)
    gpu_indices(text)
    node_state(text)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_queue_or_refused(body: bytes) -> None:
    try:
        parse_queue(body)
    except ValueError:
        return


words = st.text("ABCabc 0123=[]-,()", max_size=12)


@given(words, words, words, st.integers(0, 2**40))
def test_any_job_is_an_event_or_refused(state: str, nodes: str, comment: str, secs: int) -> None:
    job = JobFacts(
        job_id="1", state=state, nodelist=nodes, comment=comment, start_secs=secs, end_secs=secs
    )
    try:
        event = to_event(job, "c", "dir", START * NS)
    except ValueError:
        return
    assert event.time_unix_ns <= START * NS
