"""Every command: help, version, errors in one line, exit codes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import Command
from typer.main import get_command

from stethoscope.cli.app import app
from stethoscope.schemas.codec import encode_line
from stethoscope.schemas.events import Device, GpuEvent

from .conftest import Run

ROOT = Path(__file__).parents[3]


def children(command: Command) -> dict[str, Command]:
    """Its sub-commands; typer's groups are of a class of its own, so their type says nothing."""
    found: dict[str, Command] = getattr(command, "commands", {})
    return found


def commands(group: Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in children(group).items():
        yield from commands(command, (*path, name))


def test_no_command_is_overlooked() -> None:
    assert {("topics", "create"), ("bench", "ingest")} <= set(commands(get_command(app)))


@pytest.mark.parametrize("path", list(commands(get_command(app))), ids=" ".join)
def test_help_on_every_command(run: Run, path: tuple[str, ...]) -> None:
    answer = run(*path, "--help")
    assert answer.code == 0
    assert "Usage:" in answer.out
    assert not answer.err


def test_every_command_says_what_it_does() -> None:
    def undocumented(command: Command) -> Iterator[str | None]:
        if not command.help:
            yield command.name
        for child in children(command).values():
            yield from undocumented(child)

    assert not list(undocumented(get_command(app)))


def test_version(run: Run) -> None:
    answer = run("--version")
    assert (answer.code, answer.out) == (0, "stethoscope 0.1.0\n")


def test_completion_script_is_given(run: Run) -> None:
    assert "--install-completion" in run("--help").out


def test_starting_up_imports_nothing_heavy() -> None:
    heavy = {"numpy", "pyarrow", "river", "sklearn", "faust", "kafka", "aiokafka", "httpx", "yaml"}
    code = "import sys, stethoscope.cli.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & {name.split(".")[0] for name in done.stdout.split()}


def gpu(seq: int, **changes: object) -> GpuEvent:
    return GpuEvent(
        time_unix_ns=(1_700_000_000 + seq) * 10**9,
        node="n1",
        boot_id="b",
        seq=seq,
        devices=[Device(uuid="GPU-1", index=0)],
        metrics={"gpu_temp_celsius": [50.0]} | changes,  # type: ignore[arg-type]
    )


def recording(path: Path, *extra: bytes) -> Path:
    lines = [encode_line(gpu(seq)) for seq in range(1, 30)]
    path.write_bytes(b"\n".join([*lines[:10], *extra, *lines[10:]]) + b"\n")
    return path


def test_replay_of_a_quiet_node_says_nothing_in_json(run: Run, tmp_path: Path) -> None:
    answer = run("replay", recording(tmp_path / "x.jsonl"), "--format", "json")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


BAD_LINES = {
    "truncated": b'{"kind":"gpu","time_unix_ns":17',
    "wrong_type": b'{"kind":"gpu","time_unix_ns":"soon","node":"n1","devices":[],"metrics":{}}',
    "unknown_kind": b'{"kind":"weather","time_unix_ns":1700000005000000000}',
    "not_json": b"\x00\x01\x02 binary",
    "unknown_metric": encode_line(gpu(100, gpu_mood_ratio=[0.5])),
}


@pytest.mark.parametrize("reason", BAD_LINES)
def test_one_bad_line_is_a_dead_letter_and_the_rest_goes_on(
    run: Run, tmp_path: Path, reason: str
) -> None:
    path = recording(tmp_path / "x.jsonl", BAD_LINES[reason])
    letters = tmp_path / "dead.jsonl"
    answer = run("replay", path, "--format", "json", "--dead-letter", letters)
    assert answer.code == 0
    assert answer.one_line.startswith(f"stethoscope: 1 dead letter: 1 {reason}; the first: ")
    record = json.loads(letters.read_text())
    assert record["reason"] == reason
    assert record["detail"]
    if reason != "unknown_metric":
        assert record["where"] == f"{path}:11"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.jsonl", None, "no such file or folder"),
        ("empty.jsonl", b"", "the file is empty"),
        ("events.csv", b"a,b\n1,2\n", "expected a name ending in .jsonl"),
        ("picture.jsonl", b"\x89PNG\r\n\x1a\n\x00\x00\x00", "a binary file"),
        ("text.jsonl", b"hello\n", "no readable event"),
        ("x.jsonl.gz", b"{}\n", "does not hold what its name says"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "score"])
