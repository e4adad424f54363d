"""The kernel's out-of-memory killer."""

import pytest

from stethoscope.detectors.host_oom import HostOom, HostOomConfig

from .build import at, kernel, node_context


@pytest.mark.parametrize(
    ("line", "pid"),
    [
        ("Out of memory: Killed process 4321 (python3) total-vm:1kB, anon-rss:2kB", 4321.0),
        ("Out of memory: Kill process 4321 (python3) score 900 or sacrifice child", 4321.0),
        ("Memory cgroup out of memory: Killed process 99 (pt_main_thread) total-vm:1kB", 99.0),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of", None),
        ("slurmstepd: error: Detected 2 oom-kill events in step 7.batch", None),
    ],
)
def test_a_killed_process_is_a_moment(line: str, pid: float | None) -> None:
    (only,) = HostOom(HostOomConfig()).update(kernel(line, 5, count=3), node_context())
    assert (only.cause, only.subject.node, only.value) == ("host_oom", "node01", pid)
    assert only.moment
    assert only.started_unix_ns == at(5)
    assert only.score == 1.0
    assert only.raw_events == 3
    assert only.evidence == line


@pytest.mark.parametrize(
    "line",
    [
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom_reaper: reaped process 4321 (python3), now anon-rss:0kB",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB.",
        "",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert HostOom(HostOomConfig()).update(kernel(line), node_context()) == []
