"""A job's steps slower than its own past, and why."""

import random
from collections.abc import Callable

import pytest

from stethoscope.detectors.step_time import StepTime, StepTimeConfig, size_class, step_secs
from stethoscope.schemas.findings import Finding
from stethoscope.schemas.views import Step

from .build import HEALTHY, IDLE, Job, at, megatron

LESS = HEALTHY | {"tensor_active_ratio": 0.27, "sm_active_ratio": 0.4}
MORE = HEALTHY | {"tensor_active_ratio": 0.55, "sm_active_ratio": 0.8, "sm_clock_mhz": 1650.0}


def warm(secs: int = 40, step: float | Callable[[int], float] = 0.1) -> Job:
    """A job that has stepped undisturbed for ``secs``."""
    job = Job(StepTime(StepTimeConfig()))
    assert job.run(secs, step) == []
    return job


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, [f"{f.cause} {f.evidence}" for f in found]
    return found[0]


def test_a_slowdown_that_nothing_explains_is_the_jobs() -> None:
    job = warm()
    finding = only(job.run(15, 0.15, gpus=LESS))
    assert finding.cause == "step_time_regression"
    assert (finding.subject.job_id, finding.subject.gpu_index) == ("77", None)
    assert at(39) <= finding.started_unix_ns <= at(42)
    assert finding.observed_unix_ns <= at(50)
    assert finding.value == pytest.approx(1.5, rel=0.05)
    assert finding.score is not None
    assert finding.score >= 1.0


def test_the_rank_that_computes_more_while_the_others_wait_is_the_straggler() -> None:
    finding = only(warm().run(15, 0.136, gpus=[LESS, MORE]))
    assert finding.cause == "straggler"
    assert (finding.subject.gpu_index, finding.subject.rank) == (1, 1)
    assert "tensor cores of GPU 1" in finding.evidence


def test_the_rank_that_idles_while_the_others_spin_is_the_straggler() -> None:
    spinning = HEALTHY | {"gr_engine_active_ratio": 1.0, "tensor_active_ratio": 0.2}
    asleep = HEALTHY | {"gr_engine_active_ratio": 0.4, "tensor_active_ratio": 0.2}
    finding = only(warm().run(15, 0.2, gpus=[asleep, spinning]))
    assert (finding.cause, finding.subject.gpu_index) == ("straggler", 0)


BLIND = {"gpu_utilization_ratio": 1.0, "power_watts": 600.0, "sm_clock_mhz": 1900.0}


def test_the_rank_whose_clock_fell_is_the_straggler() -> None:
    waits, slow = LESS, HEALTHY | {"sm_clock_mhz": 1200.0, "power_watts": 400.0}
    finding = only(warm().run(15, 0.16, gpus=[waits, slow]))
    assert (finding.cause, finding.subject.gpu_index) == ("straggler", 1)
    assert "SM clock of GPU 1 at 1200 MHz (1900 in health)" in finding.evidence


def test_where_all_clocks_fell_none_is_the_straggler() -> None:
    slow = LESS | {"sm_clock_mhz": 1200.0}
    assert only(warm().run(15, 0.16, gpus=slow)).cause == "step_time_regression"


def test_clocks_that_fell_nearly_alike_name_nobody() -> None:
    job = Job(StepTime(StepTimeConfig()), gpus=8)
    assert job.run(40, 0.1) == []
    uneven = [LESS | {"sm_clock_mhz": 1730.0 - 3.0 * i} for i in range(8)]
    assert only(job.run(15, 0.117, gpus=uneven)).cause == "step_time_regression"


def test_a_clock_that_always_reads_zero_tells_nothing() -> None:
    job = Job(StepTime(StepTimeConfig()))
    assert job.run(40, 0.1, gpus=HEALTHY | {"sm_clock_mhz": 0.0}) == []
    found = job.run(15, 0.16, gpus=LESS | {"sm_clock_mhz": 0.0})
    assert only(found).cause == "step_time_regression"
    fell_to_zero = warm().run(15, 0.16, gpus=LESS | {"sm_clock_mhz": 0.0})
    assert only(fell_to_zero).cause == "step_time_regression"


