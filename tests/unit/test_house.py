"""The house: tracked text names no machine, and generated pages are up to date."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A path of one machine, or an address that packages are fetched from. Split, so that this file is
# clean itself.
FORBIDDEN = {
    "machine path": re.compile(r"(?<![\w.])/(?:home|Users|root|wor" + r"k)/[\w.-]+"),
    "download address": re.compile(
        r"https?://[\w./-]*(?:pypi\.|pythonhosted|proxy\.golang|repo1?\.maven|npmjs|deb\.debian)"
        r"|https?://[\w./-]+\.(?:whl|tar\.gz|tgz|zip|jar|deb)\b"
    ),
    "checkout path": re.compile(r"(?<![\w.])/wor" + r"k/(?:main|shared|repo)"),
    "shared folder": re.compile(r"\.\./shar" + r"ed/"),
}
# Captured output of real programs, kept byte for byte.
RECORDED = ("tests/data/", "replay/recordings/")
# Tests hold sample paths of made-up machines, and may look for data beside the checkout.
IN_TESTS = {"machine path": ("tests/",), "shared folder": ("tests/", "benchmarks/")}


def tracked() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(name: str) -> str:
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize("what", FORBIDDEN)
def test_tracked_files_name_no_machine_and_no_registry(what: str) -> None:
    found = [
        f"{name}: {hit[0]}"
        for name in tracked()
        if not name.startswith((*RECORDED, *IN_TESTS.get(what, ())))
        for hit in FORBIDDEN[what].finditer(text_of(name))
    ]
    assert not found


@pytest.mark.parametrize(
    ("what", "bad"),
    [
        ("machine path", "see /home" + "/alice/x"),
        ("checkout path", "see /wor" + "k/main/x"),
        ("download address", "https://files.python" + "hosted.org/x"),
        ("download address", "https://example.com/a" + ".whl"),
        ("shared folder", "../shar" + "ed/data"),
    ],
)
def test_the_patterns_find_what_they_are_for(what: str, bad: str) -> None:
    assert FORBIDDEN[what].search(bad)


@pytest.mark.parametrize("good", ["/dev/kmsg", "/sys/class/infiniband", "https://example.com/docs"])
def test_the_patterns_pass_what_is_fine(good: str) -> None:
    assert not any(pattern.search(good) for pattern in FORBIDDEN.values())


@pytest.mark.parametrize("name", ["make-config-reference.py", "make-cause-reference.py"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    script = ROOT / "scripts" / name
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_data_file_of_a_package_ships() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = tool["package-data"]["*"]
    folders = tuple(f"{folder}/" for folder in tool["package-dir"].values())
    left_out = [
        name
        for name in tracked()
        if name.startswith(folders)
        and not name.endswith(".py")
        and not any(_matches(_inside_package(name), pattern) for pattern in patterns)
    ]
    assert not left_out


def _inside_package(name: str) -> Path:
    """The path from the nearest folder that is a package."""
    path = ROOT / name
    package = next(up for up in path.parents if (up / "__init__.py").exists())
    return path.relative_to(package)


def _matches(path: Path, pattern: str) -> bool:
    return len(path.parts) == len(Path(pattern).parts) and path.match(pattern)


LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{name}: {target}"
        for name in tracked()
        if name.endswith(".md")
        for target in LINK.findall(text_of(name))
        if not (ROOT / name).parent.joinpath(target).exists()
    ]
    assert not broken