def test_files_that_cannot_be_read(
    run: Run, tmp_path: Path, command: str, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    labels = ROOT / "replay/recordings/h200x2_a.labels.jsonl"
    extra = ["--labels", labels] if command == "score" else []
    answer = run(command, path, *extra)
    assert answer.code == 2
    assert says in answer.one_line
    assert str(path) in answer.err
    assert answer.out == ""


def test_a_configuration_with_a_typo(run: Run, tmp_path: Path) -> None:
    events = recording(tmp_path / "x.jsonl")
    bad = ROOT / "tests/data/config/unknown-key.yaml"
    for words in (("replay", events, "--config", bad), ("config", "check", bad)):
        answer = run(*words)
        assert answer.code == 2
        assert "unknown-key.yaml:4: kafka.partions" in answer.one_line
        assert "did you mean partitions?" in answer.err


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_time_that_is_none(run: Run, tmp_path: Path, option: str) -> None:
    answer = run("replay", recording(tmp_path / "x.jsonl"), option, "yesterday")
    assert answer.code == 2
    assert "'yesterday' is no time" in answer.one_line


def test_an_output_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    events = recording(tmp_path / "x.jsonl")
    answer = run("replay", events, "--findings", tmp_path / "no" / "f.jsonl")
    assert answer.code == 2
    assert "cannot be written" in answer.one_line


def test_a_window_that_ends_before_it_begins(run: Run, tmp_path: Path) -> None:
    answer = run("replay", recording(tmp_path / "x.jsonl"), "--from", "20", "--to", "10")
    assert answer.code == 2
    assert "--from 20 is after --to 10" in answer.one_line


def test_a_window_before_all_events_is_said(run: Run, tmp_path: Path) -> None:
    answer = run("replay", recording(tmp_path / "x.jsonl"), "--to", "10", "--format", "json")
    assert (answer.code, answer.out) == (0, "")
    assert "no event before --to" in answer.one_line


def test_a_failing_detector_is_said_and_json_stays_json(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        msg = "a fault\nof ours"
        raise ValueError(msg)

    monkeypatch.setattr("stethoscope.detectors.agent_silent.AgentSilent.update", broken)
    report = tmp_path / "r.html"
    path = recording(tmp_path / "x.jsonl")
    answer = run("replay", path, "--format", "json", "--report", report)
    assert (answer.code, answer.out) == (0, "")
    assert "detector agent_silent failed " in answer.one_line
    assert "(first: ValueError: a fault of ours, at test_commands.py:" in answer.err
    assert "agent_silent failed" in report.read_text()


def test_config_show_and_check_agree(run: Run, tmp_path: Path) -> None:
    shown = run("config", "show", ROOT / "tests/data/config/good.yaml")
    assert shown.code == 0
    copy = tmp_path / "copy.yaml"
    copy.write_text(shown.out)
    assert run("config", "check", copy).out.startswith(f"{copy}: ok, ")
    assert run("config", "show", copy).out == shown.out


def test_config_schema_is_json(run: Run) -> None:
    schema = json.loads(run("config", "schema").out)
    assert schema["$ref"] == "#/$defs/Config"


def test_explain(run: Run) -> None:
    xid = run("explain", "xid", 79)
    assert xid.code == 0
    assert "fell off the bus" in xid.out
    assert "critical" in xid.out
    assert "RESTART_BM" in xid.out
    assert "severity  critical" in run("explain", "sxid", 20034).out
    assert "1. " in run("explain", "cause", "job_hang").out
    assert run("explain", "cause", "JobHang").out == run("explain", "cause", "job_hang").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("xid", 9999), "not in the catalogue"),
        (("sxid", 1), "not in the catalogue"),
        (("cause", "job_hung"), "did you mean job_hang?"),
    ],
)
def test_explain_of_what_is_not_known(run: Run, words: tuple[object, ...], says: str) -> None:
    answer = run("explain", *words)
    assert answer.code == 2
    assert says in answer.one_line


