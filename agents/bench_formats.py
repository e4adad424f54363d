"""Parsers of benchmark output: text in, runs out. Pure; a line that does not fit is left out."""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct, field

from stethoscope.schemas.events import BenchRow

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
MAX_ROWS = 10_000


class Run(Struct):
    """One benchmark run, as its output tells it. ``node`` is where rank 0 ran, if it says so."""

    test: str
    rows: list[BenchRow] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    world_size: int | None = None
    node: str | None = None


def _float(text: str) -> float | None:
    """A finite number; ``None`` for ``N/A`` and the like."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# --- nccl-tests ------------------------------------------------------------------------------

_NCCL_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
_NCCL_NAME = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_scatter|broadcast|reduce|all_?to_?all|gather|scatter"
    r"|sendrecv|hypercube)_perf\b"
)
_NCCL_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)(?:\+cuda(\d+(?:\.\d+)*))?")
_NCCL_LIBRARY = re.compile(r"nccl-library=(\d{4,6})\b")
_NCCL_SPELLING = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}


def parse_nccl_tests(text: str) -> list[Run]:
    """nccl-tests, any collective; the out-of-place columns.

    A file may hold several runs: each header line with ``_perf`` or column names starts one.
    """
    runs: list[Run] = []
    name, ranks = "", 0
    nodes: dict[int, str] = {}
    versions: dict[str, str | None] = {}
    for line in text.splitlines():
        if match := _NCCL_RANK.search(line):
            ranks, _ = ranks + 1, nodes.setdefault(int(match[1]), match[2])
        elif match := _NCCL_NAME.search(line):
            squeezed = match[1].replace("_", "")
            name, ranks, nodes = _NCCL_SPELLING.get(squeezed, match[1]), 0, {}
            _version(versions, line)
        elif re.search(r"#\s+size\s+count\s+type", line):
            run = Run(name or "nccl", versions=versions, world_size=ranks or None)
            run.node = nodes.get(0)
            runs.append(run)
        elif runs and (row := _nccl_row(line)) and len(runs[-1].rows) < MAX_ROWS:
            runs[-1].rows.append(row)
        else:
            _version(versions, line)
    return [run for run in runs if run.rows]


def _version(versions: dict[str, str | None], line: str) -> None:
    if match := _NCCL_VERSION.search(line):
        versions["nccl"] = match[1]
        if match[2]:
            versions["cuda"] = match[2]
    elif match := _NCCL_LIBRARY.search(line):
        code = int(match[1])
        versions["nccl"] = f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _nccl_row(line: str) -> BenchRow | None:
    """``size count type [redop] [root]``, then twice ``time algbw busbw #wrong``."""
    words = line.split()
    if len(words) not in (11, 12, 13) or not re.fullmatch(r"[0-9]{1,18}", words[0]):
        return None
    time_us, algbw, busbw = (_float(word) for word in words[-8:-5])
    if time_us is None:
        return None
    return BenchRow(
        size_bytes=int(words[0]),
        time_secs=time_us / 1e6,
        algbw_bytes_per_sec=None if algbw is None else algbw * 1e9,
        busbw_bytes_per_sec=None if busbw is None else busbw * 1e9,
    )


# --- perftest --------------------------------------------------------------------------------

_PERFTEST_NAME = re.compile(r"\b(RDMA_Write|RDMA_Read|Send|Atomic\w*)\s+(?:Bidirectional )?BW Test")
_PERFTEST_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+|N/A)\s+([\d.]+)\s+([\d.]+)\s*$")
_PERFTEST_UNITS = {"MB": 1048576.0, "MiB": 1048576.0, "Gb": 1e9 / 8}


