"""Versions that drift apart between nodes: driver, CUDA, NCCL, kernel."""

import re
from pathlib import Path

MAX_MAPS_BYTES = 8 << 20
_DRIVER = re.compile(r"Kernel Module(?: for \w+)?\s+(\d+(?:\.\d+)+)")
_CUDA = re.compile(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+(?:\.\d+)*)"')
_NCCL_PATH = re.compile(r"\s(/\S*/libnccl\.so\.2(?:\.(\d+\.\d+))?)$", re.MULTILINE)
_NCCL_PACKAGE = re.compile(r"^nvidia_nccl_cu\d+-(\d+(?:\.\d+)+)\.dist-info$")


def parse_driver(text: str) -> str | None:
    """``/proc/driver/nvidia/version``.

    >>> parse_driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release")
    '580.159.04'
    """
    match = _DRIVER.search(text)
    return match[1] if match else None


def parse_cuda(text: str) -> str | None:
    """``/usr/local/cuda/version.json``.

    >>> parse_cuda('{"cuda" : {"name" : "CUDA SDK", "version" : "13.0.1"}}')
    '13.0.1'
    """
    match = _CUDA.search(text)
    return match[1] if match else None


def parse_nccl_path(maps: str) -> tuple[str, str | None] | None:
    """The NCCL library in ``/proc/PID/maps``, and its version where the file name has one.

    >>> parse_nccl_path("7f r-xp 0 08:01 5   /usr/lib/libnccl.so.2.28.9")
    ('/usr/lib/libnccl.so.2.28.9', '2.28.9')
    """
    match = _NCCL_PATH.search(maps)
    if match is None:
        return None
    return match[1], f"2.{match[2]}" if match[2] else None


def nccl_version(proc_root: Path, pid: int) -> str | None:
    """The NCCL that a process has loaded; ``None`` where it has none or cannot be looked into.

    Raises:
        OSError: the process ended, or belongs to another user.
    """
    with (proc_root / str(pid) / "maps").open("rb") as file:
        found = parse_nccl_path(file.read(MAX_MAPS_BYTES).decode(errors="replace"))
    if found is None or found[1] is not None:
        return found[1] if found else None
    # SITE/nvidia/nccl/lib/libnccl.so.2 stands beside SITE/nvidia_nccl_cu13-2.28.9.dist-info
    root = proc_root / str(pid) / "root"
    site = root / Path(found[0]).relative_to("/").parents[3]
    names = (_NCCL_PACKAGE.match(p.name) for p in site.glob("nvidia_nccl_cu*.dist-info"))
    return next((match[1] for match in names if match), None)


def host_versions(proc_root: Path, root: Path) -> dict[str, str | None]:
    """Driver, CUDA and kernel, those that are there."""
    versions = {
        "driver": parse_driver(_text(proc_root / "driver/nvidia/version")),
        "cuda": parse_cuda(_text(root / "usr/local/cuda/version.json")),
        "kernel": _text(proc_root / "sys/kernel/osrelease").strip(),
    }
    return {name: version for name, version in versions.items() if version}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
