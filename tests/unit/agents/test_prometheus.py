"""Exporters' pages: every mapped name arrives, in its unit, under its canonical name."""

import csv
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.prometheus import PrometheusReader
from stethoscope.agents.prometheus_page import fetch, label_of, parse_page
from stethoscope.agents.prometheus_rules import load_mapping, parse_selector
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import Prometheus, Target
from stethoscope.schemas.errors import ConfigError, ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Event, GpuEvent, IbEvent, NodeEvent, event_id
from stethoscope.schemas.metrics import registry

DATA = Path(__file__).parents[2] / "data"
FIELDS = Path(__file__).parents[4] / "shared" / "data" / "dcgm_fields.csv"
TARGET = Target(url="http://127.0.0.1:9400/metrics")
UUID = "GPU-00000000-0000-4000-8000-00000000000{}"
ALL_DCGM = [(name, dcgm) for name, m in registry().items() for dcgm in m.dcgm]
TO_CANONICAL = {"percent": 0.01, "MiB": 2**20, "mJ": 1e-3, "ns": 1e-9}


def make(**settings: list[str]) -> PrometheusReader:
    reader = PrometheusReader(
        Context(cluster="c", node="n1", boot_id="b"), Prometheus(targets=[TARGET], **settings)
    )
    reader.probe()
    return reader


def events(text: str, reader: PrometheusReader | None = None) -> list[Event]:
    return (reader or make()).events(TARGET, text, FakeClock().now())


def gpu_of(found: list[Event]) -> GpuEvent:
    (gpu,) = [e for e in found if isinstance(e, GpuEvent)]
    return gpu


def ib_of(found: list[Event]) -> IbEvent:
    (ib,) = [e for e in found if isinstance(e, IbEvent)]
    return ib


def node_of(found: list[Event]) -> NodeEvent:
    (node,) = [e for e in found if isinstance(e, NodeEvent)]
    return node


def page(name: str) -> str:
    return (DATA / name).read_text()


def test_old_names_units_and_blanks() -> None:
    reader = make()
    gpu = gpu_of(events(page("dcgm_exporter_old_names.txt"), reader))
    assert [d.uuid for d in gpu.devices] == [UUID.format(1), UUID.format(2)]
    assert gpu.devices[0].model == "NVIDIA H100 80GB HBM3"
    assert gpu.metrics == {
        "sm_clock_mhz": [1980, 345],
        "gpu_temp_celsius": [61, 33],
        "power_watts": [598.213, 70.102],
        "energy_joules_total": [85731846.21, 5731846.21],
        "gpu_utilization_ratio": [1.0, None],
        "xid_last": [0, 31],
        "memory_used_bytes": [74213 * 2**20, None],
        "thermal_violation_seconds_total": [2.5, None],
    }
    assert reader.counters.invalid_samples_total == 3


def test_pods_do_not_make_devices_and_mig_instances_do() -> None:
    found = events(page("dcgm_exporter_pods.txt"))
    gpu = gpu_of(found)
    mig = UUID.format(1) + "/7"
    assert [d.uuid for d in gpu.devices] == [UUID.format(1), mig, UUID.format(2)]
    assert gpu.devices[0].pci == "00000000:9b:00.0"
    assert gpu.metrics["sm_active_ratio"] == [0.912345, None, None]
    assert gpu.metrics["tensor_active_ratio"] == [0.4101, 0.2, None]
    node = node_of(found)
    assert [(p.name, p.gpu_uuid, p.container) for p in node.processes] == [
        ("pytorch", UUID.format(1), "team-a/llama-7b-worker-3"),
        ("notebook", mig, "team-b/jupyter-0"),
    ]
    assert node.metrics["gpu_count"] == 2


def test_the_identity_of_a_gpu_outlives_its_pod() -> None:
    text = page("dcgm_exporter_pods.txt")
    moved = text.replace("dcgm-exporter-abcde", "dcgm-exporter-fghij").replace("-3", "-4")
    assert gpu_of(events(moved)).devices == gpu_of(events(text)).devices


