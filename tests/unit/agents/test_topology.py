"""Fabric parsers, node names, and the reader that joins them."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.clock import FakeClock
from stethoscope.agents.fabric import (
    parse_csv,
    parse_iblinkinfo,
    parse_ibnetdiscover,
    parse_slurm_topology,
)
from stethoscope.agents.reader import Context
from stethoscope.agents.topology import TopologyReader
from stethoscope.schemas.agent_config import Topology
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Link, SwitchLink, TopologyEvent
from stethoscope.schemas.names import NodeNames, folded, short

REAL = Path(__file__).parents[4] / "shared" / "data" / "ibsim"
IBNETDISCOVER = """
switchguid=0xb83fd20300aaaaaa(b83fd20300aaaaaa)
Switch\t41 "S-b83fd20300aaaaaa"\t\t# "MF0;leaf01:MQM9700/U1" enhanced port 0 lid 3 lmc 0
[1]\t"H-b83fd20300000001"[1](b83fd20300000001) \t\t# "node001 mlx5_0" lid 5 4xNDR
[2]\t"H-b83fd20300000002"[1](b83fd20300000002) \t\t# "MT4129 ConnectX7   Mellanox Technologies"
[33]\t"S-b83fd20300bbbbbb"[2]\t\t# "MF0;spine01:MQM9700/U1" lid 2 4xNDR
[34]\t"S-b83fd20300cccccc"[7]\t\t# "gone" lid 2 4xNDR

Switch\t41 "S-b83fd20300bbbbbb"\t\t# "MF0;spine01:MQM9700/U1" enhanced port 0 lid 2 lmc 0
[2]\t"S-b83fd20300aaaaaa"[33]\t\t# "MF0;leaf01:MQM9700/U1" lid 3 4xNDR

Ca\t1 "H-b83fd20300000001"\t\t# "node001 mlx5_0"
[1](b83fd20300000001) \t"S-b83fd20300aaaaaa"[1]\t\t# lid 5 lmc 0 "MF0;leaf01:MQM9700/U1" lid 3 4xNDR