def parse_ib_write_bw(text: str) -> list[Run]:
    """Perftest's bandwidth tests (``ib_write_bw``, ``ib_read_bw``, ``ib_send_bw``): the average."""
    runs: list[Run] = []
    per_unit: float | None = None
    for line in text.splitlines():
        if match := _PERFTEST_NAME.search(line):
            word = match[1].removeprefix("RDMA_").lower()
            runs.append(Run(f"ib_{word}_bw"))
        elif unit := re.search(r"BW average\[(MB|MiB|Gb)/sec\]", line):
            per_unit = _PERFTEST_UNITS[unit[1]]
        elif per_unit and runs and (row := _PERFTEST_ROW.match(line)):
            average = _float(row[4])
            if average is not None and len(row[1]) < 19:
                runs[-1].rows.append(
                    BenchRow(
                        size_bytes=int(row[1]),
                        algbw_bytes_per_sec=average * per_unit,
                        busbw_bytes_per_sec=average * per_unit,
                    )
                )
    return [run for run in runs if run.rows]


# --- dcgmi diag -j ---------------------------------------------------------------------------

_DCGM_KEYS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_DCGM_RANK = {"pass": 1, "skip": 0, "warn": 2, "fail": 3}


def parse_dcgm_diag(text: str) -> list[Run]:
    """``dcgmi diag -j``: the worst status of each test, and that of each GPU in it."""
    document = _json(text)
    root = document if isinstance(document, dict) else {}
    body = next((root[key] for key in _DCGM_KEYS if key in root), None)
    if not isinstance(body, dict):
        return []
    run = Run("dcgm_diag")
    metadata = root.get("metadata")
    versions = {**body, **(metadata if isinstance(metadata, dict) else {})}
    for key, name in (("Driver Version Detected", "driver"), ("version", "dcgm")):
        if isinstance(value := versions.get(key), str):
            run.versions[name] = value
    for test in _dcgm_tests(body):
        name = str(test.get("name", "")).strip().lower().replace(" ", "_")
        for entity, status in _dcgm_statuses(test):
            _worse(run.results, name, status)
            if entity is not None:
                _worse(run.results, f"{name}/{entity}", status)
    return [run] if run.results else []


def _dcgm_tests(body: dict[str, Json]) -> Iterator[dict[str, Json]]:
    for category in _dicts(body.get("test_categories")):
        yield from _dicts(category.get("tests"))
    yield from _dicts(body.get("tests"))


def _dcgm_statuses(test: dict[str, Json]) -> Iterator[tuple[str | None, str]]:
    for result in _dicts(test.get("results")):
        status = str(result.get("status", "")).lower()
        if status not in _DCGM_RANK:
            continue
        which = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids")))
        group = str(result.get("entity_group", "GPU")).lower()
        yield (None if which is None else f"{group}{which}", status)
    summary = test.get("test_summary")
    if isinstance(summary, dict) and (status := str(summary.get("status")).lower()) in _DCGM_RANK:
        yield None, status


def _worse(results: dict[str, str], name: str, status: str) -> None:
    if _DCGM_RANK[status] >= _DCGM_RANK.get(results.get(name, ""), -1):
        results[name] = status


# --- fio -------------------------------------------------------------------------------------

_SIZE = re.compile(r"^(\d{1,12})\s*([kmgt]?)i?b?$", re.IGNORECASE)
_SIZE_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_fio(text: str) -> list[Run]:
    """``fio --output-format=json``: one run a job and direction that moved bytes."""
    document = _json(text)
    if not isinstance(document, dict) or "fio version" not in document:
        return []
    options = document.get("global options")
    shared = options if isinstance(options, dict) else {}
    runs: list[Run] = []
    for job in _dicts(document.get("jobs")):
        own = job.get("job options")
        settings = {**shared, **(own if isinstance(own, dict) else {})}
        for direction in ("read", "write", "trim"):
            numbers = job.get(direction)
            if isinstance(numbers, dict) and (_number(numbers, "io_bytes") or 0) > 0:
                run = _fio_run(direction, numbers, settings)
                run.versions["fio"] = str(document["fio version"])
                runs.append(run)
    return runs


