"""The repository's shape: packages that ship, and which folder may import which."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_IMPORT: dict[str, set[str]] = {
    "schemas": set(),
    "agents": {"schemas"},
    "detectors": {"schemas"},
    "correlation": {"schemas"},
    "sinks": {"schemas"},
    "streams": {"schemas", "detectors", "correlation", "sinks"},
    "replay": {"schemas", "detectors", "correlation", "sinks", "streams"},
    "cli": {"schemas", "agents", "detectors", "correlation", "sinks", "streams", "replay"},
}
KEEP_OUT = {
    "schemas": {"faust", "kafka", "river", "sklearn"},
    "detectors": {"faust", "kafka", "socket", "requests"},
    "correlation": {"faust", "kafka", "socket", "httpx"},
    "agents": {"faust", "river", "sklearn", "pyarrow"},
}


def imported(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path, node.module


def test_every_subpackage_ships() -> None:
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    on_disk = {
        ".".join(["stethoscope", *init.parent.relative_to(ROOT).parts])
        for folder in MAY_IMPORT
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == on_disk


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_imports_only_what_it_may(folder: str) -> None:
    allowed = MAY_IMPORT[folder] | {folder}
    wrong = [
        (str(path), name)
        for path, name in imported(ROOT / folder)
        if name.startswith("stethoscope.") and name.split(".")[1] not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("folder", KEEP_OUT)
def test_folder_keeps_heavy_imports_out(folder: str) -> None:
    wrong = [(str(p), n) for p, n in imported(ROOT / folder) if n.split(".")[0] in KEEP_OUT[folder]]
    assert not wrong
