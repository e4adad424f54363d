"""The one configuration file: its root struct, and reading it.

Defaults stand in the structs (``schemas/config.py`` and beside each detector), so that an empty
file is a good one. The ``detectors`` list only says what differs: an entry whose ``kind`` and
``name`` are those of a default changes that default, any other adds an instance.
"""

from pathlib import Path
from typing import TypeAlias, cast

import msgspec
import yaml
from msgspec import field

from stethoscope.detectors.registry import DETECTORS, AnyDetectorConfig, default_detectors
from stethoscope.schemas.causes import cause_catalogue
from stethoscope.schemas.config import (
    Alertmanager,
    Correlation,
    DetectorConfig,
    Kafka,
    Links,
    Secret,
    Section,
    Timing,
)
from stethoscope.schemas.incidents import Severity
from stethoscope.schemas.metrics import registry
from stethoscope.schemas.strict_yaml import Document, Key, did_you_mean, read_document

_Entry: TypeAlias = dict[str, object]


class Config(Section, frozen=True, kw_only=True):
    """Everything a worker, or a replay, can be told.

    ``severity`` overrides the default severity of a cause. ``detectors`` is the effective list.
    """

    cluster: str = "default"
    kafka: Kafka = field(default_factory=Kafka)
    alertmanager: Alertmanager = field(default_factory=Alertmanager)
    timing: Timing = field(default_factory=Timing)
    correlation: Correlation = field(default_factory=Correlation)
    links: Links = field(default_factory=Links)
    severity: dict[str, Severity] = field(default_factory=dict)
    detectors: list[AnyDetectorConfig] = field(default_factory=default_detectors)


def load_config(path: Path | None) -> Config:
    """The configuration in the file; the defaults without one.

    Raises:
        ConfigError: one line that names file, line, key, value and remedy.
    """
    return Config() if path is None else _config(read_document(path))


def parse_config(text: str, file: str) -> Config:
    """As ``load_config``, for a text; ``file`` is the name that errors begin with."""
    return _config(Document(text, file))


def effective_yaml(config: Config) -> str:
    """The configuration with every default written out, as YAML that ``load_config`` reads."""
    return yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False, allow_unicode=True)


def json_schema() -> dict[str, object]:
    """The JSON Schema of the file, for editors; all detector kinds included."""
    (root,), definitions = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stethoscope",
        **root,
        "$defs": definitions,
    }


def _config(document: Document) -> Config:
    data = document.mapping()
    detectors = _detectors(document, data.get("detectors"))
    plain = {key: value for key, value in data.items() if key != "detectors"}
    _check_severities(document, plain.get("severity"))
    config = msgspec.structs.replace(document.convert(Config, plain), detectors=detectors)
    _check_secrets(document, plain, ())
    return config


def _detectors(document: Document, entries: object) -> list[AnyDetectorConfig]:
    effective = {(_kind(one), one.name): one for one in default_detectors()}
    if entries is None:
        return list(effective.values())
    if not isinstance(entries, list):
        raise document.error(("detectors",), "not a list", "begin each detector with '- kind:'")
    seen: set[tuple[str, str]] = set()
    for index, entry in enumerate(entries):
        at = ("detectors", index)
        key = _identity(document, entry, at)
        if key in seen:
            what = f"kind {key[0]!r} with name {key[1]!r} stands twice"
            raise document.error(at, what, "give one of them another name")
        seen.add(key)
        effective[key] = _detector(document, entry, at, effective.get(key))
    return list(effective.values())


def _identity(document: Document, entry: object, at: tuple[Key, ...]) -> tuple[str, str]:
    if not isinstance(entry, dict) or "kind" not in entry:
        raise document.error(at, "a detector without a kind", "add kind")
    kind = entry["kind"]
    if not isinstance(kind, str) or kind not in DETECTORS:
        raise document.error(
            (*at, "kind"), f"{kind!r} is no detector", did_you_mean(kind, DETECTORS)
        )
    return kind, str(entry.get("name", ""))


def _detector(
    document: Document, entry: _Entry, at: tuple[Key, ...], default: AnyDetectorConfig | None
) -> AnyDetectorConfig:
    config_type = DETECTORS[str(entry["kind"])].config
    base: _Entry = {} if default is None else msgspec.to_builtins(default)
    config = cast("AnyDetectorConfig", document.convert(config_type, base | entry, at))
    _check_names(document, config, at)
    return config


def _check_names(document: Document, config: DetectorConfig, at: tuple[Key, ...]) -> None:
    """Metric and cause exist, and the detector looks where the metric lives."""
    for key, known in (("metric", registry()), ("cause", cause_catalogue())):
        name = getattr(config, key, None)
        if name is not None and name not in known:
            raise document.error((*at, key), f"no such {key}: {name!r}", did_you_mean(name, known))
    metric = registry().get(getattr(config, "metric", ""))
    scope = getattr(config, "scope", None) or getattr(
        DETECTORS[_kind(config)].detector, "scope", ""
    )
    if metric is not None and metric.scope != scope:
        what = f"{metric.name} is a metric of scope {metric.scope}, this detector looks at {scope}"
        remedy = (
            f"set scope: {metric.scope}" if hasattr(config, "scope") else f"name one of {scope}"
        )
        raise document.error((*at, "metric"), what, remedy)


def _kind(config: DetectorConfig) -> str:
    return str(type(config).__struct_config__.tag)


def _check_severities(document: Document, severities: object) -> None:
    """Here rather than in the type, so that the error names the cause."""
    for cause, severity in severities.items() if isinstance(severities, dict) else ():
        at = ("severity", str(cause))
        if cause not in cause_catalogue():
            raise document.error(at, "no such cause", did_you_mean(cause, cause_catalogue()))
        if severity not in _SEVERITIES:
            what = f"{severity!r} is not known"
            raise document.error(at, what, did_you_mean(severity, _SEVERITIES))


_SEVERITIES = ("critical", "warning", "info")
_SECRETS = ("password", "key_password", "bearer_token")


def _check_secrets(document: Document, data: object, at: tuple[Key, ...]) -> None:
    for key, value in data.items() if isinstance(data, dict) else ():
        if key in _SECRETS and isinstance(value, dict):
            secret = document.convert(Secret, value, (*at, key))
            if (secret.env is None) == (secret.file is None):
                raise document.error((*at, key), "not one source", "give exactly one: env or file")
        _check_secrets(document, value, (*at, key))
