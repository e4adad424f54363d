#!/usr/bin/env python
"""Write docs/configuration.md from the configuration structs.

`make-config-reference.py` writes the page; with `--check` it fails when the page is out of date.
"""

import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import msgspec
from msgspec import inspect

from stethoscope.detectors.registry import DETECTORS
from stethoscope.schemas.config import DetectorConfig
from stethoscope.streams.config import Config

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration reference

<!-- Made by scripts/make-config-reference.py from the structs; edit those. -->

One YAML file, given with `--config FILE`. Without one the defaults below hold, and they are good
enough to run. Unknown keys are errors. `stethoscope config check FILE` says whether a file can be
used, `stethoscope config show FILE` prints it with every default written out, and
`stethoscope config schema` prints its JSON Schema for editors.

Secrets never stand in the file: `password`, `bearer_token` and the like name an environment
variable (`{env: NAME}`) or a file (`{file: PATH}`).

```yaml
cluster: prod
kafka:
  brokers: [kafka1:9092, kafka2:9092]
alertmanager:
  urls: [http://alertmanager:9093]
severity:
  job_hang: warning          # a cause's default severity, overridden
detectors:
  - kind: xid                # same kind and name as a default: changes that default
    mode: observe            # page | observe (recorded and counted, never pages) | off
  - kind: threshold          # another name: one more detector
    name: hot_memory
    metric: memory_temp_celsius
    cause: gpu_overheating
    limit: 95
    for_secs: 10
    match: {nodes: ["gpu-*"]}
```

"""


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    root = _struct(Config)
    yield from _section("Top level", root, Config)
    done = {Config}
    for one in root.fields:
        if one.encode_name != "detectors":
            yield from _nested(one.encode_name, one.type, done)
    yield from _section("Every detector", _struct(DetectorConfig), DetectorConfig)
    yield from _nested("match", _struct(DetectorConfig).fields[3].type, done)
    common = {one.encode_name for one in _struct(DetectorConfig).fields}
    for kind, entry in DETECTORS.items():
        changed = _changed(entry.config, common)
        yield from _section(f"Detector `{kind}`", changed, entry.config)


def _changed(config: type, common: set[str]) -> inspect.StructType:
    """A detector's own settings, and the common ones whose default it changes."""
    base = {one.encode_name: one for one in _struct(DetectorConfig).fields}
    info = _struct(config)
    own = tuple(
        one
        for one in info.fields
        if one.encode_name not in common or one.default != base[one.encode_name].default
    )
    return msgspec.structs.replace(info, fields=own)


def _nested(name: str, kind: inspect.Type, done: set[type]) -> Iterator[str]:
    info = _inner(kind)
    if info is None or info.cls in done:
        return
    done.add(info.cls)
    yield from _section(f"`{name}`", info, info.cls)
    for one in info.fields:
        yield from _nested(f"{name}.{one.encode_name}", one.type, done)


def _inner(kind: inspect.Type) -> inspect.StructType | None:
    if isinstance(kind, inspect.StructType):
        return kind
    if isinstance(kind, inspect.UnionType):
        return next((one for one in kind.types if isinstance(one, inspect.StructType)), None)
    return None


def _struct(kind: type) -> inspect.StructType:
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType):
        message = f"{kind} is no struct"
        raise TypeError(message)
    return info


def _section(title: str, info: inspect.StructType, kind: type) -> Iterator[str]:
    yield f"## {title}\n"
    yield cleandoc(kind.__doc__ or "").replace("``", "`") + "\n"
    if info.fields:
        yield "| key | type | default |"
        yield "|---|---|---|"
        for one in info.fields:
            yield f"| `{one.encode_name}` | {_type(one.type)} | {_default(one)} |"
        yield ""


def _type(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return _type(kind.type)
        case inspect.UnionType():
            kinds = [_type(x) for x in kind.types if not isinstance(x, inspect.NoneType)]
            return " or ".join(dict.fromkeys(kinds))
        case inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case inspect.StructType():
            return "mapping"
        case inspect.ListType():
            return f"list of {_type(kind.item_type)}".replace("list of mapping", "list of mappings")
        case inspect.DictType():
            return f"mapping of {_type(kind.key_type)} to {_type(kind.value_type)}"
        case inspect.IntType() | inspect.FloatType():
            return _number(kind)
        case inspect.BoolType():
            return "true or false"
    return "text"


def _number(kind: inspect.IntType | inspect.FloatType) -> str:
    word = "whole number" if isinstance(kind, inspect.IntType) else "number"
    bounds = ((">", kind.gt), ("≥", kind.ge), ("<", kind.lt), ("≤", kind.le))
    limits = [f"{sign} {limit:g}" for sign, limit in bounds if limit is not None]
    return " ".join([word, " and ".join(limits)]).strip()


def _default(one: inspect.Field) -> str:
    if one.required:
        return "required"
    if one.encode_name == "detectors":
        return "see `stethoscope config show`"
    if one.default is not inspect.NODEFAULT:
        return _value(one.default)
    made = one.default_factory() if callable(one.default_factory) else None
    return "see below" if isinstance(made, msgspec.Struct) else _value(made)


def _value(value: object) -> str:
    if value is None or value == "":
        return "none"
    return f"`{msgspec.json.encode(value).decode()}`"


def main() -> None:
    """Write or check the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE} is out of date; run scripts/make-config-reference.py")
        return
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
