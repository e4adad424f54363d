#!/usr/bin/env python
"""Write docs/causes.md from schemas/causes.toml; `--check` fails when it is out of date."""

import sys
from collections.abc import Iterator
from pathlib import Path

from stethoscope.schemas.causes import cause_catalogue
from stethoscope.schemas.incidents import alertname_of

PAGE = Path(__file__).parents[1] / "docs" / "causes.md"
HEAD = """# Causes

<!-- Made by scripts/make-cause-reference.py from schemas/causes.toml; edit that. -->

What an incident can say is wrong. The alert's name is the cause in CamelCase. `critical` wakes
someone, `warning` waits for working hours, `info` is recorded only; a *page* is warning or above.
The severities are defaults: the configuration's `severity` overrides them.
`stethoscope explain cause NAME` prints the same.
"""
PLANES = {
    "gpu": "GPU",
    "fabric": "Fabric",
    "node": "Node",
    "job": "Job",
    "self": "The monitor itself",
    "bench": "Benchmarks",
}


def page() -> str:
    """The whole page."""
    return HEAD + "\n" + "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    for plane, title in PLANES.items():
        yield f"## {title}\n"
        for cause in cause_catalogue().values():
            if cause.plane != plane:
                continue
            yield f"### {cause.name}\n"
            meaning = cause.meaning[0].upper() + cause.meaning[1:]
            yield f"{meaning}.\n"
            yield f"`{alertname_of(cause.name)}` · {cause.severity} · {cause.audience}\n"
            yield from (f"{number}. {step}" for number, step in enumerate(cause.actions, 1))
            yield ""


def main() -> None:
    """Write or check the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE} is out of date; run scripts/make-cause-reference.py")
        return
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