def test_new_names_and_the_scheduler_s_job() -> None:
    found = events(page("dcgm_exporter_new_names.txt"))
    assert gpu_of(found).metrics == {
        "gpu_temp_celsius": [58],
        "gpu_utilization_ratio": [0.97],
        "sm_active_ratio": [0.87],
        "power_watts": [612.5],
        "throttle_reasons_bitmask": [64],
        "pcie_replay_total": [3],
        "row_remap_failure": [0],
    }
    assert [(p.job_id, p.gpu_uuid) for p in node_of(found).processes] == [("4711", UUID.format(1))]


@pytest.mark.parametrize(("name", "dcgm"), ALL_DCGM)
def test_every_dcgm_name_arrives_in_its_unit(name: str, dcgm: str) -> None:
    metric = registry()[name]
    raw = 1.0 if metric.max is None or metric.max >= 1 else 0.5
    scale = TO_CANONICAL.get(metric.dcgm_unit, 1)
    if metric.min and raw * scale < metric.min:
        raw = metric.min / scale
    gpu = gpu_of(events(f'{dcgm}{{gpu="0",UUID="GPU-1"}} {raw}\n'))
    assert gpu.metrics == {name: [pytest.approx(raw * scale)]}


@pytest.mark.skipif(not FIELDS.is_file(), reason="the list of DCGM's fields is not here")
def test_every_dcgm_name_is_one_that_dcgm_knows() -> None:
    with FIELDS.open(newline="") as file:
        known = {row["field"] for row in csv.DictReader(file)}
    assert {dcgm for _, dcgm in ALL_DCGM} <= known


def test_infiniband_words_are_those_of_sysfs() -> None:
    text = """
node_infiniband_state_id{device="mlx5_0",port="1"} 4
node_infiniband_physical_state_id{device="mlx5_0",port="1"} 5
node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 5e+10
node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1"} 4000
node_infiniband_link_downed_total{device="mlx5_0",port="1"} 2
node_infiniband_link_downed_total{device="mlx5_1",port="1"} 3
"""
    found = events(text)
    ib = ib_of(found)
    assert [(p.device, p.port, p.state, p.phys_state, p.rate_gbps) for p in ib.ports] == [
        ("mlx5_0", 1, "ACTIVE", "LinkUp", 400),
        ("mlx5_1", 1, "", "", None),
    ]
    assert ib.counters == {"link_downed": [2, 3], "port_xmit_data": [1000, None]}
    assert node_of(found).metrics["ib_port_count"] == 1


NODE_PAGE = """
node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}
node_cpu_seconds_total{{cpu="0",mode="iowait"}} {iowait}
node_cpu_seconds_total{{cpu="0",mode="user"}} {user}
node_context_switches_total {switches}
node_memory_SwapTotal_bytes 100
node_memory_SwapFree_bytes 40
node_network_receive_bytes_total{{device="eth0"}} {received}
node_network_receive_bytes_total{{device="lo"}} 999999
node_disk_read_time_seconds_total{{device="sda"}} {slow}
node_disk_reads_completed_total{{device="sda"}} {operations}
node_disk_write_time_seconds_total{{device="sda"}} 0
node_disk_writes_completed_total{{device="sda"}} 0
node_disk_read_time_seconds_total{{device="sdb"}} 0
node_disk_reads_completed_total{{device="sdb"}} {operations}
node_filesystem_size_bytes{{device="/dev/sda1",fstype="ext4",mountpoint="/"}} 100
node_filesystem_free_bytes{{device="/dev/sda1",fstype="ext4",mountpoint="/"}} 30
node_filesystem_avail_bytes{{device="/dev/sda1",fstype="ext4",mountpoint="/"}} 10
node_mountstats_nfs_operations_requests_total{{export="f:/x",operation="READ"}} {operations}
node_mountstats_nfs_operations_request_time_seconds_total{{export="f:/x",operation="READ"}} {slow}
lustre_capacity_kilobytes{{component="client",target="scratch"}} 1000
lustre_available_kilobytes{{component="client",target="scratch"}} 250
"""


