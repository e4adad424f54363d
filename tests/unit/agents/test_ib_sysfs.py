"""The InfiniBand reader on a made-up tree, and on a real one where it is at hand."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents import ib_sysfs
from stethoscope.agents.clock import FakeClock
from stethoscope.agents.ib_sysfs import IbSysfsReader
from stethoscope.agents.reader import Context
from stethoscope.schemas.agent_config import IbSysfs
from stethoscope.schemas.errors import ReaderUnsupported
from stethoscope.schemas.events import IbEvent, NodeEvent, event_id

REAL = (
    Path(__file__).parents[4] / "shared" / "data" / "ib_sysfs_h100" / "sys-class-infiniband-h100.0"
)
CONTEXT = Context(cluster="c", node="n1", boot_id="b")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def port(root: Path, device: str, number: int = 1, **counters: str) -> Path:
    folder = root / device / "ports" / str(number)
    write(folder / "state", "4: ACTIVE\n")
    write(folder / "phys_state", "5: LinkUp\n")
    write(folder / "rate", "400 Gb/sec (4X NDR)\n")
    write(folder / "link_layer", "InfiniBand\n")
    write(folder / "gids" / "0", "fe80:0000:0000:0000:0002:c903:00ab:cdef\n")
    write(root / device / "fw_ver", "28.41.1000\n")
    for name, text in counters.items():
        write(folder / "counters" / name, text)
    return folder


def make(root: Path, optics: bool = False) -> IbSysfsReader:
    reader = IbSysfsReader(CONTEXT, IbSysfs(root=str(root), optics=optics))
    reader.probe()
    return reader


def scrape(reader: IbSysfsReader, clock: FakeClock) -> tuple[IbEvent, NodeEvent]:
    ib, node = reader.read(clock.now())
    assert isinstance(ib, IbEvent)
    assert isinstance(node, NodeEvent)
    return ib, node


def test_a_port_and_its_counters(tmp_path: Path) -> None:
    folder = port(tmp_path, "mlx5_0", symbol_error="7\n")
    write(folder / "hw_counters" / "out_of_sequence", "12\n")
    ib, node = scrape(make(tmp_path), FakeClock())
    (only,) = ib.ports
    assert (only.device, only.port, only.guid) == ("mlx5_0", 1, "0x0002c90300abcdef")
    assert (only.state, only.phys_state, only.rate_gbps) == ("ACTIVE", "LinkUp", 400)
    assert ib.counters == {"out_of_sequence": [12], "symbol_error": [7]}
    assert node.metrics == {"ib_port_count": 1}
    assert node.versions == {"ib_firmware": "28.41.1000"}
    assert event_id(ib) != event_id(node)


@pytest.mark.parametrize("text", ["N/A (no PMA)\n", "", "-1", "1e3", "18446744073709551616", "\0"])
def test_a_file_without_a_number_is_skipped_alone_and_counted(tmp_path: Path, text: str) -> None:
    port(tmp_path, "mlx5_0", link_downed=text, symbol_error="1")
    port(tmp_path, "mlx5_1", link_downed="3", symbol_error="2")
    reader = make(tmp_path)
    ib, _ = scrape(reader, FakeClock())
    assert ib.counters == {"link_downed": [None, 3], "symbol_error": [1, 2]}
    assert reader.counters.collector_errors == {"mlx5_0/ports/1/counters/link_downed": 1}


def test_an_invalid_argument_is_skipped_alone_and_retried_a_minute_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = port(tmp_path, "mlx5_0", VL15_dropped="0", symbol_error="1")
    refuse = True
    real = ib_sysfs._File.read

    def read(file: ib_sysfs._File) -> bytes:
        if refuse and file.path.name == "VL15_dropped":
            raise OSError(22, "Invalid argument")
        return real(file)

    monkeypatch.setattr(ib_sysfs._File, "read", read)
    reader, clock = make(tmp_path), FakeClock()
    for _ in range(5):
        ib, _ = scrape(reader, clock)
        clock.advance(1)
    assert ib.counters == {"symbol_error": [1]}
    assert reader.counters.collector_errors == {
        f"{folder.relative_to(tmp_path)}/counters/VL15_dropped": 1
    }
    refuse = False
    clock.advance(60)
    assert scrape(reader, clock)[0].counters["VL15_dropped"] == [0]


def test_counters_are_read_anew_each_time(tmp_path: Path) -> None:
    folder = port(tmp_path, "mlx5_0", port_xmit_data="1000")
    reader, clock = make(tmp_path), FakeClock()
    scrape(reader, clock)
    (folder / "counters" / "port_xmit_data").write_text("18446744073709551615\n")
    (folder / "state").write_text("1: DOWN\n")
    clock.advance(1)
    ib, _ = scrape(reader, clock)
    assert ib.counters["port_xmit_data"] == [2**64 - 1]
    assert ib.ports[0].state == "DOWN"


def test_ports_that_come_and_go_are_seen_at_the_next_scan(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_9")
    reader, clock = make(tmp_path), FakeClock()
    scrape(reader, clock)
    port(tmp_path, "mlx5_10", symbol_error="1")
    clock.advance(31)
    ib, node = scrape(reader, clock)
    assert [p.device for p in ib.ports] == ["mlx5_9", "mlx5_10"]
    assert node.metrics["ib_port_count"] == 2


def test_no_port_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(ReaderUnsupported, match="no InfiniBand or RoCE port"):
        make(tmp_path / "absent")


@given(st.integers(0, 2**64 - 1), st.sampled_from(["", "\n", " \n"]))
def test_every_counter_value_is_read_as_it_stands(value: int, end: str) -> None:
    assert ib_sysfs.parse_counter(f"{value}{end}".encode()) == value


@given(st.binary(max_size=64))
def test_a_counter_is_its_digits_or_nothing(data: bytes) -> None:
    value = ib_sysfs.parse_counter(data)
    assert value is None or (data.strip().isdigit() and value == int(data))


@given(st.text())
def test_any_attribute_is_survived(text: str) -> None:
    assert isinstance(ib_sysfs.parse_state(text), str)
    rate = ib_sysfs.parse_rate_gbps(text)
    assert rate is None or rate >= 0
    guid = ib_sysfs.parse_gid(text)
    assert guid == "" or len(guid) == 18


def tool(folder: Path, name: str, output: str, status: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {status}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_optics_where_the_tool_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    tool(
        tools, "mlxlink", "Temperature [C] : 47 [-5..75]\nRx Power Current [dBm] : 1.3,-2.5 [-9..6]"
    )
    monkeypatch.setattr(
        ib_sysfs, "which", lambda name: str(tools / name) if name == "mlxlink" else None
    )
    port(tmp_path / "ib", "mlx5_0")
    reader = make(tmp_path / "ib", optics=True)
    monkeypatch.setattr(ib_sysfs, "FIRST_OPTICS_WAIT_SECS", 60)
    ib, _ = scrape(reader, FakeClock())
    assert ib.metrics == {"optics_rx_power_dbm": [-2.5], "optics_temp_celsius": [47]}


def test_a_tool_that_fails_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    tool(tools, "mlxlink", "-E- no permission", status=1)
    monkeypatch.setattr(ib_sysfs, "which", lambda _: str(tools / "mlxlink"))
    monkeypatch.setattr(ib_sysfs, "FIRST_OPTICS_WAIT_SECS", 60)
    port(tmp_path / "ib", "mlx5_0")
    reader = make(tmp_path / "ib", optics=True)
    ib, _ = scrape(reader, FakeClock())
    assert ib.metrics == {}
    assert reader.counters.collector_errors == {"mlxlink mlx5_0": 1}


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded tree of nine ports is not here")
def test_every_readable_counter_of_real_ports_and_none_invented() -> None:
    ib, node = scrape(make(REAL), FakeClock())
    truth = {
        (path.parts[-5], path.name): int(path.read_text())
        for folder in ("counters", "hw_counters")
        for path in REAL.glob(f"*/ports/*/{folder}/*")
        if path.read_text().strip().isdigit()
    }
    said = {
        (port.device, name): column[place]
        for name, column in ib.counters.items()
        for place, port in enumerate(ib.ports)
        if column[place] is not None
    }
    assert said == truth
    assert len(truth) == 423
    assert node.metrics["ib_port_count"] == 9
    assert {p.rate_gbps for p in ib.ports if p.link_layer == "InfiniBand"} == {400}
