"""Detectors from their settings, each one isolated; state as bytes."""

import numpy as np
import pytest
from msgspec import Struct, ValidationError

from stethoscope.detectors.fleet import Floats
from stethoscope.detectors.loss_nan import LossNanConfig
from stethoscope.detectors.registry import DETECTORS, default_detectors
from stethoscope.detectors.threshold import ThresholdConfig
from stethoscope.detectors.xid import XidConfig
from stethoscope.schemas.config import Match
from stethoscope.streams.config import Config
from stethoscope.streams.pipeline import make_stages
from stethoscope.streams.state_codec import decode_state, encode_state
from stethoscope.streams.wiring import Detectors


class Arrays(Struct):
    """What a state may hold."""

    rows: Floats
    names: dict[str, int]
    at: dict[int, Floats]


def test_state_goes_through_bytes_and_back() -> None:
    state = Arrays(
        rows=np.array([[1.5, np.nan], [2.5e300, -0.0]]),
        names={"a": 1_800_000_000_000_000_001},
        at={7: np.empty((0, 3))},
    )
    data = encode_state(state)
    back = decode_state(data, Arrays)
    np.testing.assert_array_equal(back.rows, state.rows)
    assert back.names == state.names
    assert back.at[7].shape == (0, 3)
    back.rows[0, 0] = 9.0  # a copy that can be written to
    assert encode_state(decode_state(data, Arrays)) == data


def test_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValidationError):
        decode_state(encode_state({"rows": "text"}), Arrays)


def test_what_is_no_plain_data_is_refused() -> None:
    with pytest.raises(TypeError, match="state holds a object"):
        encode_state(object())


def test_detectors_are_sorted_by_what_they_read() -> None:
    detectors = Detectors(default_detectors())
    for kind, entry in DETECTORS.items():
        group = getattr(detectors, entry.reads)
        assert any(type(g.detector) is entry.detector for g in group), kind
    assert len(detectors.all()) == len(default_detectors())


def test_off_is_left_out_and_names_tell_apart() -> None:
    configs = [
        ThresholdConfig(name="a", metric="gpu_temp_celsius", cause="gpu_overheating", limit=1.0),
        ThresholdConfig(name="b", metric="gpu_temp_celsius", cause="gpu_overheating", limit=2.0),
        XidConfig(mode="off"),
        LossNanConfig(),
    ]
    assert [g.name for g in Detectors(configs).all()] == ["a", "b", "loss_nan"]


def test_a_match_of_everyone_costs_nothing() -> None:
    everyone, some = XidConfig(), XidConfig(name="some", match=Match(nodes=["gpu-*"]))
    assert [g.match for g in Detectors([everyone, some]).lines] == [None, some.match]


def test_states_are_loaded_by_name_and_new_detectors_start_fresh() -> None:
    before = Detectors([LossNanConfig()])
    before.jobs[0].detector.state["k"] = before.jobs[0].detector.job_state(bad_grads=3)
    after = Detectors([LossNanConfig(), LossNanConfig(name="second")])
    after.load(before.dump())
    assert after.jobs[0].detector.state["k"].bad_grads == 3
    assert after.jobs[1].detector.state == {}


def test_every_detector_is_read_by_exactly_one_stage() -> None:
    stages = make_stages(Config())
    counted = [
        len(stage._detectors.all())
        for stage in (
            stages.node_stage("node/0"),
            stages.job_stage("job/0", ["node/0"]),
            stages.cluster_stage(["node/0", "job/0"]),
        )
    ]
    assert sum(counted) == len(Config().detectors)


def test_failures_are_told_by_name(caplog: pytest.LogCaptureFixture) -> None:
    detectors = Detectors([LossNanConfig(), XidConfig()])
    assert detectors.failures() == {}
    detectors.jobs[0].run("update", None, 0)
    assert detectors.failures() == {"loss_nan": 1}
    assert [r.message for r in caplog.records] == ["detector failed"]