def test_without_activity_the_one_that_draws_as_before_is_the_straggler() -> None:
    job = Job(StepTime(StepTimeConfig()))
    assert job.run(40, 0.1, gpus=BLIND) == []
    finding = only(job.run(15, 0.15, gpus=[BLIND | {"power_watts": 430.0}, BLIND]))
    assert (finding.cause, finding.subject.gpu_index) == ("straggler", 1)
    assert "power of GPU 1 at 600 W (600 in health), its peers' at 72%" in finding.evidence


def test_idle_gpus_are_told_of() -> None:
    idles = LESS | {"gpu_utilization_ratio": 0.5}
    finding = only(warm().run(15, 0.2, gpus=idles))
    assert "its GPUs are busy 50% of the time, 100% in health" in finding.evidence


def every_tenth(iteration: int, took: float) -> str:
    """A trainer that prints each tenth step, without its time."""
    return f"step {iteration} loss 2.5" if iteration % 10 == 0 else ""


def test_lines_of_ten_steps_tell_after_three_of_them() -> None:
    job = Job(StepTime(StepTimeConfig()))
    assert job.run(90, 1.0, every_tenth) == []
    finding = only(job.run(65, 1.6, every_tenth, LESS))
    assert finding.cause == "step_time_regression"


def test_saves_between_lines_without_a_time_of_their_own_are_no_steps() -> None:
    def bare(iteration: int, took: float) -> str:
        return f"step {iteration} loss 2.5"

    job = Job(StepTime(StepTimeConfig()))
    assert job.run(60, 1.0, bare) == []
    for _ in range(12):
        job.run(1, 1.0, bare)
        job.tick([(0.0, "saving checkpoint at iteration 7 to ./ckpt")], IDLE)
        job.tick([], IDLE)
    assert job.findings == []


def test_a_slow_job_whose_log_is_buffered_is_found() -> None:
    job = Job(StepTime(StepTimeConfig()))
    iteration = 0
    for took in [1.0] * 10 + [1.6] * 6:
        for _ in range(round(32 * took) - 1):
            job.tick([], HEALTHY if took == 1.0 else LESS)
        lines = [(0.3, megatron(iteration + i, 1000 * took)) for i in range(32)]
        iteration += 32
        job.tick(lines, HEALTHY if took == 1.0 else LESS)
    assert only(job.findings).cause == "step_time_regression"


def test_larger_steps_are_seen_for_what_they_are_when_the_gpus_are_busy_again() -> None:
    job = warm(60)
    found = [*job.run(12, 0.2, gpus=LESS), *job.run(60, 0.2)]
    assert [f.cleared for f in found] == [False, True]


def test_a_stranger_who_fills_the_gpu_is_no_larger_step() -> None:
    job = Job(StepTime(StepTimeConfig()), gpus=1)
    assert job.run(60) == []
    shared = HEALTHY | {"processes_count": 2.0}
    found = [*job.run(15, 0.15, gpus=LESS | shared), *job.run(60, 0.15, gpus=shared)]
    assert only(found).cause == "gpu_contention"


def test_a_recovery_that_a_rare_line_tells_in_part_forgets_nothing() -> None:
    job = Job(StepTime(StepTimeConfig()))

    def every_twentieth(iteration: int, took: float) -> str:
        return f"step {iteration} loss 2.5" if iteration % 20 == 0 else ""

    assert job.run(400, 1.0, every_twentieth) == []
    job.run(170, 1.6, every_twentieth, LESS)
    job.run(100, 1.0, every_twentieth)
    job.run(170, 1.6, every_twentieth, LESS)
    assert [f.cleared for f in job.findings] == [False, True, False]


def test_unannounced_pauses_in_two_rare_lines_are_none() -> None:
    job = Job(StepTime(StepTimeConfig()))
    job.run(200, 1.0, every_tenth, {})
    for _ in range(2):
        job.tick([], {})
        job.tick([], {})
        job.tick([], {})
        job.run(10, 1.0, every_tenth, {})
    assert job.run(60, 1.0, every_tenth, {}) == job.findings == []