def _fio_run(direction: str, numbers: dict[str, Json], settings: dict[str, Json]) -> Run:
    run = Run(f"fio_{direction}")
    runtime_ms = _number(numbers, "runtime")
    bandwidth = _number(numbers, "bw_bytes")
    size = parse_size(str(settings.get("bs", "4k"))) or 4096
    run.rows = [
        BenchRow(
            size_bytes=size,
            time_secs=None if runtime_ms is None else runtime_ms / 1e3,
            algbw_bytes_per_sec=bandwidth,
        )
    ]
    latency = numbers.get("clat_ns")
    if isinstance(latency, dict):
        percentiles = latency.get("percentile")
        found = {
            "latency_mean_secs": _number(latency, "mean"),
            "latency_max_secs": _number(latency, "max"),
            "latency_p99_secs": _number(percentiles, "99.000000")
            if isinstance(percentiles, dict)
            else None,
        }
        run.values = {name: value / 1e9 for name, value in found.items() if value is not None}
    if (operations := _number(numbers, "iops")) is not None:
        run.values["operations_per_sec"] = operations
    return run


def parse_size(text: str) -> int | None:
    """Fio's sizes, powers of 1024.

    >>> parse_size("4k"), parse_size("1MiB"), parse_size("?")
    (4096, 1048576, None)
    """
    match = _SIZE.match(text.split(",", 1)[0].strip())
    return int(match[1]) * 1024 ** _SIZE_POWERS[match[2].lower()] if match else None


# --- gpu-burn --------------------------------------------------------------------------------

_BURN_LINE = re.compile(r"proc'd:(?P<speeds>.*?)errors:(?P<errors>.*?)temps:(?P<temps>.*)$")
_BURN_VERDICT = re.compile(r"^\s*GPU\s+(\d+):\s+(OK|FAULTY)\b", re.MULTILINE)


def parse_gpu_burn(text: str) -> list[Run]:
    """gpu-burn: the last speed, errors and temperature of each GPU, and its verdicts."""
    run = Run("gpu_burn")
    for line in re.split(r"[\r\n]+", text):
        if match := _BURN_LINE.search(line):
            _burn_values(run, match)
    for index, verdict in _BURN_VERDICT.findall(text):
        run.results[f"gpu{index}"] = "pass" if verdict == "OK" else "fail"
    run.world_size = len(run.results) or None
    return [run] if run.results or run.values else []


def _burn_values(run: Run, match: "re.Match[str]") -> None:
    # Cells stand apart by " - "; a GPU without a reading has "--" in its place.
    speeds = re.findall(r"\(([\d.]+) Gflop/s\)", match["speeds"])
    errors = re.findall(r"\d+|--", match["errors"].partition("(")[0])
    temps = re.findall(r"(\d+)\s*C|(--)", match["temps"])
    for index, speed in enumerate(speeds):
        if (value := _float(speed)) is not None:
            run.values[f"gpu{index}/flops_per_sec"] = value * 1e9
    for index, count in enumerate(errors):
        if count != "--":
            run.values[f"gpu{index}/errors_total"] = float(count[:18])
    for index, (temp, _) in enumerate(temps):
        if temp:
            run.values[f"gpu{index}/temp_celsius"] = float(temp[:6])


# --- all of them -----------------------------------------------------------------------------

FORMATS: dict[str, Callable[[str], list[Run]]] = {
    "nccl-tests": parse_nccl_tests,
    "ib_write_bw": parse_ib_write_bw,
    "dcgmi-diag": parse_dcgm_diag,
    "fio": parse_fio,
    "gpu-burn": parse_gpu_burn,
}


def parse_any(text: str) -> list[Run]:
    """The runs of the first format that finds any."""
    for parse in FORMATS.values():
        if runs := parse(text):
            return runs
    return []


def _json(text: str) -> Json:
    """The JSON object in the text; tools write notes before and after it."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return None
    try:
        document: Json = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return None
    return document


def _dicts(value: Json) -> Iterator[dict[str, Json]]:
    """The objects of a list."""
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _number(numbers: dict[str, Json], name: str) -> float | None:
    value = numbers.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
