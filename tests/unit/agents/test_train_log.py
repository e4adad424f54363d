import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.reader import Context, Counters
from stethoscope.agents.train_lines import Limit, LineFilter, clean
from stethoscope.agents.train_log import TrainLogReader
from stethoscope.agents.train_rules import RULES
from stethoscope.schemas.agent_config import LineRule, TrainLog
from stethoscope.schemas.errors import ConfigError, ReaderUnsupported, ServiceError
from stethoscope.schemas.events import LogEvent, event_id

NS = 10**9
STEP = "iteration {}/100 | lm loss: 2.5 |"


class Agent:
    """A reader with a clock of its own."""

    def __init__(self, *globs: str, state: str | None = None, **settings: object) -> None:
        self.globs = globs
        settings = {"history_secs": 1e12} | settings
        section = TrainLog(globs=list(globs), timezone="UTC", **settings)  # type: ignore[arg-type]  # by name
        self.reader = TrainLogReader(Context("c", "node01", "boot-a"), section)
        self.clock = FakeClock(unix_ns=4_000_000_000 * NS)  # later than any file here
        if state is not None:
            self.reader.restore(state)

    def after_a_crash(self, state: str, ahead: list[str]) -> "Agent":
        """A new life: it knows the saved state, and the positions that may be out already."""
        new = Agent(*self.globs)
        new.clock.advance(3600)
        new.reader.restore(state)
        new.reader.expect(ahead)
        return new

    def read(self, secs: float = 10) -> list[LogEvent]:
        self.clock.advance(secs)
        events = self.reader.read(self.clock.now())
        return [event for event in events if isinstance(event, LogEvent)]

    def lines(self, secs: float = 10) -> list[str]:
        return [event.line for event in self.read(secs)]


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_only_lines_that_a_rule_reads_go_out(tmp_path: Path) -> None:
    log = tmp_path / "slurm-4711.out"
    append(log, "hello", STEP.format(1), "node01:7:7 [0] NCCL INFO Using network Socket", "bye")
    agent = Agent(f"{tmp_path}/*.out")
    step, nccl = agent.read()
    assert (step.source, step.line, step.seq) == ("train", STEP.format(1), 6)
    assert (nccl.source, nccl.job_id, nccl.path) == ("nccl", "4711", str(log))
    assert (step.node, step.boot_id) == ("node01", "boot-a")
    assert agent.reader.counters.skipped == {"no_rule": 2}
    assert event_id(step) != event_id(nccl)
    agent.reader.close()


def test_new_files_are_found_and_old_ones_begin_at_their_end(tmp_path: Path) -> None:
    old = tmp_path / "old.log"
    append(old, STEP.format(1))
    agent = Agent(f"{tmp_path}/*.log", history_secs=60)
    assert agent.lines() == []
    append(old, STEP.format(2))
    append(tmp_path / "new.log", STEP.format(3))
    assert sorted(agent.lines()) == [STEP.format(2), STEP.format(3)]
    agent.reader.close()


def test_a_path_without_wildcards_is_read_whole_and_a_folder_is_its_files(tmp_path: Path) -> None:
    append(tmp_path / "a.log", STEP.format(1))
    append(tmp_path / "b.log", STEP.format(2))
    (tmp_path / "deeper").mkdir()
    assert Agent(f"{tmp_path}/a.log").lines() == [STEP.format(1)]
    assert sorted(Agent(str(tmp_path)).lines()) == [STEP.format(1), STEP.format(2)]


def test_a_link_to_a_log_does_not_double_it(tmp_path: Path) -> None:
    append(tmp_path / "z.log", STEP.format(1))
    (tmp_path / "latest.log").symlink_to(tmp_path / "z.log")
    (event,) = Agent(f"{tmp_path}/*.log").read()
    assert event.path == str(tmp_path / "z.log")