def two_scrapes(first: str, second: str) -> NodeEvent:
    reader, clock = make(), FakeClock()
    reader.events(TARGET, first, clock.now())
    clock.advance(10)
    return node_of(reader.events(TARGET, second, clock.now()))


def test_node_exporter_s_rates_are_over_the_time_between_scrapes() -> None:
    first = NODE_PAGE.format(idle=0, iowait=0, user=0, switches=0, received=0, slow=0, operations=0)
    second = NODE_PAGE.format(
        idle=4, iowait=1, user=5, switches=50, received=1000, slow=2, operations=4
    )
    node = two_scrapes(first, second)
    assert node.metrics == {
        "cpu_busy_ratio": 0.5,
        "cpu_iowait_ratio": 0.1,
        "context_switches_per_sec": 5,
        "swap_used_bytes": 60,
        "network_rx_bytes_per_sec": 100,
        "disk_await_secs": 0.5,
    }
    assert {(m.path, m.fstype, m.used_ratio, m.await_secs) for m in node.mounts} == {
        ("/", "ext4", 0.875, None),
        ("f:/x", "nfs", None, 0.5),
        ("scratch", "lustre", 0.75, None),
    }


def test_a_counter_that_was_reset_gives_no_rate() -> None:
    numbers = {"idle": 9, "iowait": 9, "user": 9, "received": 9, "slow": 9, "operations": 9}
    first = NODE_PAGE.format(switches=100, **numbers)
    second = NODE_PAGE.format(switches=10, **numbers)
    assert "context_switches_per_sec" not in two_scrapes(first, second).metrics


def npu(name: str, value: float, chip: int = 0) -> str:
    labels = f'id="{chip}",model_name="910B3",pcie_bus_info="0000:C1:00.0",vdie_id="V-{chip}"'
    return (
        f'{name}{{{labels},namespace="ns",pod_name="p",container_name="c"}} {value} 1723621883587\n'
    )


def test_npu_exporter_s_chips_and_their_ports() -> None:
    found = events(
        "machine_npu_nums 8\n"
        + npu("npu_chip_info_utilization", 75)
        + npu("npu_chip_info_hbm_used_memory", 1024)
        + npu("npu_chip_info_temperature", 46)
        + npu("npu_chip_info_pcie_tx_p_bw", 2.5)
        + npu("npu_chip_roce_rx_err_pkt_num", 7)
        + npu("npu_chip_optical_rx_power_0", 1.0)
        + npu("npu_chip_optical_rx_power_1", 0.1)
        + npu("npu_chip_optical_vcc", 3245.1)
    )
    gpu = gpu_of(found)
    (device,) = gpu.devices
    assert (device.uuid, device.index, device.pci, device.model) == (
        "V-0",
        0,
        "0000:c1:00.0",
        "910B3",
    )
    assert gpu.metrics == {
        "sm_active_ratio": [0.75],
        "memory_used_bytes": [2**30],
        "gpu_temp_celsius": [46],
        "pcie_tx_bytes_per_sec": [2.5e9],
    }
    ib = ib_of(found)
    assert [(p.device, p.port) for p in ib.ports] == [("npu0", 1)]
    assert ib.counters == {"port_rcv_errors": [7]}
    assert ib.metrics == {
        "optics_rx_power_dbm": [-10],
        "optics_voltage_volts": [pytest.approx(3.2451)],
    }
    assert node_of(found).metrics["gpu_count"] == 8


def test_an_old_npu_exporter_knows_only_the_number_of_a_chip() -> None:
    gpu = gpu_of(events('npu_chip_info_temperature{id="3"} 46 1613993498645\n'))
    assert [(d.uuid, d.index) for d in gpu.devices] == [("npu-3", 3)]


def test_the_events_of_a_page_have_ids_of_their_own() -> None:
    found = events(
        page("dcgm_exporter_pods.txt")
        + 'node_infiniband_link_downed_total{device="m",port="1"} 0\n'
    )
    assert len({event_id(e) for e in found}) == 3


