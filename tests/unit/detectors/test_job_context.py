"""What the job stage knows of one run: placement, steps, marks and its GPUs lately."""

import numpy as np
import pytest
from msgspec import structs

from stethoscope.detectors.job_context import (
    MAX_MARKS,
    MAX_STEPS,
    SM,
    TENSOR,
    JobContext,
    begin_second,
    place,
    take_gpus,
    take_host,
    take_log,
)
from stethoscope.schemas.events import JobEvent, Process
from stethoscope.schemas.findings import NS
from stethoscope.schemas.views import GpuView, HostView, LogView, Mark, Step

from .build import Job, at, megatron


def event(**fields: object) -> JobEvent:
    base: dict[str, object] = {"time_unix_ns": at(0), "job_id": "77", "state": "RUNNING"}
    return JobEvent(**(base | fields))  # type: ignore[arg-type]  # any of the fields


def view(*gpus: tuple[int, str, float], node: str = "node01", secs: int = 1) -> GpuView:
    return GpuView(
        job="k",
        node=node,
        second_unix_ns=at(secs),
        indices=[g[0] for g in gpus],
        uuids=[g[1] for g in gpus],
        metrics={"sm_active_ratio": [g[2] for g in gpus]},
    )


def context(**fields: object) -> JobContext:
    made = JobContext("k", "default", "77", at(0))
    place(made, event(**fields))
    return made


def test_sources_of_one_node_do_not_wipe_out_each_other() -> None:
    job = context()
    rank = Process(name="python", pid=7, job_id="77", rank=0)
    on_gpu = Process(name="python", pid=7, job_id="77", rank=0, gpu_uuid="GPU-a")
    sources: list[tuple[str, dict[str, float | None], list[Process]]] = [
        ("host", {"cpu_busy_ratio": 0.5}, [rank]),
        ("gpu_nvml", {"gpu_count": 8.0}, [on_gpu]),
        ("ib_sysfs", {"ib_port_count": 9.0}, []),
    ]
    for stream, metrics, processes in sources:
        seen = HostView(job="k", node="node01", second_unix_ns=at(1), metrics=metrics)
        take_host(job, structs.replace(seen, processes=processes, stream=stream))
    assert job.host["node01"] == {"cpu_busy_ratio": 0.5, "gpu_count": 8.0, "ib_port_count": 9.0}
    assert job.processes["node01"] == [on_gpu]
    take_host(job, structs.replace(seen, metrics={}, processes=[], stream="gpu_nvml"))
    assert job.processes["node01"] == [rank]


def test_gpus_by_index_get_their_uuids_when_seen() -> None:
    job = context(gpus={"node01": [2, 3]}, ranks={"node01": [0, 1]})
    take_gpus(job, view((2, "GPU-c", 0.2), (3, "GPU-d", 0.3)), at(1))
    assert [(g.index, g.uuid, g.rank) for g in job.gpus] == [(2, "GPU-c", 0), (3, "GPU-d", 1)]
    assert job.second(at(1))[:, SM].tolist() == [0.2, 0.3]


def test_gpus_by_uuid_get_their_index_when_seen() -> None:
    job = context(gpus={"node01": ["GPU-d", "GPU-c"]}, ranks={"node01": [0, 1]})
    take_gpus(job, view((2, "GPU-c", 0.2), (3, "GPU-d", 0.3)), at(1))
    assert [(g.index, g.uuid, g.rank) for g in job.gpus] == [(3, "GPU-d", 0), (2, "GPU-c", 1)]
    assert job.second(at(1))[:, SM].tolist() == [0.3, 0.2]
    assert job.rank_subject(0).gpu_index == 3


def test_gpus_of_others_are_left_out() -> None:
    job = context(gpus={"node01": [0]})
    take_gpus(job, view((0, "GPU-a", 0.1), (1, "GPU-b", 0.2)), at(1))
    assert len(job.gpus) == 1


def test_without_devices_the_job_has_what_its_nodes_show() -> None:
    job = context(nodes=["node01", "node02"])
    take_gpus(job, view((0, "GPU-x", 0.9), node="node02"), at(1))
    take_gpus(job, view((1, "GPU-b", 0.2), (0, "GPU-a", 0.1)), at(2))
    take_gpus(job, view((0, "GPU-x", 0.9), node="node02"), at(2))
    assert [(g.node, g.index) for g in job.gpus] == [("node01", 0), ("node01", 1), ("node02", 0)]
    assert job.second(at(2))[:, SM].tolist() == [0.1, 0.2, 0.9]


