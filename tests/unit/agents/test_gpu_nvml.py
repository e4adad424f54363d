"""The NVML reader on made-up GPUs, and on what two real H200s said."""

from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents import gpu_nvml_device
from stethoscope.agents.clock import FakeClock
from stethoscope.agents.gpu_nvml import GpuNvmlReader
from stethoscope.agents.gpu_nvml_fields import Cleaner
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import GpuNvml
from stethoscope.schemas.codec import decode_line
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import GpuEvent, NodeEvent, event_id
from stethoscope.schemas.metrics import registry

from .fake_nvml import FakeGpu, FakeNvml

DATA = Path(__file__).parents[2] / "data"
CONTEXT = Context(cluster="c", node="n1", boot_id="b")


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_nvml_device, "_GPM_SETTLE_SECS", 0)


def make(nvml: FakeNvml, proc_root: Path | None = None) -> GpuNvmlReader:
    config = GpuNvml(proc_root=str(proc_root or "/nonexistent"))
    reader = GpuNvmlReader(CONTEXT, config, nvml)
    reader.probe()
    return reader


def scrape(reader: GpuNvmlReader, clock: FakeClock) -> tuple[GpuEvent, NodeEvent]:
    gpu, node = reader.read(clock.now())
    assert isinstance(gpu, GpuEvent)
    assert isinstance(node, NodeEvent)
    return gpu, node


def test_units_are_canonical_and_columns_run_along_devices() -> None:
    gpu, node = scrape(make(FakeNvml([FakeGpu(0), FakeGpu(1)])), FakeClock())
    assert [d.uuid for d in gpu.devices] == ["GPU-00000000", "GPU-00000001"]
    assert gpu.metrics["gpu_utilization_ratio"] == [0.97, 0.97]
    assert gpu.metrics["power_watts"] == [123.764, 123.764]
    assert gpu.metrics["memory_temp_celsius"] == [40, 41]
    assert gpu.metrics["sm_active_ratio"] == [0.5, 0.5]
    assert gpu.metrics["pcie_tx_bytes_per_sec"] == [50 * 2**20] * 2
    assert node.metrics["gpu_count"] == 2
    assert node.versions == {"driver": "580.159.04", "cuda": "13.0"}


def test_every_metric_is_canonical_and_every_column_is_full() -> None:
    gpu, _ = scrape(make(FakeNvml([FakeGpu(0), FakeGpu(1)])), FakeClock())
    assert set(gpu.metrics) <= {n for n, m in registry().items() if m.scope == "gpu"}
    assert {len(column) for column in gpu.metrics.values()} == {2}


def test_the_two_events_of_a_read_have_different_ids() -> None:
    gpu, node = scrape(make(FakeNvml([FakeGpu(0)])), FakeClock())
    assert event_id(gpu) != event_id(node)


def test_unsupported_is_not_asked_again_and_has_no_column() -> None:
    device = FakeGpu(0)
    device.unsupported.add("nvmlDeviceGetPowerUsage")
    reader, clock = make(FakeNvml([device])), FakeClock()
    for _ in range(3):
        gpu, _ = scrape(reader, clock)
        clock.advance(60)
    assert "power_watts" not in gpu.metrics
    assert device.calls.count("nvmlDeviceGetPowerUsage") == 1
    assert reader.counters.collector_errors == {}


def test_a_failing_call_nulls_its_metric_only_and_is_counted() -> None:
    device = FakeGpu(0)
    reader, clock = make(FakeNvml([device])), FakeClock()
    scrape(reader, clock)
    device.failing["nvmlDeviceGetTemperature"] = 999
    clock.advance(1)
    gpu, _ = scrape(reader, clock)
    assert gpu.metrics["gpu_temp_celsius"] == [None]
    assert gpu.metrics["power_watts"] == [123.764]
    assert reader.counters.collector_errors == {"nvmlDeviceGetTemperature": 1}
    del device.failing["nvmlDeviceGetTemperature"]
    clock.advance(1)
    assert scrape(reader, clock)[0].metrics["gpu_temp_celsius"] == [1]