def test_one_bad_line_costs_that_line() -> None:
    reader = make()
    text = 'node_load1 1\nnode_load5{x="1 2\nnode_load5 x\nnode_vmstat_oom_kill 3\n'
    assert node_of(events(text, reader)).metrics == {"load1": 1, "oom_kills_total": 3}
    assert reader.counters.skipped == {"bad_line": 2}


def test_unknown_metrics_are_ignored() -> None:
    assert events("go_goroutines 12\nmy_own_metric 5\n") == []


def test_a_mapping_file_adds_rules_and_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[rule]]\ntarget = "load1"\nplus = ["my_load{host=\\"a\\"}"]\nscale = 2\n'
        '[[identity]]\nscope = "gpu"\nprefix = "amd_"\nuuid = "serial"\nindex = "gpu_id"\n'
        '[[rule]]\ntarget = "gpu_temp_celsius"\nplus = ["amd_junction_temperature"]\n'
    )
    reader = make(mapping_files=[str(path)])
    found = events(
        'my_load{host="b"} 1\nmy_load{host="a"} 3\nnode_load1 9\n'
        'amd_junction_temperature{serial="S1",gpu_id="0"} 55\n',
        reader,
    )
    assert node_of(found).metrics["load1"] == 6
    assert gpu_of(found).metrics == {"gpu_temp_celsius": [55]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[rule]]\ntarget = "nope"\nplus = ["x"]\n', "no metric 'nope'"),
        ('[[rule]]\ntarget = "load1"\nplus = ["x{"]\n', "not a selector"),
        ('[[rule]]\ntarget = "load1"\nplus = [\'x{a~"b"}\']\n', "cannot read the labels"),
        ('[[rule]]\ntarget = "load1"\nplus = [\'x{a=~"("}\']\n', "bad regular expression"),
        ('[[rule]]\ntarget = "load1"\nplus = ["x"]\ntypo = 1\n', "typo"),
        ("[[rule\n", "mine.toml"),
    ],
)
def test_a_wrong_mapping_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_mapping([str(path)])


def test_a_missing_mapping_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_mapping([str(tmp_path / "absent.toml")])


@pytest.mark.parametrize(
    ("text", "labels", "taken"),
    [
        ("a", {}, True),
        ('a{x="1"}', {"x": "1"}, True),
        ('a{x="1"}', {}, False),
        ('a{x!="1"}', {}, True),
        ('a{x=~"1|2",y!~"b.*"}', {"x": "2", "y": "abc"}, True),
        ('a{x=~"1|2",y!~"b.*"}', {"x": "2", "y": "bbc"}, False),
        ('a{x=~"1"}', {"x": "11"}, False),
        ('a{x="a.c"}', {"x": "abc"}, False),
    ],
)
def test_selectors_mean_what_promql_means(text: str, labels: dict[str, str], taken: bool) -> None:
    assert all(m.matches(labels) for m in parse_selector(text).matchers) == taken


def test_no_target_is_unsupported() -> None:
    with pytest.raises(ReaderUnsupported, match="no exporter"):
        PrometheusReader(Context(), Prometheus()).probe()


def test_a_target_that_does_not_answer_fails_the_read_and_is_counted() -> None:
    target = Target(url="http://127.0.0.1:1/metrics", timeout_secs=5)
    reader = PrometheusReader(Context(), Prometheus(targets=[target]))
    reader.probe()
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1:1 does not answer"):
        reader.read(FakeClock().now())
    assert reader.counters.collector_errors == {"127.0.0.1:1": 1}


def test_only_http_is_fetched() -> None:
    with pytest.raises(ConfigError, match="not an http URL"):
        fetch(Target(url="file:///etc/passwd"))


def test_a_label_holds_no_secret() -> None:
    assert label_of(Target(url="https://u:secret@h:1/x?token=t")) == "h:1"


NAMES = load_mapping([]).names


@given(st.text() | st.text(alphabet='node_load1{}="\\, 0123456789.eNa\n#'))
def test_any_page_is_survived(text: str) -> None:
    parse_page("node_load1 1\n" + text, NAMES)
    events(text)


@given(st.text())
def test_any_selector_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        assert parse_selector(text).name