def test_every_action_word_is_explained(run: Run) -> None:
    from stethoscope.cli.explain import _ACTIONS
    from stethoscope.schemas.sxid import sxid_catalogue
    from stethoscope.schemas.xid import xid_catalogue

    words = {x.action for x in xid_catalogue().values()}
    words |= {x.action for x in sxid_catalogue().values()}
    assert words == set(_ACTIONS)


def test_doctor_names_what_is_not_there(run: Run, tmp_path: Path, free_port: int) -> None:
    config = tmp_path / "x.yaml"
    config.write_text(f"kafka: {{brokers: ['127.0.0.1:{free_port}']}}\n")
    answer = run("doctor", "--config", config)
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert any(x.startswith(f"failing  broker 127.0.0.1:{free_port}: ") for x in lines)
    assert any(x.startswith("absent   alertmanager: none configured") for x in lines)
    assert all(x.split()[0] in {"ok", "failing", "absent"} for x in lines)


def test_doctor_without_a_file_is_content(run: Run) -> None:
    answer = run("doctor")
    assert answer.code == 0
    assert "ok       configuration: defaults" in answer.out


def test_doctor_reports_a_bad_configuration(run: Run) -> None:
    answer = run("doctor", "--config", ROOT / "tests/data/config/unknown-key.yaml")
    assert answer.code == 1
    assert "failing  configuration: " in answer.out


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


FAULTY = ROOT / "replay/recordings/h200x2_a.jsonl.gz"
TRUTH = ROOT / "replay/recordings/h200x2_a.labels.jsonl"


def test_demo_ends_with_pages_and_what_to_try_next(run: Run) -> None:
    answer = run("demo")
    assert (answer.code, answer.err) == (0, "")
    assert "raw events were folded; 7,686 raw events read." in answer.out
    for alertname in ("DataStall", "GpuContention", "LossNan", "RankLost", "NcclWrongPath"):
        assert alertname in answer.out
    assert answer.out.splitlines()[-2].startswith("Next: stethoscope ")


def test_score_answers_yes_and_no(run: Run, tmp_path: Path) -> None:
    answer = run("score", FAULTY, "--labels", TRUTH)
    assert answer.code == 0
    assert "10/10" in answer.out
    missing = tmp_path / "labels.jsonl"
    fault = '{"id":"f","cause":"gpu_lost","start_unix_ns":1,"end_unix_ns":2,"nodes":["node01"]}\n'
    missing.write_text(TRUTH.read_text() + fault)
    answer = run("score", FAULTY, "--labels", missing, "--format", "json")
    assert answer.code == 1
    verdict = json.loads(answer.out)
    assert verdict["missed"] == ["f"]
    assert verdict["total"]["found"] == 10


def test_replay_writes_what_it_was_asked_for(run: Run, tmp_path: Path) -> None:
    report, findings = tmp_path / "r.html", tmp_path / "f.jsonl"
    window = ("--from", "2026-11-29T16:07:00Z", "--to", "1795968450")
    answer = run(
        "replay", FAULTY, *window, "--format", "json", "--report", report, "--findings", findings
    )
    assert answer.code == 0
    incidents = [json.loads(line) for line in answer.out.splitlines()]
    assert [one["cause"] for one in incidents] == ["loss_nan"]
    assert "page_labels" not in incidents[0]
    assert "loss_nan" in report.read_text()
    assert {json.loads(line)["cause"] for line in findings.read_text().splitlines()} >= {"loss_nan"}


def test_an_unreachable_topic_address_is_refused(run: Run) -> None:
    answer = run("replay", "kafka://nowhere/steth.logs.v1")
    assert answer.code == 2
    assert "write kafka://HOST:PORT" in answer.one_line
