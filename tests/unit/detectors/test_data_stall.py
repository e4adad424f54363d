"""Many pauses of a job that has just stepped without."""

import pytest

from stethoscope.detectors.data_stall import DataStall, DataStallConfig

from .build import HEALTHY, Job, at, megatron

# The mean over a second of which two thirds are idle.
STARVED = HEALTHY | {"tensor_active_ratio": 0.12, "gpu_utilization_ratio": 0.3}


def every_sixth(iteration: int) -> float:
    return 1.6 if iteration % 6 == 0 else 0.1


def warm(secs: int = 40) -> Job:
    job = Job(DataStall(DataStallConfig()))
    assert job.run(secs) == []
    return job


def test_steps_that_wait_by_turns_are_a_stall() -> None:
    job = warm()
    found = job.run(16, every_sixth, gpus=STARVED)
    assert [f.cause for f in found] == ["data_stall"]
    only = found[0]
    assert (only.subject.job_id, only.subject.gpu_index) == ("77", None)
    assert at(39) <= only.started_unix_ns <= at(43)
    assert only.observed_unix_ns <= at(55)
    assert only.score is not None
    assert only.score >= 1.0


def test_waits_between_quick_steps_are_one_too() -> None:
    job = warm()

    def quick(iteration: int, took: float) -> str:
        return megatron(iteration, 100.0)

    assert [f.cause for f in job.run(16, every_sixth, quick, STARVED)] == ["data_stall"]


def test_it_clears_when_the_pauses_stop() -> None:
    job = warm()
    job.run(20, every_sixth, gpus=STARVED)
    assert [f.cleared for f in job.run(40)] == [True]


def test_a_single_hiccup_is_none() -> None:
    job = warm()
    job.run(3, lambda i: 3.0 if i % 50 == 0 else 0.1, gpus=STARVED)
    assert job.run(60) == []


@pytest.mark.parametrize(
    "word",
    [
        "saving checkpoint at iteration 400 to ./ckpt",
        "evaluating on the validation set",
        "  successfully saved checkpoint from iteration 400 to ./ckpt",
    ],
)
def test_pauses_that_the_log_explains_are_none(word: str) -> None:
    job = warm()
    for _ in range(5):
        assert job.tick([(0.2, word)], STARVED) == []
        assert job.tick([], STARVED) == []
        assert job.run(2) == []


def test_a_job_that_has_always_paused_is_like_that() -> None:
    job = Job(DataStall(DataStallConfig()))
    assert job.run(120, every_sixth, gpus=STARVED) == []


def test_pauses_in_which_the_gpus_go_on_computing_are_none() -> None:
    assert warm().run(30, every_sixth, gpus=HEALTHY) == []


def test_epochs_that_are_alike_from_the_beginning_are_a_habit() -> None:
    job = warm(9)
    for _ in range(10):
        for _ in range(4):
            assert job.tick([], STARVED) == []
        assert job.run(9) == []


def test_long_pauses_far_apart_are_a_stall_too() -> None:
    job = warm(60)
    for _ in range(3):
        for _ in range(6):
            job.tick([], STARVED)
        job.run(8)
    (only,) = job.findings
    assert only.cause == "data_stall"
    assert at(59) <= only.started_unix_ns <= at(62)


def test_pauses_now_and_then_from_the_beginning_are_a_habit() -> None:
    job = warm(12)
    for rest in (12, 9, 15, 6, 12, 9, 14, 7, 12):
        for _ in range(3):
            assert job.tick([], STARVED) == []
        assert job.run(rest) == []


def test_lines_of_several_slower_steps_are_no_pauses() -> None:
    job = warm(60)
    for second in range(60):
        job.tick([(0.5, f"step {600 + 6 * second} loss 2.5")], STARVED)
    assert job.findings == []


def test_short_and_long_pauses_by_turns_are_one_finding() -> None:
    job = warm(60)

    def waits(iteration: int) -> float:
        return 4.1 if iteration % 60 == 0 else 0.6 if iteration % 20 == 0 else 0.1

    found = job.run(60, waits, gpus=STARVED)
    assert [f.cleared for f in found] == [False]


def test_without_activity_the_rank_that_waits_for_data_tells() -> None:
    spins, starves = {"gpu_utilization_ratio": 1.0}, {"gpu_utilization_ratio": 0.3}
    job = Job(DataStall(DataStallConfig()), gpus=4)
    assert job.run(40, gpus=spins) == []
    assert len(job.run(16, every_sixth, gpus=[spins, starves, spins, spins])) == 1


def test_a_save_between_two_hiccups_is_none() -> None:
    job = warm(60)
    for waited in (1, 8, 1):
        for _ in range(waited):
            job.tick([], STARVED)
        job.run(1)
    assert job.run(10) == job.findings == []


def test_an_unseen_gpu_is_not_an_idle_one() -> None:
    busy = {"gpu_utilization_ratio": 1.0}
    job = Job(DataStall(DataStallConfig()), gpus=4)
    assert job.run(40, gpus=busy) == []
    unseen = dict.fromkeys(busy)
    for _ in range(10):
        assert job.run(3, every_sixth, gpus=[busy, busy, unseen, busy]) == []


def test_one_pause_can_be_no_pattern_whatever_the_settings_say() -> None:
    job = Job(DataStall(DataStallConfig(stalls=1)))
    job.run(60)
    for _ in range(20):
        job.tick([], STARVED)
    assert job.run(5) == job.findings == []


def test_a_long_save_among_hiccups_is_none() -> None:
    job = warm(60)
    for _ in range(2):
        job.run(10, lambda i: 0.6 if i % 60 == 0 else 0.1, gpus=STARVED)
    for _ in range(40):
        job.tick([], STARVED)
    assert job.run(5) == job.findings == []


def test_lines_of_several_slower_steps_are_no_pauses_while_every_gpu_is_busy() -> None:
    busy = {"gpu_utilization_ratio": 1.0, "power_watts": 600.0}
    job = Job(DataStall(DataStallConfig()))
    for second in range(120):
        iteration = 10 * second if second < 60 else 600 + 6 * (second - 60)
        job.tick([megatron(iteration, 100.0 if second < 60 else 167.0)], busy)
    assert job.findings == []


def test_a_resume_is_none() -> None:
    job = warm()
    for _ in range(3):
        for _ in range(3):
            assert job.tick([], STARVED) == []
        job.iteration = 0
        assert job.run(2) == []


def test_a_bar_of_an_evaluation_between_those_of_training_is_none() -> None:
    job = Job(DataStall(DataStallConfig()))
    done = 0
    for _ in range(3):
        for _ in range(60):
            done += 1
            job.tick([f"  1%|   | {done}/1752 [00:29<1:22:01,  1.00s/it]"], None)
        for second in range(40):
            beats = [(k / 10 + 0.05, 10 * second + k + 1) for k in range(10)]
            bars = [(t, f" 40%|   | {n}/400 [00:02<00:04, 10.00it/s]") for t, n in beats]
            job.tick(bars, None)
    assert job.findings == []
