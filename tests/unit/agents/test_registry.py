"""The written list of readers is full, and each reader is what the loop expects."""

from pathlib import Path

import pytest

import stethoscope.agents
from stethoscope.agents.reader import Context, Counters
from stethoscope.agents.registry import READERS, build, enabled
from stethoscope.schemas.agent_config import AgentConfig, GpuNvml, Topology
from stethoscope.schemas.errors import UsageError


@pytest.mark.parametrize("name", READERS)
def test_every_reader_is_built_from_its_section(name: str) -> None:
    reader = build(name, Context(cluster="c", node="n"), AgentConfig())
    assert reader.name == name
    assert reader.period_secs == getattr(AgentConfig(), name).period_secs
    assert isinstance(reader.counters, Counters)
    assert isinstance(reader.hazardous, bool)
    reader.close()
    reader.close()


def test_the_list_holds_every_reader() -> None:
    folder = Path(stethoscope.agents.__file__).parent
    on_disk = {
        path.stem
        for path in folder.glob("*.py")
        if "def probe(self)" in path.read_text() and path.stem != "reader"
    }
    assert on_disk == set(READERS)


def test_an_unknown_reader_is_named_with_those_known() -> None:
    with pytest.raises(UsageError, match=r"'nope'.*gpu_nvml"):
        build("nope", Context(), AgentConfig())


def test_enabled_follows_the_configuration() -> None:
    config = AgentConfig(gpu_nvml=GpuNvml(enabled=False), topology=Topology(enabled=True))
    names = enabled(config)
    assert "gpu_nvml" not in names
    assert "topology" in names
    assert "slurm" not in names
