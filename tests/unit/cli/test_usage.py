"""Wrong usage, ctrl-C and missing extras: one line, an exit code, no traceback."""

import sys
from pathlib import Path

import pytest

from stethoscope.cli import app as app_module

from .conftest import Run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("replay",), "Missing argument"),
        (("replay", "--speeed", "3"), "No such option: --speeed"),
        (("replay", "x.jsonl", "--format", "xml"), "'xml' is not one of 'table', 'json'"),
        (("nonsense",), "No such command 'nonsense'"),
        (("explain", "xid", "many"), "valid integer"),
        (("worker", "--log-level", "loud"), "loud is no level"),
        (("worker", "--web-port", "99999"), "less than or equal to 65535"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(
    run: Run, words: tuple[str, ...], says: str
) -> None:
    answer = run(*words)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.one_line
    assert answer.one_line.endswith(" --help\n")
    assert "Value error" not in answer.err


@pytest.mark.parametrize("words", [(), ("topics",), ("config",), ("explain",), ("bench",)])
def test_a_group_alone_shows_its_help(run: Run, words: tuple[str, ...]) -> None:
    answer = run(*words)
    assert answer.code == 2
    assert "Usage: " in answer.out + answer.err


def test_a_data_directory_that_cannot_be_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = run("worker", "--data-dir", tmp_path / "file" / "data")
    assert answer.code == 2
    assert "name a directory that may be written" in answer.one_line


def test_ctrl_c_is_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stethoscope.replay.sources.Sources.__init__", interrupted)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # put back afterwards
    answer = run("replay", "x.jsonl")
    assert (answer.code, answer.out, answer.err) == (130, "", "")


def test_a_command_whose_extra_is_missing_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "stethoscope.streams.config", None)
    monkeypatch.setattr("stethoscope.cli.app._missing_line", lambda _: "stethoscope: ours")
    assert run("config", "show").one_line == "stethoscope: ours\n"
    monkeypatch.undo()
    error = ModuleNotFoundError(name="numpy")
    assert "this command needs numpy" in app_module._missing_line(error)
    with pytest.raises(ModuleNotFoundError):
        app_module._missing_line(ModuleNotFoundError(name="stethoscope.zork"))