def test_a_pause_after_a_wobble_is_no_slowness() -> None:
    job = warm(60)
    assert job.run(1, 0.13) == []
    assert [f for _ in range(30) for f in job.tick([], IDLE)] == []


def test_the_baseline_outlives_a_fault() -> None:
    job = warm(300, 6.0)
    found = [*job.run(90, 9.0, gpus=LESS), *job.run(30, 6.0), *job.run(90, 9.0, gpus=LESS)]
    assert [f.cleared for f in found] == [False, True, False]


def test_a_strangers_process_on_a_gpu_explains_it() -> None:
    shared = LESS | {"processes_count": 2.0}
    finding = only(warm().run(15, 0.216, gpus=[LESS, shared]))
    assert (finding.cause, finding.subject.gpu_index) == ("gpu_contention", 1)
    assert "2 processes on GPU 1" in finding.evidence


def test_busy_cpus_of_the_host_explain_it() -> None:
    finding = only(warm().run(15, 0.156, gpus=LESS, cpu=0.98))
    assert (finding.cause, finding.subject.node) == ("host_contention", "node01")


def test_it_clears_when_the_steps_are_quick_again() -> None:
    job = warm()
    job.run(20, 0.15, gpus=LESS)
    assert [f.cleared for f in job.run(20)] == [True]
    assert job.findings[0].finding_id == job.findings[1].finding_id
    assert job.findings[1].ended_unix_ns is not None
    assert at(58) <= job.findings[1].ended_unix_ns <= at(66)


def test_the_end_of_the_job_ends_it() -> None:
    job = warm()
    job.run(20, 0.15, gpus=LESS)
    assert [f.cleared for f in job.end()] == [True]


def test_a_second_slowdown_is_a_finding_of_its_own() -> None:
    job = warm()
    for _ in range(2):
        job.run(15, 0.15, gpus=LESS)
        job.run(30)
    assert [f.cleared for f in job.findings] == [False, True, False, True]
    assert len({f.finding_id for f in job.findings}) == 2


def test_without_printed_times_the_lines_spacing_tells() -> None:
    job = Job(StepTime(StepTimeConfig()))
    untimed = lambda i, took: megatron(i, None)  # noqa: E731
    assert job.run(40, line=untimed) == []
    assert only(job.run(15, 0.15, line=untimed, gpus=LESS)).cause == "step_time_regression"


def test_without_gpu_telemetry_the_job_itself_is_named() -> None:
    job = Job(StepTime(StepTimeConfig()))
    job.run(40, gpus=None, cpu=None)
    finding = only(job.run(15, 0.15, gpus=None, cpu=None))
    assert (finding.cause, finding.subject.gpu_index) == ("step_time_regression", None)


# What looks like a slowdown and is none.


def test_ten_percent_are_nobodys_business() -> None:
    assert warm().run(60, 0.11, gpus=LESS) == []


def test_a_single_slow_step_is_none() -> None:
    assert warm().run(30, lambda i: 2.0 if i % 97 == 0 else 0.1) == []


def test_slow_first_steps_are_warm_up() -> None:
    job = Job(StepTime(StepTimeConfig()))
    assert job.run(60, lambda i: 2.0 if i == 1 else 0.4 if i < 10 else 0.1) == []


def test_a_step_that_always_wobbles_by_a_third_does_so() -> None:
    rng = random.Random(3)  # noqa: S311 - test data
    assert warm(120, lambda _: 0.1 * (0.85 + 0.35 * rng.random())).findings == []


