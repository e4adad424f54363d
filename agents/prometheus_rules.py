"""The mapping of exporters' samples: rules, identities, mounts, and how they are read."""

import re
import tomllib
import warnings
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from stethoscope.schemas.config import Section
from stethoscope.schemas.errors import ConfigError
from stethoscope.schemas.metrics import Metric, registry

Aggregate = Literal["sum", "max", "min", "count", "count_nonzero"]
Convert = Literal["", "milliwatts_to_dbm"]
# DCGM's unit words: what to multiply by to get the canonical unit.
_DCGM_SCALE = {"percent": 0.01, "MiB": 1048576.0, "mJ": 1e-3, "ns": 1e-9}
_SELECTOR = re.compile(r"^\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(?P<labels>.*)\})?\s*$")
_MATCHER = re.compile(
    r'\s*(?P<label>[a-zA-Z_]\w*)\s*(?P<operator>=~|!~|!=|=)\s*"(?P<value>[^"]*)"\s*(?:,|$)'
)


class Matcher(Struct, frozen=True):
    """One condition on a label; an absent label is empty, as in PromQL."""

    label: str
    pattern: "re.Pattern[str]"
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it."""
        found = self.pattern.fullmatch(labels.get(self.label, ""))
        return (found is None) == self.negated


class Selector(Struct, frozen=True):
    """Samples of one name whose labels meet all conditions."""

    name: str
    matchers: tuple[Matcher, ...] = ()


def parse_selector(text: str) -> Selector:
    """Read a selector as PromQL writes it.

    >>> parse_selector('node_cpu_seconds_total{mode=~"idle|iowait"}').matchers[0].label
    'mode'

    Raises:
        ConfigError: it is none.
    """
    match = _SELECTOR.match(text)
    if match is None:
        msg = f"prometheus mapping: not a selector: {text!r}"
        raise ConfigError(msg)
    rest, matchers = match["labels"] or "", []
    while rest.strip():
        one = _MATCHER.match(rest)
        if one is None:
            msg = f"prometheus mapping: cannot read the labels of {text!r}"
            raise ConfigError(msg)
        matchers.append(_matcher(one["label"], one["operator"], one["value"], text))
        rest = rest[one.end() :]
    return Selector(match["name"], tuple(matchers))


def _matcher(label: str, operator: str, value: str, text: str) -> Matcher:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "[[" may mean a set some day
            pattern = re.compile(value if operator.endswith("~") else re.escape(value))
    except re.error as error:
        msg = f"prometheus mapping: bad regular expression in {text!r}: {error}"
        raise ConfigError(msg) from error
    return Matcher(label, pattern, operator.startswith("!"))


class RuleConfig(Section, frozen=True):
    """A rule as written; see the head of ``prometheus_map.toml``."""

    target: str
    plus: list[str]
    minus: list[str] = field(default_factory=list)
    per: list[str] = field(default_factory=list)
    rate: bool = False
    complement: bool = False
    scale: float = 1.0
    convert: Convert = ""
    by: str | None = None
    aggregate: Aggregate = "sum"


class Identity(Section, frozen=True):
    """Which samples belong to a device or a port, and which of their labels say to which."""

    scope: Literal["gpu", "ib"]
    prefix: str
    name: str = ""
    uuid: str = ""
    index: str = ""
    pci: str = ""
    model: str = ""
    instance: str = ""
    pod: str = ""
    namespace: str = ""
    container: str = ""
    job: str = ""
    device: str = ""
    port: str = ""
    state: str = ""
    phys_state: str = ""
    rate_bytes_per_sec: str = ""
    link_layer: str = ""


class MountRule(Section, frozen=True):
    """File systems by label ``path``: share used, and latency from counters.

    With ``free`` (what root could use) the share is as ``df`` shows it; without, all that is not
    ``available`` counts as used.
    """

    path: str
    fstype: str = ""
    fstype_is: str = ""
    size: str = ""
    free: str = ""
    available: str = ""
    time: str = ""
    count: str = ""


class MapFile(Section, frozen=True):
    """A mapping file."""

    rule: list[RuleConfig] = field(default_factory=list)
    identity: list[Identity] = field(default_factory=list)
    mount: list[MountRule] = field(default_factory=list)


class Rule(Struct, frozen=True):
    """A rule with its selectors read."""

    config: RuleConfig
    metric: Metric
    plus: tuple[Selector, ...]
    minus: tuple[Selector, ...]
    per: tuple[Selector, ...]

    def names(self) -> set[str]:
        """Sample names that it reads."""
        return {selector.name for selector in (*self.plus, *self.minus, *self.per)}


class MetricMap(Struct, frozen=True):
    """All rules, ready to use, and the names of all samples that any of them reads."""

    rules: tuple[Rule, ...]
    identities: tuple[Identity, ...]
    mounts: tuple[MountRule, ...]
    names: frozenset[str]

    def identity_of(self, name: str, scope: str) -> Identity | None:
        """Whose sample it is: the longest prefix of that scope."""
        found = [i for i in self.identities if i.scope == scope and name.startswith(i.prefix)]
        return max(found, key=lambda i: len(i.prefix), default=None)


def load_mapping(extra: list[str]) -> MetricMap:
    """The packaged mapping, the registry's names, and the files given, later ones first.

    Raises:
        ConfigError: a file cannot be read or is wrong.
    """
    text = files("stethoscope.agents").joinpath("prometheus_map.toml").read_text(encoding="utf-8")
    maps = [_parse(text, "prometheus_map.toml")]
    for path in extra:
        try:
            maps.append(_parse(Path(path).read_text(encoding="utf-8"), path))
        except OSError as error:
            msg = f"prometheus.mapping_files: {path}: {error.strerror}"
            raise ConfigError(msg) from error
    maps.reverse()
    rules = [_rule(config) for one in maps for config in one.rule]
    said = {name for rule in rules for name in rule.names()}
    rules += [_rule(c) for c in _registry_rules() if c.plus[0] not in said]
    identities = tuple(i for one in maps for i in one.identity)
    mounts = tuple(m for one in maps for m in one.mount)
    return MetricMap(tuple(rules), identities, mounts, _names(rules, identities, mounts))


def _parse(text: str, source: str) -> MapFile:
    try:
        return msgspec.convert(tomllib.loads(text), MapFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        msg = f"prometheus mapping {source}: {error}"
        raise ConfigError(msg) from error


def _rule(config: RuleConfig) -> Rule:
    metric = registry().get(config.target)
    if metric is None:
        msg = f"prometheus mapping: no metric {config.target!r}; schemas/metrics.toml lists them"
        raise ConfigError(msg)
    read = [tuple(map(parse_selector, part)) for part in (config.plus, config.minus, config.per)]
    return Rule(config, metric, read[0], read[1], read[2])


def _registry_rules() -> list[RuleConfig]:
    """Rules that the registry implies: DCGM's names, and plain names of the other exporters."""
    rules: list[RuleConfig] = []
    for name, metric in registry().items():
        scale = _DCGM_SCALE.get(metric.dcgm_unit, 1.0)
        rules += [RuleConfig(target=name, plus=[dcgm], scale=scale) for dcgm in metric.dcgm]
        if metric.npu_exporter:
            rules.append(RuleConfig(target=name, plus=[metric.npu_exporter]))
        if metric.scope == "ib" and metric.node_exporter:
            rules.append(RuleConfig(target=name, plus=[metric.node_exporter]))
    return rules


def _names(
    rules: list[Rule], identities: tuple[Identity, ...], mounts: tuple[MountRule, ...]
) -> frozenset[str]:
    names = {name for rule in rules for name in rule.names()}
    names.update(n for i in identities for n in (i.state, i.phys_state, i.rate_bytes_per_sec) if n)
    for mount in mounts:
        texts = (mount.size, mount.free, mount.available, mount.time, mount.count)
        names.update(parse_selector(text).name for text in texts if text)
    return frozenset(names)