def test_a_restart_neither_loses_nor_doubles(tmp_path: Path) -> None:
    log = tmp_path / "job-7.log"
    append(log, STEP.format(1), STEP.format(2))
    first = Agent(str(log))
    seen = first.read()
    state = first.reader.checkpoint()
    append(log, STEP.format(3))
    log.rename(tmp_path / "job-7.log.1")
    append(log, STEP.format(4))
    second = Agent(str(log), state=state)
    seen += second.read()
    assert [event.line for event in seen] == [STEP.format(i) for i in (1, 2, 3, 4)]
    assert len({event_id(event) for event in seen}) == 4
    assert Agent(str(log), state=second.reader.checkpoint()).lines() == []


def test_lines_read_again_after_a_crash_give_the_same_events(tmp_path: Path) -> None:
    log = tmp_path / "job-7.log"
    nccl = "node01:673:701 [0] NCCL INFO comm 0x1 rank 4 nranks 8 cudaDev 0 - Init COMPLETE"
    append(log, STEP.format(0), nccl, "Traceback (most recent call last):")
    first = Agent(str(log))
    first.read()
    saved = first.reader.checkpoint()
    sent: list[LogEvent] = []
    ahead: list[str] = []
    for i in (1, 3):
        stamp = datetime.fromtimestamp(first.clock.now().unix_ns // NS + 8, UTC)
        append(log, f"[{stamp:%Y-%m-%d %H:%M:%S}] {STEP.format(i)}", STEP.format(i + 1))
        append(log, "node01:673:673 [0] NCCL INFO Using network IB")
        os.utime(log, ns=(0, first.clock.now().unix_ns + 9 * NS))
        sent += first.read()
        ahead.append(first.reader.checkpoint())
    append(log, STEP.format(5))
    os.utime(log, ns=(0, first.clock.now().unix_ns + 99 * NS))
    second = first.after_a_crash(saved, ahead)
    again = second.read()
    assert [event.line for event in again[len(sent) :]] == [STEP.format(5)]
    assert again[: len(sent)] == sent
    assert [event.rank for event in sent if event.source == "nccl"] == [4, 4]
    # Nor does a second crash change anything.
    third = first.after_a_crash(saved, [second.reader.checkpoint()])
    assert third.read() == again


def test_the_very_first_lines_read_again_are_the_same_too(tmp_path: Path) -> None:
    log = tmp_path / "job-7.log"
    append(log, STEP.format(1), STEP.format(2))
    first = Agent(str(log))
    sent = first.read()
    append(log, STEP.format(3))
    os.utime(log, ns=(0, 5 * NS))
    second = Agent(str(log))
    second.reader.expect([first.reader.checkpoint(), "no json"])
    again = second.read()
    assert again[:2] == sent
    assert again[2].time_unix_ns == 5 * NS
    assert second.reader.counters.collector_errors == {"checkpoint": 1}


def test_a_traceback_goes_on_after_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "job-7.log"
    append(log, "Traceback (most recent call last):", '  File "a.py"')
    first = Agent(str(log))
    first.read()
    append(log, "    loss = model(batch)", "my.odd.Name: text")
    second = Agent(str(log), state=first.reader.checkpoint())
    assert second.lines() == ["    loss = model(batch)", "my.odd.Name: text"]


def test_a_bad_checkpoint_is_counted_and_ignored(tmp_path: Path) -> None:
    append(tmp_path / "a.log", STEP.format(1))
    agent = Agent(f"{tmp_path}/a.log", state="no json")
    assert agent.lines() == [STEP.format(1)]
    assert agent.reader.counters.collector_errors == {"checkpoint": 1}


def test_what_cannot_be_read_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    append(tmp_path / "a.log", STEP.format(1))
    append(tmp_path / "b.log", "nothing of note")
    agent = Agent(f"{tmp_path}/a.log", f"{tmp_path}/b.log", f"{tmp_path}/none.log")
    assert agent.lines() == [STEP.format(1)]
    (tmp_path / "a.log").unlink()
    (tmp_path / "a.log").mkdir()
    for _ in range(4):
        agent.read(secs=20)
    assert agent.reader.counters.collector_errors[f"{tmp_path}/none.log"] >= 1
    assert agent.reader.counters.collector_errors[f"{tmp_path}/a.log"] >= 1


def test_a_named_file_that_is_not_there_is_no_success(tmp_path: Path) -> None:
    agent = Agent(f"{tmp_path}/none.log")
    with pytest.raises(ServiceError, match=r"nothing to read at .*none\.log"):
        agent.read()
    append(tmp_path / "none.log", STEP.format(1))
    assert agent.lines() == [STEP.format(1)]
    assert Agent(f"{tmp_path}/*.none").lines() == []


def test_a_log_that_comes_back_is_another_even_under_the_same_number(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    append(other, "nothing of note")
    append(log, STEP.format(1))
    agent = Agent(f"{tmp_path}/a.log", f"{tmp_path}/b.log")
    first = agent.read()
    log.unlink()
    for _ in range(4):
        assert agent.read(secs=20) == []
    append(log, STEP.format(2))
    second = agent.read()
    assert [event.line for event in second] == [STEP.format(2)]
    assert (first[0].stream or "").endswith(".0")
    assert (second[0].stream or "").endswith(".1")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        agent = Agent(stdin=True, job_id="7")
        agent.reader.probe()
        assert not agent.reader.hazardous
        os.write(theirs, b"hello\nstep 1 loss 2\nstep 2 lo")
        (event,) = agent.read()
        assert (event.line, event.job_id, event.seq) == ("step 1 loss 2", "7", 6)
        os.write(theirs, b"ss 3")
        os.close(theirs)
        assert agent.lines() == ["step 2 loss 3"]
        assert agent.lines() == []


def test_container_logs(tmp_path: Path) -> None:
    cri = "2026-11-29T16:00:0{}.25Z stderr F [rank3]: {}"
    docker = '{{"log":"{}\\n","stream":"stdout","time":"2026-11-29T16:00:03.5Z"}}'
    log = tmp_path / "0.log"
    lines = ["Traceback (most recent call last):", '  File "a.py"', "odd.Name: text"]
    append(
        log, *(cri.format(i, line) for i, line in enumerate(lines)), docker.format("step 1 loss 2")
    )
    events = Agent(str(log), path_patterns=[r"/(?P<namespace>[^/]+)/(?P<job_id>\d+)\.log$"]).read()
    assert [event.line for event in events] == [*(f"[rank3]: {x}" for x in lines), "step 1 loss 2"]
    assert [event.rank for event in events] == [3, 3, 3, None]
    assert events[2].time_unix_ns - events[0].time_unix_ns == 2 * NS
    assert events[3].time_unix_ns == 1795968003 * NS + NS // 2
    assert events[0].job_id == f"{tmp_path.name}/0"


def test_a_file_whose_name_is_no_text_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    append(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.log")), STEP.format(1))
    append(tmp_path / "b.log", STEP.format(2))
    agent = Agent(str(tmp_path))
    assert agent.lines() == [STEP.format(2)]
    assert agent.reader.checkpoint()
    assert agent.reader.counters.skipped == {"bad_file_name": 1}


def test_too_many_files_keep_the_newest(tmp_path: Path) -> None:
    for index in range(5):
        append(tmp_path / f"{index}.log", STEP.format(index))
    agent = Agent(f"{tmp_path}/*.log", max_files=3)
    assert len(agent.lines()) == 3
    assert agent.reader.counters.skipped == {"too_many_files": 2}


def test_a_flood_is_limited_but_errors_pass(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    append(log, *(STEP.format(i) for i in range(200)), "ValueError: the end")
    agent = Agent(str(log), burst_lines=100, max_lines_per_sec=10.0)
    lines = agent.lines()
    assert lines[-1] == "ValueError: the end"
    assert len(lines) == 76
    assert agent.reader.counters.skipped == {"rate_limited": 125}
    append(log, *(STEP.format(i) for i in range(200)))
    assert len(agent.lines(secs=5)) == 49  # the error took one of the urgent quarter


def test_bars_colours_noise_and_long_lines(tmp_path: Path) -> None:
    log = tmp_path / "bar.log"
    frames = "".join(
        f"\x1b[32m {i}/9 [00:0{i}<00:01, 1.0it/s, loss=2.{i}]\x1b[0m\r" for i in (1, 2)
    )
    log.write_bytes(frames.encode() + b"step 3 loss 2.\xff5 \x00\n" + b"loss " * 200_000 + b"\n")
    agent = Agent(str(log))
    assert agent.lines() == [
        " 1/9 [00:01<00:01, 1.0it/s, loss=2.1]",
        " 2/9 [00:02<00:01, 1.0it/s, loss=2.2]",
        "step 3 loss 2.\ufffd5",
    ]
    assert agent.reader.counters.skipped["too_long"] == 1


def test_secrets_stay_on_the_node(tmp_path: Path) -> None:
    append(tmp_path / "a.log", "RuntimeError: login failed for password=hunter2")
    assert Agent(f"{tmp_path}/a.log").lines() == [
        "RuntimeError: login failed for password=[redacted]"
    ]


def test_a_users_rule_pattern_and_job(tmp_path: Path) -> None:
    append(tmp_path / "run_x9_w3.txt", "reward 7")
    (event,) = Agent(
        f"{tmp_path}/*.txt",
        rules=[LineRule(name="reward", pattern="^reward")],
        path_patterns=[r"run_(?P<job_id>\w+)_w(?P<rank>\d+)"],
    ).read()
    assert (event.line, event.job_id, event.rank) == ("reward 7", "x9", 3)
    (plain,) = Agent(
        f"{tmp_path}/*.txt",
        rules=[LineRule(name="reward", pattern="^reward")],
        job_id="77",
    ).read()
    assert plain.job_id == "77"


def test_stamped_lines_keep_their_time(tmp_path: Path) -> None:
    append(tmp_path / "a.log", f"[2026-11-29 18:03:07.762982] {STEP.format(1)}")
    (event,) = Agent(f"{tmp_path}/a.log").read()
    assert event.time_unix_ns == 1795975387_762982000


def test_nothing_configured_is_nothing_to_do() -> None:
    with pytest.raises(ReaderUnsupported, match=r"train_log\.globs is empty"):
        Agent().reader.probe()
    with pytest.raises(ConfigError, match=r"train_log\.path_patterns"):
        Agent("x", path_patterns=["("])


def keep(lines: list[str]) -> list[str]:
    chosen = LineFilter(RULES, Limit(1000, 10_000), Counters())
    kept = (chosen.take(line, 0) for line in lines)
    return [found.line for found in kept if found is not None]


def test_a_traceback_goes_out_whole_also_where_ranks_interleave() -> None:
    block = [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in main',
        "    loss = model(batch)",
        "           ^^^^^^^^^^^^",
        "my.odd.Name: no word of a rule here",
    ]
    lines = [f"[rank{rank}]: {line}" for line in block for rank in (0, 1)]
    lines.insert(4, "nothing of note")
    assert keep([*lines, "[rank0]: after"]) == [line for line in lines if "note" not in line]


def test_a_block_without_end_ends() -> None:
    lines = ["Traceback (most recent call last):", *["  deeper"] * 500]
    assert len(keep(lines)) == 201


def test_nccls_processes_are_known_by_their_communicator() -> None:
    chosen = LineFilter(RULES, Limit(1000, 10_000), Counters())
    lines = [
        "node01:673:673 [0] NCCL INFO NCCL version 2.28.9",
        "node01:673:701 [0] NCCL INFO comm 0x1 rank 4 nranks 8 cudaDev 0 busId 60 - Init COMPLETE",
        "node01:673:702 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0 busId 60 - Init COMPLETE",
        "node01:674:674 [1] NCCL INFO Using network IB",
        "node01:673:673 [0] NCCL INFO Using network IB",
    ]
    kept = [chosen.take(line, 0) for line in lines]
    assert [found.rank for found in kept if found is not None] == [None, 4, 4, None, 4]


@given(st.binary(max_size=300))
def test_any_bytes_become_clean_text(body: bytes) -> None:
    text = clean(body)
    assert not set(text) & set("\x1b\x00\n\r")


@given(st.lists(st.text(max_size=60), max_size=30))
def test_any_lines_are_taken_or_left(lines: list[str]) -> None:
    assert set(keep(lines)) <= set(lines)