def test_ranks_that_are_told_later_are_taken_over_and_nothing_is_forgotten() -> None:
    job = context(gpus={"node01": [0], "node02": [0]})
    take_gpus(job, view((0, "GPU-a", 0.5)), at(1))
    job.healthy_secs = 30
    assert [g.rank for g in job.gpus] == [None, None]
    place(job, event(gpus={"node01": [0], "node02": [0]}, ranks={"node01": [1], "node02": [0]}))
    assert [g.rank for g in job.gpus] == [1, 0]
    assert job.healthy_secs == 30
    assert job.second(at(1))[0, SM] == 0.5


def test_the_same_placement_said_again_forgets_nothing() -> None:
    same = {"gpus": {"node01": ["GPU-d", "GPU-c"]}}
    job = context(**same)
    take_gpus(job, view((2, "GPU-c", 0.2), (3, "GPU-d", 0.3)), at(1))
    job.healthy_secs = 30
    place(job, event(**same))
    assert (job.healthy_secs, [g.index for g in job.gpus]) == (30, [3, 2])


def test_other_gpus_are_another_beginning() -> None:
    job = context(gpus={"node01": [0]})
    job.healthy_secs = 30
    place(job, event(gpus={"node01": [1]}))
    assert job.healthy_secs == 0


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "FAILED", "COMPLETED", "TIMEOUT"])
def test_ends_are_read_whatever_slurm_adds(state: str) -> None:
    job = context()
    assert job.running()
    place(job, event(state=state, end_unix_ns=at(9)))
    assert job.ended_ns == at(9)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_other_states_are_no_ends(state: str) -> None:
    assert context(state=state).running()


def test_the_lowest_rank_that_prints_leads() -> None:
    job = context()
    for rank in (1, 0, 1, None):
        steps = [Step(at(1), 10, 0.1, rank=rank)]
        take_log(job, LogView(job="k", node="node01", second_unix_ns=at(1), steps=steps))
    assert job.lead == ("node01", 0)
    assert [s.rank for s in job.steps] == [0]


def test_an_iteration_that_goes_back_begins_a_segment() -> None:
    job = Job()
    job.tick([(0.1, megatron(10)), (0.2, megatron(11))])
    assert job.context.segment_ns == at(0.1)
    job.tick([(0.1, megatron(3)), (0.2, megatron(4))])
    assert job.context.segment_ns == at(1.1)


def test_all_marks_of_a_second_are_seen_and_then_trimmed() -> None:
    job = context()
    marks = [Mark(at(1), "oom", r, "text") for r in range(3000)]
    begin_second(job, at(1))
    take_log(job, LogView(job="k", node="node01", second_unix_ns=at(1), marks=marks))
    assert len(job.fresh_marks("oom")) == 3000
    begin_second(job, at(2))
    assert job.fresh_marks("oom") == []
    assert len(job.marks) == MAX_MARKS


def test_steps_are_bounded() -> None:
    job = Job()
    job.run(30, 0.01)
    assert len(job.context.steps) == MAX_STEPS
    assert job.context.step_count == 3000


def test_windows_are_means_of_what_is_known() -> None:
    job = context(gpus={"node01": [0]})
    for secs, value in ((1, 0.2), (3, 0.4)):
        begin_second(job, at(secs))
        take_gpus(job, view((0, "GPU-a", value)), at(secs))
    assert job.window(at(3), 3)[0, SM] == pytest.approx(0.3)
    assert np.isnan(job.window(at(3), 3)[0, TENSOR])
    assert job.latest(at(4), 5)[0, SM] == 0.4
    assert np.isnan(job.latest(at(40), 5)[0, SM])


def test_subjects_name_the_place() -> None:
    job = context(gpus={"node01": [0, 1]}, nodes=["node01"], ranks={"node01": [4, 5]})
    assert job.subject().node == "node01"
    assert job.rank_subject(5).gpu_index == 1
    assert job.rank_subject(99).rank == 99
    many = context(nodes=["node01", "node02"])
    assert many.subject().node is None
    assert structs.asdict(many.subject())["job_id"] == "77"


def test_the_ring_forgets_after_a_minute() -> None:
    job = context(gpus={"node01": [0]})
    take_gpus(job, view((0, "GPU-a", 0.5)), at(1))
    begin_second(job, at(61))
    assert np.isnan(job.second(at(1))[0, SM])
    assert at(61) - at(1) == 60 * NS