def test_a_batch_that_grows_by_announcement_takes_longer() -> None:
    def line(iteration: int, took: float) -> str:
        size = f" global batch size: {16 * (1 + iteration // 100):5d} |"
        return megatron(iteration, 1000 * took).replace(" lm loss", f"{size} lm loss")

    job = Job(StepTime(StepTimeConfig()))
    assert job.run(120, lambda i: 0.05 * (1 + i // 100), line) == []


def test_larger_steps_without_a_word_keep_every_gpu_as_busy() -> None:
    job = warm()
    assert job.run(60, 0.2, gpus=HEALTHY) == []


def test_a_checkpoint_between_steps_is_none() -> None:
    job = warm()
    for _ in range(3):
        assert job.tick(["saving checkpoint at iteration 400 to ./ckpt"], LESS) == []
        for _ in range(5):
            assert job.tick([], LESS) == []
        assert job.run(12) == []


def test_a_resume_that_counts_from_an_older_iteration_is_a_new_segment() -> None:
    job = warm()
    for _ in range(20):
        assert job.tick([], LESS) == []
    job.iteration = 0
    assert job.run(30) == []
    assert job.context.segment_ns > at(59)


@pytest.mark.parametrize("jump", [0, 12_000])
def test_the_first_step_after_a_resume_is_not_judged_by_the_gap(jump: int) -> None:
    job = Job(StepTime(StepTimeConfig()))
    untimed: Callable[[int, float], str] = lambda i, took: megatron(i, None)  # noqa: E731
    job.iteration = 12_000
    job.run(40, line=untimed)
    for _ in range(60):
        job.tick([], LESS)
    job.iteration = jump
    assert job.run(30, line=untimed) == []


def test_lines_of_the_other_rank_are_not_more_steps() -> None:
    job = Job(StepTime(StepTimeConfig()))
    untimed: Callable[[int, float], str] = lambda i, took: megatron(i, None)  # noqa: E731
    for _ in range(60):
        lines = [(k / 10 + 0.05, untimed(job.iteration + k, 0.1)) for k in range(10)]
        assert job.tick(lines) == []
    assert job.context.step_count == 600


@pytest.mark.parametrize(
    ("step", "last", "secs"),
    [
        (Step(at(5), 10, 0.25), None, 0.25),
        (Step(at(5), 10), None, None),
        (Step(at(5), 10), Step(at(4), 5), 0.2),
        (Step(at(5), 10), Step(at(4), 10), None),
        (Step(at(5), 3), Step(at(4), 10), None),
        (Step(at(5)), Step(at(4)), 1.0),
    ],
)
def test_step_secs(step: Step, last: Step | None, secs: float | None) -> None:
    assert step_secs(step, last) == secs


@pytest.mark.parametrize("work", [None, 0.0, 0.5, 1.0, 2.0, 7.0, 8.0, 4096.0, 1e12])
def test_doubling_the_work_is_another_class(work: float | None) -> None:
    doubled = None if work is None else 2 * work
    assert (size_class(work) == size_class(doubled)) == (work is None or work < 0.5)


def test_the_state_is_bounded() -> None:
    job = Job(StepTime(StepTimeConfig()))

    def line(iteration: int, took: float) -> str:
        tokens = 1 << (iteration % 900) // 10
        return f"step {iteration} loss: 2.0 step_time: {took} num_tokens: {tokens}"

    job.run(100, 0.02, line)
    state = job.detectors[0].state[job.context.key]  # type: ignore[attr-defined]  # of StepTime
    assert len(state.bins) <= 64
    assert all(len(b) <= 200 for b in state.bins.values())


def test_a_bar_of_an_evaluation_between_those_of_training_is_none() -> None:
    job = Job(StepTime(StepTimeConfig()))
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


def test_one_reason_after_another_is_two_faults_each_with_its_own_beginning() -> None:
    job = warm()
    begin = job.second
    found = job.run(25, 0.15, gpus=[LESS, MORE])
    change = job.second
    found += job.run(25, 0.2, gpus=[LESS | {"processes_count": 2.0}, LESS])
    said = [f for f in found if not f.cleared]
    assert [f.cause for f in said] == ["straggler", "gpu_contention"]
    assert at(begin) <= said[0].started_unix_ns <= at(begin + 2)
    assert at(change) <= said[1].started_unix_ns <= at(change + 4)


def test_a_reason_found_later_goes_back_to_the_onset() -> None:
    job = warm()
    begin = job.second
    found = job.run(8, 0.15, gpus=LESS)
    found += job.run(12, 0.15, gpus=[LESS, MORE | {"tensor_active_ratio": 0.9}])
    said = [f for f in found if not f.cleared]
    assert [f.cause for f in said] == ["step_time_regression", "straggler"]
    assert said[1].started_unix_ns == said[0].started_unix_ns <= at(begin + 2)