def test_a_corrupt_value_is_null_and_counted() -> None:
    nvml = FakeNvml([FakeGpu(0)])
    nvml.answers["util"] = 4294967295
    reader = make(nvml)
    gpu, _ = scrape(reader, FakeClock())
    assert gpu.metrics["gpu_utilization_ratio"] == [None]
    assert reader.counters.invalid_samples_total == 1


@given(st.sampled_from(sorted(registry())), st.floats() | st.integers())
def test_what_passes_the_cleaner_is_in_range(name: str, value: float) -> None:
    metric = registry()[name]
    cleaner = Cleaner()
    cleaned = cleaner(name, value)
    if cleaned is None:
        assert cleaner.invalid_total == 1 or (name, value) == ("memory_temp_celsius", 0)
    else:
        assert cleaned == value
        assert metric.min is None or cleaned >= metric.min
        assert metric.max is None or cleaned <= metric.max


def test_slow_values_stand_between_their_reads() -> None:
    device = FakeGpu(0)
    reader, clock = make(FakeNvml([device])), FakeClock()
    for _ in range(5):
        gpu, _ = scrape(reader, clock)
        clock.advance(1)
    assert device.calls.count("nvmlDeviceGetTotalEnergyConsumption") == 1
    assert gpu.metrics["energy_joules_total"] == [0.001]
    clock.advance(300)
    scrape(reader, clock)
    assert device.calls.count("nvmlDeviceGetTotalEnergyConsumption") == 2


def test_gpm_of_eight_gpus_is_read_every_sixth_second() -> None:
    devices = [FakeGpu(i) for i in range(8)]
    reader, clock = make(FakeNvml(devices)), FakeClock()
    for _ in range(12):
        gpu, _ = scrape(reader, clock)
        clock.advance(1)
    assert [d.gpm_reads for d in devices] == [3] * 8  # one to start with, then two
    assert gpu.metrics["sm_active_ratio"] == [0.5] * 8


def test_gpm_of_two_gpus_is_read_every_third_second() -> None:
    devices = [FakeGpu(0), FakeGpu(1)]
    reader, clock = make(FakeNvml(devices)), FakeClock()
    for _ in range(12):
        scrape(reader, clock)
        clock.advance(1)
    assert [d.gpm_reads for d in devices] == [5, 5]  # one to start with, then four


