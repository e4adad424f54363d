"""Node names, brought to one spelling."""

import pytest

from stethoscope.correlation.identity import Names, NamesState
from stethoscope.schemas.events import JobEvent, NodeInfo, TopologyEvent
from stethoscope.streams.state_codec import decode_state, encode_state

from .build import at, job


def names() -> Names:
    made = Names()
    nodes = {
        "node01": NodeInfo(aliases=["g843068", "dcgm-exporter-abcde"]),
        "node838": NodeInfo(),
    }
    made.learn(TopologyEvent(time_unix_ns=at(0), nodes=nodes))
    made.learn(job(nodes=["h100-220-037"]))
    return made


@pytest.mark.parametrize(
    ("said", "canonical"),
    [
        ("node838.hpc.example.edu", "node838"),
        ("NODE838", "node838"),
        ("g843068", "node01"),
        ("dcgm-exporter-abcde", "node01"),
        ("h100-220-037", "h100-220-037"),
        ("H100-220-037.cluster.local", "h100-220-037"),
        ("stranger", "stranger"),
    ],
)
def test_names_of_one_node_become_one(said: str, canonical: str) -> None:
    assert names().node(said) == canonical


def test_a_job_is_told_with_canonical_names() -> None:
    event = JobEvent(
        time_unix_ns=at(0),
        job_id="7",
        state="RUNNING",
        nodes=["NODE838"],
        gpus={"node838.hpc.example.edu": [0]},
        ranks={"g843068": [0]},
    )
    told = names().job(event)
    assert told.nodes == ["node838"]
    assert told.gpus == {"node838": [0]}
    assert told.ranks == {"node01": [0]}


def test_names_survive_a_restart() -> None:
    made, fresh = names(), Names()
    fresh.load(decode_state(encode_state(made.state), NamesState))
    assert fresh.node("g843068") == "node01"


def test_nothing_is_known_at_first() -> None:
    assert Names().node("node838.hpc.example.edu") == "node838.hpc.example.edu"
