"""Benchmark output becomes bench events."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from stethoscope.agents.bench import Source, bench_events
from stethoscope.agents.bench_formats import (
    FORMATS,
    parse_dcgm_diag,
    parse_fio,
    parse_gpu_burn,
    parse_ib_write_bw,
    parse_nccl_tests,
)
from stethoscope.cli.app import app
from stethoscope.schemas.codec import decode_line
from stethoscope.schemas.errors import InputError
from stethoscope.schemas.events import BenchEvent, BenchRow, event_id

DATA = Path(__file__).parents[2] / "data"
NCCL = (DATA / "nccl_tests.txt").read_text()
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
    "hypercube": "hypercube",
}
PERFTEST = (DATA / "ib_write_bw.txt").read_text()
BURN = (
    "GPU 0: NVIDIA H200 (UUID: GPU-1)\nBurning for 60 seconds.\n"
    "\r50.0%  proc'd: 100 (400 Gflop/s) - 90 (350 Gflop/s)   errors: 0 - 3  (WARNING!)"
    "   temps: 41 C - -- \r"
    "100.0%  proc'd: 200 (420 Gflop/s) - 180 (360 Gflop/s)   errors: 0 - 7  (WARNING!)"
    "   temps: 61 C - -- \n"
    "Killing processes.. done\n\nTested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n"
)
DCGM = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "software",
                        "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}],
                    }
                ],
            },
            {
                "category": "Stress",
                "tests": [
                    {
                        "name": "Targeted Power",
                        "results": [
                            {"entity_group": "GPU", "entity_id": 0, "status": "Pass"},
                            {"entity_group": "GPU", "entity_id": 1, "status": "Fail"},
                        ],
                        "test_summary": {"status": "Fail"},
                    }
                ],
            },
        ]
    },
    "metadata": {"version": "4.2.3", "Driver Version Detected": "580.82.09"},
}
FIO = {
    "fio version": "fio-3.33",
    "global options": {"bs": "1M"},
    "jobs": [
        {
            "jobname": "seq",
            "job options": {"rw": "rw"},
            "read": {
                "io_bytes": 1000,
                "bw_bytes": 5e9,
                "iops": 4768.0,
                "runtime": 30000,
                "clat_ns": {"mean": 2e6, "max": 9e6, "percentile": {"99.000000": 5000000}},
            },
            "write": {"io_bytes": 0, "bw_bytes": 0},
        }
    ],
}


@pytest.mark.parametrize(("program", "test"), COLLECTIVES.items())
@pytest.mark.parametrize("redop", ["sum", "none", ""])
def test_nccl_tests_of_every_collective(program: str, test: str, redop: str) -> None:
    (run,) = parse_nccl_tests(NCCL.format(name=program, redop=redop))
    assert (run.test, run.world_size, run.versions) == (test, 2, {"nccl": "2.28.7"})
    assert run.node == "node01.hpc.example.edu"
    assert run.rows[1] == BenchRow(33554432, 200e-6, 167.77e9, 293.60e9)


def test_several_runs_in_one_file() -> None:
    text = NCCL.format(name="all_reduce", redop="sum") + NCCL.format(name="sendrecv", redop="none")
    assert [(r.test, len(r.rows)) for r in parse_nccl_tests(text)] == [
        ("all_reduce", 2),
        ("sendrecv", 2),
    ]


@pytest.mark.parametrize(
    ("unit", "per_sec"), [("MB", 391.54 * 2**20), ("MiB", 391.54 * 2**20), ("Gb", 391.54e9 / 8)]
)
def test_perftest_in_its_units(unit: str, per_sec: float) -> None:
    (run,) = parse_ib_write_bw(PERFTEST.replace("{unit}", unit))
    assert run.test == "ib_write_bw"
    assert run.rows[0].size_bytes == 65536
    assert run.rows[0].algbw_bytes_per_sec == pytest.approx(per_sec)


def test_dcgm_diag_keeps_the_worst_status() -> None:
    (run,) = parse_dcgm_diag("note\n" + json.dumps(DCGM))
    assert run.results == {
        "software": "pass",
        "software/gpu0": "pass",
        "targeted_power": "fail",
        "targeted_power/gpu0": "pass",
        "targeted_power/gpu1": "fail",
    }
    assert run.versions == {"driver": "580.82.09", "dcgm": "4.2.3"}


def test_dcgm_diag_of_an_older_version() -> None:
    old = {
        "DCGM GPU Diagnostic": {
            "test_categories": [
                {"tests": [{"name": "Memory", "results": [{"gpu_ids": "0", "status": "Pass"}]}]}
            ]
        }
    }
    (run,) = parse_dcgm_diag(json.dumps(old))
    assert run.results == {"memory": "pass", "memory/gpu0": "pass"}


def test_fio_of_a_job() -> None:
    (run,) = parse_fio(json.dumps(FIO))
    assert run.test == "fio_read"
    assert run.rows == [BenchRow(2**20, 30.0, 5e9)]
    assert run.values == {
        "latency_mean_secs": 2e-3,
        "latency_max_secs": 9e-3,
        "latency_p99_secs": 5e-3,
        "operations_per_sec": 4768.0,
    }


def test_gpu_burn_keeps_columns_aligned_and_verdicts() -> None:
    (run,) = parse_gpu_burn(BURN)
    assert run.results == {"gpu0": "pass", "gpu1": "fail"}
    assert run.values == {
        "gpu0/flops_per_sec": 420e9,
        "gpu1/flops_per_sec": 360e9,
        "gpu0/errors_total": 0,
        "gpu1/errors_total": 7,
        "gpu0/temp_celsius": 61,
    }


SOURCE = Source(time_unix_ns=5, node="here")


@pytest.mark.parametrize(
    ("text", "test"),
    [
        (NCCL.format(name="all_reduce", redop="sum"), "all_reduce"),
        (PERFTEST.replace("{unit}", "Gb"), "ib_write_bw"),
        (json.dumps(DCGM), "dcgm_diag"),
        (json.dumps(FIO), "fio_read"),
        (BURN, "gpu_burn"),
    ],
)
def test_the_format_is_found_out(text: str, test: str) -> None:
    assert [event.test for event in bench_events(text, SOURCE)] == [test]


def test_a_file_read_twice_is_one_event() -> None:
    first, again = (bench_events(BURN, SOURCE)[0] for _ in range(2))
    assert event_id(first) == event_id(again)
    assert event_id(first) != event_id(bench_events(BURN + " ", SOURCE)[0])


def test_what_is_no_benchmark_is_refused() -> None:
    with pytest.raises(InputError, match="formats tried: nccl-tests"):
        bench_events("hello\n", SOURCE)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.text() | JSON.map(json.dumps))
def test_any_text_is_survived(text: str) -> None:
    for parse in FORMATS.values():
        for run in parse(text) + parse(BURN + text) + parse(NCCL + text):
            assert run.test


@given(JSON)
def test_any_document_of_the_right_name_is_survived(value: object) -> None:
    for key in ("test_categories", "tests"):
        parse_dcgm_diag(json.dumps({"DCGM Diagnostic": {key: value}, "metadata": value}))
    for key in ("jobs", "global options"):
        parse_fio(json.dumps({"fio version": "3", key: value}))
    parse_fio(json.dumps({"fio version": "3", "jobs": [{"read": value, "job options": value}]}))


def test_the_command_writes_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(NCCL.format(name="all_reduce", redop="sum"))
    (tmp_path / "b.log").write_text(BURN)
    arguments = ["bench", "ingest", str(tmp_path / "a.log"), str(tmp_path / "b.log")]
    result = CliRunner().invoke(app, [*arguments, "--job-id", "7", "--time", "2"])
    assert result.exit_code == 0
    events = [decode_line(line.encode()) for line in result.stdout.splitlines()]
    assert all(isinstance(e, BenchEvent) for e in events)
    assert [(e.test, e.time_unix_ns, e.job_id) for e in events if isinstance(e, BenchEvent)] == [
        ("all_reduce", 2_000_000_000, "7"),
        ("gpu_burn", 2_000_000_000, "7"),
    ]
    assert isinstance(events[0], BenchEvent)
    assert events[0].node == "node01"


def test_the_command_writes_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "b.log").write_text(BURN)
    out = tmp_path / "out.jsonl"
    result = CliRunner().invoke(
        app, ["bench", "ingest", str(tmp_path / "b.log"), "-o", str(out), "--node", "n7"]
    )
    assert (result.exit_code, result.stdout) == (0, "")
    event = decode_line(out.read_bytes().splitlines()[0])
    assert isinstance(event, BenchEvent)
    assert event.node == "n7"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{absent}"], "No such file"),
        (["{text}"], "no benchmark result found"),
        (["{text}", "--format", "nope"], "known are nccl-tests"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "text").write_text("hello")
    names = {"absent": str(tmp_path / "absent"), "text": str(tmp_path / "text")}
    result = CliRunner().invoke(app, ["bench", "ingest", *(a.format(**names) for a in arguments)])
    assert result.exit_code == 1
    assert message in str(result.exception)
