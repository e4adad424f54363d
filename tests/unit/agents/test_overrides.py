"""The command line on top of the configuration file."""

from pathlib import Path

import pytest

from stethoscope.agents.config_file import Watched, load_agent_config
from stethoscope.agents.overrides import Given, effective, state_dir_of
from stethoscope.agents.registry import enabled
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.errors import ConfigError, UsageError


def test_nothing_given_is_the_defaults() -> None:
    assert effective(Given()) == AgentConfig()


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("node: from-file\nkafka: {brokers: ['a:1']}\nib_sysfs: {root: /a}\n")
    config = effective(
        Given(config=str(path), node="n", brokers="b:2, c:3", infiniband_root="/b", proc_root="/p")
    )
    assert (config.node, config.kafka.brokers) == ("n", ["b:2", "c:3"])
    assert (config.ib_sysfs.root, config.host.proc_root) == ("/b", "/p")


def test_one_reader_is_switched_on_alone() -> None:
    assert enabled(effective(Given(reader="slurm"))) == ["slurm"]


def test_file_and_url_reach_their_reader() -> None:
    assert effective(Given(reader="kernel_log", file="/k")).kernel_log.file == "/k"
    assert effective(Given(reader="train_log", file="/t")).train_log.globs == ["/t"]
    assert effective(Given(reader="topology", file="/c")).topology.file == "/c"
    scraped = effective(Given(reader="prometheus", url="http://127.0.0.1:1/m"))
    assert [target.url for target in scraped.prometheus.targets] == ["http://127.0.0.1:1/m"]
    watched = effective(Given(reader="kubernetes", url="http://127.0.0.1:1"))
    assert watched.kubernetes.api_url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Given(reader="ib_sysf"), "did you mean ib_sysfs"),
        (Given(file="/x"), "--file needs --reader"),
        (Given(reader="gpu_nvml", file="/x"), "--file needs --reader"),
        (Given(reader="host", url="http://x"), "--url needs --reader"),
        (Given(brokers=" , "), "--brokers names no broker"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(given: Given, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        effective(given)
    assert "\n" not in str(caught.value)


def test_a_typo_in_the_file_names_line_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("loop:\n  adaptiv: true\n")
    with pytest.raises(ConfigError, match=r"agent\.yaml:2: .*did you mean adaptive"):
        load_agent_config(path)


def test_the_state_directory_is_told_or_the_default() -> None:
    assert state_dir_of(Given(state_dir="/a"), AgentConfig(state_dir="/b")) == Path("/a")
    assert state_dir_of(Given(), AgentConfig(state_dir="/b")) == Path("/b")
    assert state_dir_of(Given(), AgentConfig()).name == "stethoscope"


def test_a_file_that_changes_is_noticed_once(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("a")
    watched = Watched(path)
    assert not watched.changed()
    path.write_text("other")
    assert watched.changed()
    assert not watched.changed()
    path.unlink()
    assert not watched.changed()
    assert not Watched(None).changed()