def test_links_are_summed_and_the_next_source_is_tried() -> None:
    device = FakeGpu(0)
    device.fields |= {"NVML_FI_DEV_NVLINK_GET_STATE": 1}
    device.fields |= {"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 3}
    gpu, _ = scrape(make(FakeNvml([device])), FakeClock())
    assert gpu.metrics["nvlink_links_active"] == [18]
    assert gpu.metrics["nvlink_tx_bytes_total"] == [3 * 1024]
    assert "nvlink_rx_bytes_total" not in gpu.metrics


def test_an_xid_is_seen_once() -> None:
    device = FakeGpu(1)
    nvml = FakeNvml([FakeGpu(0), device])
    reader, clock = make(nvml), FakeClock()
    nvml.events.append((pynvml.nvmlEventTypeXidCriticalError, device, 31))
    assert scrape(reader, clock)[0].metrics["xid_last"] == [0, 31]
    clock.advance(1)
    assert scrape(reader, clock)[0].metrics["xid_last"] == [0, 0]


def test_a_lost_gpu_is_absent_at_once_and_looked_for_later() -> None:
    devices = [FakeGpu(0), FakeGpu(1)]
    reader, clock = make(FakeNvml(devices)), FakeClock()
    scrape(reader, clock)
    devices[0].lost = True
    clock.advance(1)
    gpu, node = scrape(reader, clock)
    assert [d.uuid for d in gpu.devices] == ["GPU-00000001"]
    assert {len(column) for column in gpu.metrics.values()} == {1}
    assert node.metrics["gpu_count"] == 1
    for _ in range(3):  # it stays away for a while
        clock.advance(61)
        assert scrape(reader, clock)[1].metrics["gpu_count"] == 1
    devices[0].lost = False
    clock.advance(61)
    assert scrape(reader, clock)[1].metrics["gpu_count"] == 2
    calls = devices[0].calls.count("nvmlDeviceGetHandleByIndex")
    clock.advance(61)
    scrape(reader, clock)
    assert devices[0].calls.count("nvmlDeviceGetHandleByIndex") == calls


def test_the_xid_of_a_lost_gpu_fails_nothing() -> None:
    devices = [FakeGpu(0), FakeGpu(1)]
    nvml = FakeNvml(devices)
    reader = make(nvml)
    devices[0].lost = True
    nvml.events.append((pynvml.nvmlEventTypeXidCriticalError, devices[0], 79))
    gpu, node = scrape(reader, FakeClock())
    assert gpu.metrics["xid_last"] == [0]
    assert node.metrics["gpu_count"] == 1
    assert reader.counters.collector_errors["nvmlDeviceGetUUID"] == 1


def test_mig_instances_stand_beside_their_gpu() -> None:
    device = FakeGpu(0, mig=2)
    device.pids = device.migs[1].pids = [5]
    gpu, node = scrape(make(FakeNvml([device])), FakeClock())
    assert [d.uuid for d in gpu.devices] == ["GPU-00000000", "MIG-0-0", "MIG-0-1"]
    assert device.migs[0].gpm_reads == 2
    assert [(p.pid, p.gpu_uuid) for p in node.processes] == [(5, "MIG-0-1")]
    assert node.metrics["gpu_count"] == 1


def test_processes_carry_name_job_rank_and_container(tmp_path: Path) -> None:
    proc = tmp_path / "77"
    proc.mkdir()
    (proc / "stat").write_text("77 (python) R 1 " + " ".join(["0"] * 17) + " 4242 0 0\n")
    (proc / "environ").write_bytes(b"SLURM_JOB_ID=1960\0RANK=3\0LOCAL_RANK=1\0")
    (proc / "cgroup").write_text(f"0::/system.slice/docker-{'c' * 64}.scope\n")
    device = FakeGpu(0)
    device.pids = [77, 78]
    gpu, node = scrape(make(FakeNvml([device]), tmp_path), FakeClock())
    known, unknown = node.processes
    assert (known.name, known.job_id, known.rank) == ("python", "1960", 3)
    assert known.container == "c" * 12
    assert known.gpu_uuid == unknown.gpu_uuid == "GPU-00000000"
    assert (unknown.name, unknown.pid) == ("", 78)
    assert gpu.metrics["processes_count"] == [2]


def test_no_driver_is_unsupported() -> None:
    nvml = FakeNvml([])
    nvml.driver = False
    with pytest.raises(ReaderUnsupported, match="driver"):
        make(nvml)


def test_no_gpu_is_unsupported() -> None:
    with pytest.raises(ReaderUnsupported, match="no GPU"):
        make(FakeNvml([]))


def test_a_driver_that_goes_fails_the_read_and_its_return_heals() -> None:
    nvml = FakeNvml([FakeGpu(0)])
    reader, clock = make(nvml), FakeClock()
    reader.close()
    assert nvml.open == 0
    nvml.driver = False
    with pytest.raises(ServiceError, match="NVML failed"):
        reader.read(clock.now())
    nvml.driver = True
    assert len(scrape(reader, clock)[0].devices) == 1


def test_what_two_real_h200s_said() -> None:
    lines = (DATA / "gpu_nvml_h200.jsonl").read_bytes().splitlines()
    events = [decode_line(line) for line in lines]
    gpus = [e for e in events if isinstance(e, GpuEvent)]
    nodes = [e for e in events if isinstance(e, NodeEvent)]
    known = {n for n, m in registry().items() if m.scope == "gpu"}
    assert len(gpus) == len(nodes) == 66
    assert all(len(g.metrics) == 72 and set(g.metrics) <= known for g in gpus)
    assert not [n for g in gpus for n, column in g.metrics.items() if None in column]
    assert max(g.metrics["tensor_active_ratio"][0] or 0 for g in gpus) > 0.93
    assert [g.metrics["xid_last"] for g in gpus if any(g.metrics["xid_last"])] == [[31, 0]]
    assert {p.name for n in nodes for p in n.processes} == {"python3", "illegal"}


def test_close_twice_is_harmless() -> None:
    nvml = FakeNvml([FakeGpu(0)])
    reader = make(nvml)
    reader.close()
    reader.close()
    assert nvml.open == 0
