"""A running job that has stopped making progress."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec import structs

from stethoscope.detectors.job_hang import JobHang, JobHangConfig
from stethoscope.schemas.findings import Finding

from .build import HEALTHY, IDLE, SPINNING, Job, Metrics, at, megatron

BLIND: Mapping[str, float | None] = dict.fromkeys(HEALTHY)


def stepping(secs: int = 20) -> Job:
    job = Job(JobHang(JobHangConfig()))
    assert job.run(secs) == []
    return job


def wait(
    job: Job,
    secs: int,
    gpus: Metrics | Sequence[Metrics] | None,
    cpu: float = 0.1,
    every: int = 1,
    **host: float,
) -> list[Finding]:
    """Seconds without a line; a scrape only every so many seconds."""
    seconds = (gpus if i % every == 0 else None for i in range(secs))
    return [f for second in seconds for f in job.tick([], second, cpu, **host)]


def test_the_one_that_idles_while_its_peers_spin_is_the_suspect() -> None:
    job = stepping()
    (only,) = wait(job, 60, [SPINNING, IDLE])
    assert (only.cause, only.subject.gpu_index, only.subject.rank) == ("job_hang", 1, 1)
    assert only.started_unix_ns == at(21)
    assert only.observed_unix_ns <= at(81)
    assert only.score is not None
    assert only.score >= 1.0
    assert [s.subject.gpu_index for s in only.suspects] == [1]
    assert "1 of 2 GPUs spin" in only.evidence


def test_where_all_spin_the_job_is_the_subject() -> None:
    (only,) = wait(stepping(), 60, SPINNING)
    assert (only.subject.job_id, only.subject.gpu_index) == ("77", None)


def test_where_all_idle_the_job_is_the_subject() -> None:
    (only,) = wait(stepping(), 60, IDLE)
    assert (only.subject.gpu_index, only.observed_unix_ns <= at(80)) == (None, True)


def test_a_job_that_never_stepped_but_waits_for_a_rank_hangs() -> None:
    job = Job(JobHang(JobHangConfig()))
    (only,) = wait(job, 60, [SPINNING, IDLE])
    assert only.subject.gpu_index == 1


def test_without_activity_the_power_tells_a_spinning_gpu_from_a_busy_one() -> None:
    blind = SPINNING | dict.fromkeys(("sm_active_ratio", "tensor_active_ratio"))
    # The last known activity counts for as long as a slow exporter's period.
    (only,) = wait(stepping(), 90, [blind | {"power_watts": 130.0}, IDLE])
    assert only.subject.gpu_index == 1


def test_gpus_that_compute_without_a_step_for_twenty_minutes_are_one_too() -> None:
    job = stepping()
    assert wait(job, 1190, HEALTHY) == []
    (only,) = wait(job, 20, HEALTHY)
    assert "though GPUs compute" in only.evidence


def test_it_clears_when_the_job_steps_again_and_by_its_end() -> None:
    job = stepping()
    wait(job, 60, [SPINNING, IDLE])
    assert [f.cleared for f in job.run(10)] == [True]
    job = stepping()
    wait(job, 60, [SPINNING, IDLE])
    assert [f.cleared for f in job.end()] == [True]


@pytest.mark.parametrize("every", [5, 15])
def test_rare_scrapes_see_it_too_and_it_stays(every: int) -> None:
    job = stepping()
    found = wait(job, 180, [SPINNING, IDLE], every=every)
    assert [f.cleared for f in found] == [False]


# What looks like a hang and is none.


@pytest.mark.parametrize(
    "gpus",
    [
        HEALTHY,
        [HEALTHY, IDLE],
        SPINNING | {"nvlink_tx_bytes_per_sec": 1e9},
        SPINNING | {"pcie_tx_bytes_per_sec": 1e9},
        SPINNING | {"sm_active_ratio": 0.9},
        IDLE | {"gpu_utilization_ratio": 1.0, "sm_active_ratio": None, "power_watts": 500.0},
        BLIND,
        None,
    ],
    ids=["works", "one works", "nvlink", "pcie", "sms", "no gpm", "blanks", "no scrape"],
)
def test_quiet_while_anything_moves_or_nothing_is_known(
    gpus: Metrics | Sequence[Metrics] | None,
) -> None:
    assert wait(stepping(), 300, gpus) == []


def test_a_checkpoint_that_is_being_written_may_take_ten_minutes() -> None:
    job = stepping()
    job.tick(["saving checkpoint at iteration 400 to ./ckpt"], [SPINNING, IDLE])
    assert wait(job, 550, [SPINNING, IDLE]) == []
    assert [f.cause for f in wait(job, 100, [SPINNING, IDLE])] == ["job_hang"]


@pytest.mark.parametrize("secs", [90, 595])
def test_the_end_of_a_long_save_is_no_hang(secs: int) -> None:
    job = stepping()
    job.tick(["saving checkpoint at iteration 200 to ./ckpt"], IDLE)
    wait(job, secs, IDLE)
    job.tick(["  successfully saved checkpoint at iteration 200 to ./ckpt"], IDLE)
    assert wait(job, 45, IDLE) == job.findings == []
    assert len(wait(job, 10, IDLE)) == 1


def test_the_line_of_the_step_before_does_not_end_the_save() -> None:
    job = stepping()
    before, begin = megatron(201), "saving checkpoint at iteration 201 to ./ckpt"
    job.tick([(0.1, before), (0.1, begin)], [SPINNING, IDLE])
    assert wait(job, 550, [SPINNING, IDLE]) == []


@pytest.mark.parametrize("metric", ["disk_write_bytes_per_sec", "network_tx_bytes_per_sec"])
def test_a_host_that_writes_saves_and_is_waited_for(metric: str) -> None:
    job = stepping()
    assert wait(job, 90, [SPINNING, IDLE], **{metric: 8e8}) == []
    assert wait(job, 40, [SPINNING, IDLE], **{metric: 1e6}) == []
    (only,) = wait(job, 15, [SPINNING, IDLE], **{metric: 1e6})
    assert only.started_unix_ns == at(21)


def test_a_host_that_fell_silent_while_it_wrote_excuses_nothing() -> None:
    job = Job(JobHang(JobHangConfig()), nodes=["node01", "node02"])
    job.run(20)
    wait(job, 5, [SPINNING, SPINNING, IDLE, IDLE], disk_write_bytes_per_sec=8e8)
    job.context.event = structs.replace(job.event, nodes=job.nodes)
    job.nodes = ["node01"]  # node02 is heard no more
    found = wait(job, 90, SPINNING, disk_write_bytes_per_sec=0.0)
    assert [f.cause for f in found] == ["job_hang"]


def test_a_host_that_writes_for_ever_excuses_ten_minutes() -> None:
    job = stepping()
    assert wait(job, 590, IDLE, disk_write_bytes_per_sec=8e8) == []
    assert len(wait(job, 15, IDLE, disk_write_bytes_per_sec=8e8)) == 1


def test_a_save_may_take_longer_than_twenty_minutes_where_the_settings_say_so() -> None:
    job = Job(JobHang(JobHangConfig(checkpoint_secs=3600.0)))
    job.run(20)
    job.tick(["saving checkpoint at iteration 200 to ./ckpt"], IDLE)
    assert wait(job, 1500, IDLE) == []


def test_a_flicker_in_a_long_hang_is_no_end() -> None:
    job = stepping()
    wait(job, 1280, SPINNING)
    job.tick([], HEALTHY)
    wait(job, 60, SPINNING)
    assert [f.cleared for f in job.findings][:1] == [False]
    assert not job.findings[-1].cleared


def test_an_unseen_gpu_is_no_suspect() -> None:
    job = Job(JobHang(JobHangConfig()), gpus=4)
    job.run(20)
    (only,) = wait(job, 90, [SPINNING, SPINNING, SPINNING, BLIND])
    assert (only.subject.gpu_index, only.suspects) == (None, [])
    assert "3 of 4 GPUs spin" in only.evidence


def test_a_checkpoint_that_was_written_excuses_nothing() -> None:
    job = stepping()
    job.tick(["saving checkpoint at iteration 400 to ./ckpt"], [SPINNING, IDLE])
    job.tick(["successfully saved checkpoint from iteration 400 to ./ckpt"], [SPINNING, IDLE])
    assert len(wait(job, 60, [SPINNING, IDLE])) == 1


def test_compiling_keeps_the_cpus_busy() -> None:
    job = stepping()
    assert wait(job, 1190, IDLE, cpu=0.3) == []
    (only,) = wait(job, 20, IDLE, cpu=0.3)
    assert only.evidence == "no step for 1200 s, and no GPU computes"


@pytest.mark.parametrize("gpus", [0, 2], ids=["no GPU known", "no telemetry"])
def test_where_no_gpu_was_ever_seen_twenty_minutes_of_silence_tell(gpus: int) -> None:
    job = Job(JobHang(JobHangConfig()), gpus=gpus)
    assert job.run(20, gpus=None) == []
    assert wait(job, 1190, None) == []
    (only,) = wait(job, 20, None)
    assert only.evidence == "no step for 1200 s, and nothing is known of its GPUs"


def test_a_job_that_came_back_from_long_pauses_is_waited_for() -> None:
    job = stepping()
    wait(job, 40, IDLE)
    job.run(10)
    assert wait(job, 115, IDLE) == []
    assert len(wait(job, 15, IDLE)) == 1


def test_start_up_is_no_hang() -> None:
    job = Job(JobHang(JobHangConfig()))
    assert wait(job, 300, IDLE) == []


def test_one_kernel_that_runs_for_ever_may_be_the_job() -> None:
    job = Job(JobHang(JobHangConfig()))
    assert wait(job, 300, SPINNING) == []


def test_an_ended_job_does_not_hang() -> None:
    job = stepping()
    job.end("COMPLETED")
    assert wait(job, 100, IDLE) == []