Ca\t1 "H-b83fd20300000002"\t\t# "MT4129 ConnectX7   Mellanox Technologies"
[1](b83fd20300000002) \t"S-b83fd20300aaaaaa"[2]\t\t# lid 6 lmc 0 "MF0;leaf01:MQM9700/U1" lid 3 4xNDR
"""


def test_ibnetdiscover_names_nodes_adapters_and_switches() -> None:
    fabric = parse_ibnetdiscover(IBNETDISCOVER)
    assert fabric.links == [
        Link("node001", "mlx5_0", 1, "leaf01", 1),
        Link("0xb83fd20300000002", "", 1, "leaf01", 2),
    ]
    assert fabric.switch_links == [SwitchLink("leaf01", 33, "spine01", 2)]


def test_switches_of_one_name_are_told_apart_by_guid() -> None:
    text = IBNETDISCOVER.replace("MF0;spine01:", "MF0;leaf01:")
    assert parse_ibnetdiscover(text).switch_links == [
        SwitchLink("0xb83fd20300aaaaaa", 33, "0xb83fd20300bbbbbb", 2)
    ]


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded fabric is not here")
def test_three_outputs_of_one_real_fabric_say_the_same() -> None:
    by_tool = [
        parse_ibnetdiscover((REAL / "ibnetdiscover.txt").read_text()),
        parse_iblinkinfo((REAL / "iblinkinfo.txt").read_text()),
        parse_iblinkinfo((REAL / "iblinkinfo_l.txt").read_text()),
    ]
    assert {frozenset((x.node, x.switch, x.switch_port) for x in f.links) for f in by_tool} == {
        frozenset({("H1", "S1", 1), ("H2", "S1", 2), ("H3", "S2", 1), ("H4", "S2", 2)})
    }
    for fabric in by_tool:
        assert sorted(fabric.switch_links, key=str) == [
            SwitchLink("S1", 3, "S2", 3),
            SwitchLink("S1", 4, "S2", 4),
        ]


def test_slurm_topology_with_comments_ranges_and_continued_lines() -> None:
    fabric = parse_slurm_topology(
        "# tree\nSwitchName=leaf1 Nodes=gpu[01-02] LinkSpeed=900 # rack a\n"
        "switchname=leaf2 \\\n  nodes=gpu[03,05]\nSwitchName=spine Switches=leaf[1-2]\n"
    )
    assert [(x.node, x.switch) for x in fabric.links] == [
        ("gpu01", "leaf1"),
        ("gpu02", "leaf1"),
        ("gpu03", "leaf2"),
        ("gpu05", "leaf2"),
    ]
    assert [(x.switch, x.peer) for x in fabric.switch_links] == [
        ("spine", "leaf1"),
        ("spine", "leaf2"),
    ]


CSV = """Node,Device,Port,Switch,Switch_Port,Peer,Peer_Port,Rack,IP,Aliases,GPU_Count
node01,mlx5_0,1,leaf1,4,,,r1,10.0.0.1,g843068;NODE01.hpc.example.edu,8
node01,mlx5_1,1,leaf2,4,,,,,,
,,33,leaf1,,spine,2,,,,
node02,,,,,,,r2,,,
"""


def test_a_table_gives_cables_racks_and_nodes() -> None:
    fabric = parse_csv(CSV)
    assert fabric.links == [
        Link("node01", "mlx5_0", 1, "leaf1", 4),
        Link("node01", "mlx5_1", 1, "leaf2", 4),
    ]
    assert fabric.switch_links == [SwitchLink("leaf1", 33, "spine", 2)]
    assert fabric.racks == {"node01": "r1", "node02": "r2"}
    assert fabric.nodes["node01"].aliases == ["g843068", "NODE01.hpc.example.edu"]
    assert fabric.nodes["node01"].gpu_count == 8


def test_a_table_without_a_header_is_refused() -> None:
    with pytest.raises(ValueError, match="no header line"):
        parse_csv("a,b\n1,2\n")


def test_names_that_people_and_systems_use() -> None:
    names = NodeNames(
        ["node838", "GPU-Node01", "h100-220-037"], {"node838": ["g843068", "10.1.2.3"]}
    )
    for name in ("node838.hpc.example.edu", "NODE838", "node838.", "g843068", "10.1.2.3"):
        assert names.resolve(name) == "node838"
    assert names.resolve("gpu-node01") == "gpu-node01"
    assert names.resolve("dcgm-exporter-abcde") is None
    assert names.canonical("Dcgm-Exporter-abcde") == "dcgm-exporter-abcde"


def test_a_domain_is_stripped_only_where_that_is_unique() -> None:
    names = NodeNames(["n1.a.example", "n1.b.example", "n2.a.example"])
    assert names.nodes() == ["n1.a.example", "n1.b.example", "n2"]
    assert names.resolve("N1.A.example") == "n1.a.example"
    assert names.resolve("n1") is None
    assert names.resolve("n2.elsewhere") == "n2"


def test_a_node_given_short_and_full_is_one_node() -> None:
    assert NodeNames(["n1", "n1.a.example"]).nodes() == ["n1"]


def test_an_alias_of_two_nodes_names_neither() -> None:
    names = NodeNames([], {"n1": ["x"], "n2": ["x", "n1"]})
    assert names.resolve("x") is None
    assert names.resolve("n1") == "n1"


def test_addresses_have_no_domain() -> None:
    assert short("10.0.0.1") == "10.0.0.1"
    assert short("fe80::1") == "fe80::1"


@given(st.lists(st.from_regex(r"[A-Za-z0-9-]{1,6}(\.[a-z]{1,3}){0,2}", fullmatch=True), max_size=8))
def test_every_canonical_name_resolves_to_itself(nodes: list[str]) -> None:
    names = NodeNames(nodes)
    assert [names.resolve(n) for n in names.nodes()] == names.nodes()
    for node in nodes:
        assert names.resolve(node) in names.nodes()


@given(st.lists(st.text(max_size=8), max_size=6), st.text(max_size=8))
def test_any_names_are_survived(nodes: list[str], name: str) -> None:
    names = NodeNames(nodes, {node: [name] for node in nodes})
    assert names.canonical(name) in {*names.nodes(), folded(name)}


@given(st.text() | st.text(alphabet='SwitchCa"#[]()H-0123456789abcdef\t\n =>."'))
def test_any_text_is_survived(text: str) -> None:
    parse_ibnetdiscover(IBNETDISCOVER + text)
    parse_iblinkinfo(text)
    for parse in (parse_slurm_topology, parse_csv):
        with suppress(ValueError):
            parse(text)


def make(tmp_path: Path, **settings: str) -> TopologyReader:
    reader = TopologyReader(Context(cluster="c"), Topology(**settings))  # type: ignore[arg-type]
    reader.probe()
    return reader


def read(reader: TopologyReader) -> TopologyEvent:
    (event,) = reader.read(FakeClock().now())
    assert isinstance(event, TopologyEvent)
    return event


def test_nodes_carry_their_canonical_names(tmp_path: Path) -> None:
    (tmp_path / "fabric.txt").write_text(IBNETDISCOVER)
    (tmp_path / "nodes.csv").write_text("node,rack,aliases\nNode001.hpc.example.edu,r7,g1\n")
    reader = make(
        tmp_path, file=str(tmp_path / "fabric.txt"), aliases_file=str(tmp_path / "nodes.csv")
    )
    event = read(reader)
    assert [link.node for link in event.links] == ["node001", "0xb83fd20300000002"]
    assert event.racks == {"node001": "r7"}
    assert event.nodes["node001"].aliases == ["g1", "Node001.hpc.example.edu"]
    assert reader.unmatched_nodes == 1


def test_a_source_that_cannot_be_read_fails_with_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text("SwitchName=s1 Nodes=n[1-\n")
    reader = make(tmp_path, source="slurm", file=str(tmp_path / "topology.conf"))
    with pytest.raises(ServiceError, match=r"topology \(slurm\)"):
        read(reader)


def test_a_missing_file_or_command_is_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReaderUnsupported, match="no topology file"):
        make(tmp_path, file=str(tmp_path / "absent"))
    with pytest.raises(ReaderUnsupported, match=r"set topology\.file"):
        make(tmp_path, source="csv")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReaderUnsupported, match="infiniband-diags"):
        make(tmp_path)


@pytest.mark.parametrize(
    ("text", "switch"),
    [
        (IBNETDISCOVER, "leaf01"),
        ("SwitchName=leaf7 Nodes=gpu[01-02]\n", "leaf7"),
        ("node,device,port,switch,switch_port\nn1,mlx5_0,1,leaf8,4\n", "leaf8"),
    ],
)
def test_a_file_is_known_by_its_text(tmp_path: Path, text: str, switch: str) -> None:
    (tmp_path / "fabric").write_text(text)
    for source in ("ibnetdiscover", "slurm"):
        reader = make(tmp_path, source=source, file=str(tmp_path / "fabric"))
        (event,) = reader.read(FakeClock().now())
        assert isinstance(event, TopologyEvent)
        assert event.links[0].switch == switch


def test_a_file_that_tells_nothing_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "fabric").write_text("root:x:0:0\n")
    with pytest.raises(ServiceError, match=r"no cable, rack or node in .*fabric"):
        make(tmp_path, file=str(tmp_path / "fabric")).read(FakeClock().now())
