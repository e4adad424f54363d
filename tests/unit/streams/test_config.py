"""The configuration file: defaults, overrides, and errors that tell what to do."""

import re
from pathlib import Path

import msgspec
import pytest

from stethoscope.detectors.registry import DETECTORS, default_detectors
from stethoscope.schemas.errors import ConfigError
from stethoscope.streams.config import (
    Config,
    effective_yaml,
    json_schema,
    load_config,
    parse_config,
)

ROOT = Path(__file__).parents[3]
BAD = {
    "detector-twice": (4, "detectors[1]", "give one of them another name"),
    "detectors-not-a-list": (1, "detectors", "begin each detector with '- kind:'"),
    "double-key": (4, "timing.reorder_secs", "keep one"),
    "list-expected": (2, "kafka.brokers", "expected a list"),
    "missing-detector-key": (2, "detectors[0]", "add cause"),
    "missing-kind": (2, "detectors[0]", "add kind"),
    "metric-of-another-scope": (4, "is a metric of scope host", "set scope: host"),
    "not-a-mapping": (1, "not a mapping", "see docs/configuration.md"),
    "not-yaml": (3, "not YAML", "check the spelling"),
    "out-of-range": (2, "kafka.partitions: 0", "expected a whole number >= 1"),
    "secret-from-two-sources": (2, "alertmanager.bearer_token", "give exactly one: env or file"),
    "secret-in-file": (2, "alertmanager.bearer_token", "expected a mapping"),
    "severity-not-a-mapping": (1, "severity", "expected a mapping"),
    "unknown-cause": (2, "severity.job_hung", "did you mean job_hang?"),
    "unknown-detector": (2, "'threshhold'", "did you mean threshold?"),
    "unknown-detector-key": (3, "detectors[0].for_second", "did you mean for_secs?"),
    "unknown-key": (4, "kafka.partions", "did you mean partitions?"),
    "unknown-detector-cause": (
        5,
        "no such cause: 'gpu_overheated'",
        "did you mean gpu_overheating?",
    ),
    "unknown-metric": (4, "no such metric: 'memory_temp'", "did you mean memory_temp_celsius?"),
    "unknown-mode": (3, "detectors[0].mode: 'observ'", "did you mean observe?"),
    "unknown-severity": (2, "severity.job_hang: 'critcal'", "did you mean critical?"),
    "wrong-type": (5, "alertmanager.resend_secs: 'soon'", "expected a number"),
}


def fixture(name: str) -> Path:
    return ROOT / "tests/data/config" / f"{name}.yaml"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_line_with_place_and_remedy(name: str) -> None:
    line, what, remedy = BAD[name]
    with pytest.raises(ConfigError) as caught:
        load_config(fixture(name))
    message = str(caught.value)
    assert message.startswith(f"{fixture(name)}:{line}: ")
    assert what in message
    assert remedy in message
    assert "\n" not in message


def test_every_bad_fixture_is_tested() -> None:
    on_disk = {path.stem for path in (ROOT / "tests/data/config").glob("*.yaml")}
    assert on_disk == {*BAD, "good"}


def test_a_secret_written_out_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(fixture("secret-in-file"))
    assert "hunter2" not in str(caught.value)


def test_a_file_changes_what_it_names_and_nothing_else() -> None:
    config = load_config(fixture("good"))
    assert config.cluster == "prod"
    assert config.kafka.brokers == ["kafka1:9092", "kafka2:9092"]
    assert config.kafka.partitions == Config().kafka.partitions
    assert config.severity == {"job_hang": "warning"}
    kinds = [(detector.__struct_config__.tag, detector.name) for detector in config.detectors]
    defaults = [(d.__struct_config__.tag, d.name) for d in default_detectors()]
    assert kinds == [*defaults, ("threshold", "hot_memory")]
    assert next(d for d in config.detectors if d.__struct_config__.tag == "xid").mode == "observe"


def test_an_entry_keeps_the_defaults_it_does_not_name() -> None:
    default = next(d for d in default_detectors() if d.name)
    kind = default.__struct_config__.tag
    text = f"detectors: [{{kind: {kind}, name: {default.name}, mode: observe}}]"
    changed = next(d for d in parse_config(text, "x.yaml").detectors if d.name == default.name)
    assert changed == msgspec.structs.replace(default, mode="observe")


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "detectors:\n"])
def test_an_empty_file_is_the_defaults(text: str) -> None:
    assert parse_config(text, "x.yaml") == Config() == load_config(None)


def test_the_effective_configuration_reads_back_as_itself() -> None:
    config = load_config(fixture("good"))
    assert parse_config(effective_yaml(config), "x.yaml") == config


def test_missing_unreadable_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    with pytest.raises(ConfigError, match="not text"):
        load_config(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_bytes(b"a: \0")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(tmp_path / "x.yaml")


def test_python_objects_are_not_built() -> None:
    with pytest.raises(ConfigError, match="not YAML"):
        parse_config("cluster: !!python/object/apply:os.getcwd []", "x.yaml")


def test_the_schema_knows_every_detector_and_forbids_unknown_keys() -> None:
    definitions = json_schema()["$defs"]
    assert isinstance(definitions, dict)
    detectors = definitions["Config"]["properties"]["detectors"]["items"]["anyOf"]
    assert len(detectors) == len(DETECTORS)
    assert definitions["Config"]["additionalProperties"] is False
    for one in detectors:
        schema = definitions[one["$ref"].rsplit("/", 1)[-1]]
        assert re.fullmatch(r"[a-z_]+", schema["properties"]["kind"]["enum"][0])
