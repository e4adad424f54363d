"""Whom a detector applies to."""

import pytest
from msgspec import structs

from stethoscope.detectors.loss_nan import LossNanConfig
from stethoscope.detectors.xid import XidConfig
from stethoscope.schemas.config import Match
from stethoscope.schemas.events import Event
from stethoscope.streams.config import Config
from stethoscope.streams.matching import accepts, is_everyone
from stethoscope.streams.pipeline import Pipeline

from .made import gpus, healthy, job, line, step


@pytest.mark.parametrize(
    ("match", "meant"),
    [
        (Match(), True),
        (Match(nodes=["node*"]), True),
        (Match(nodes=["gpu*", "NODE01"]), True),
        (Match(nodes=["gpu*"]), False),
        (Match(gpu_models=["*H200*"]), True),
        (Match(gpu_models=["*A100*"]), False),
        (Match(partitions=["batch"]), True),
        (Match(job_names=["gpt-*"], users=["bob"]), False),
        (Match(job_names=["gpt-*"], users=["al*"]), True),
    ],
)
def test_every_list_that_is_not_empty_must_fit(match: Match, meant: bool) -> None:
    run = structs.replace(job(), name="gpt-7b", user="alice", partition="batch")
    assert accepts(match, ["node01"], ["NVIDIA H200"], [run]) is meant


def test_a_job_is_needed_where_one_is_asked_for() -> None:
    assert not accepts(Match(users=["*"]), ["node01"], ["NVIDIA H200"], [])
    assert is_everyone(Match())
    assert not is_everyone(Match(users=["*"]))


@pytest.mark.parametrize(("nodes", "found"), [(["node01"], 2), (["other"], 0)])
def test_findings_about_others_are_not_made(nodes: list[str], found: int) -> None:
    match = Match(nodes=nodes)
    config = Config(detectors=[XidConfig(match=match), LossNanConfig(match=match)])
    events: list[Event] = [job(), *healthy(range(5))]
    events += [line(5.1, "NVRM: Xid (PCI:0000:00:07): 79, x", source="kernel")]
    events += [step(5.2 + s / 10, 20 + s, loss=float("nan")) for s in range(5)]
    events += [gpus(s + 0.5) for s in range(6, 12)]
    pipeline = Pipeline(config)
    told = pipeline.feed(events).findings + pipeline.finish().findings
    assert len(told) == found
