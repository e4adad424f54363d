"""The state directory: whole files, one agent at a time."""

from pathlib import Path

import pytest

from stethoscope.agents.state import StateDir, default_state_dir, read_json, write_atomically
from stethoscope.schemas.errors import UsageError


def test_cursors_survive_and_replace_each_other(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    assert state.load_cursors() == {}
    state.save_cursors({"kernel_log": "1", "train_log": "{}"})
    state.save_cursors({"kernel_log": "2"})
    state.close()
    assert StateDir(tmp_path / "state").load_cursors() == {"kernel_log": "2"}


def test_positions_ahead_count_in_their_boot_alone(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert state.load_ahead("boot-a") == {}
    state.save_ahead("boot-a", {"train_log": ["1", "2"]})
    assert state.load_ahead("boot-a") == {"train_log": ["1", "2"]}
    assert state.load_ahead("boot-b") == {}


def test_a_damaged_cursor_file_counts_as_absent(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    (tmp_path / "cursors.json").write_bytes(b'{"kernel_log": "2')
    assert state.load_cursors() == {}


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"1")
    (tmp_path / "file.json.part").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, b"2")
    assert read_json(path, int) == 1


def test_a_second_agent_is_told_so(tmp_path: Path) -> None:
    first = StateDir(tmp_path)
    with pytest.raises(UsageError, match="another agent uses it"):
        StateDir(tmp_path)
    first.close()
    StateDir(tmp_path).close()


def test_a_directory_that_cannot_be_made_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--state-dir"):
        StateDir(tmp_path / "file")


def test_systemd_decides_the_default_directory() -> None:
    assert default_state_dir({"STATE_DIRECTORY": "/a:/b"}) == Path("/a")


def test_a_user_keeps_state_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stethoscope.agents.state.os.geteuid", lambda: 1000)
    assert default_state_dir({"XDG_STATE_HOME": "/x"}) == Path("/x/stethoscope")
