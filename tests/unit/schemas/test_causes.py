"""The catalogue of causes is whole, and every cause that code names is in it."""

from stethoscope.detectors.registry import default_detectors
from stethoscope.schemas.causes import cause_catalogue
from stethoscope.schemas.xid import xid_catalogue


def test_what_must_wake_somebody() -> None:
    critical = {name for name, cause in cause_catalogue().items() if cause.severity == "critical"}
    assert {"gpu_lost", "job_hang", "rank_lost", "loss_nan", "nccl_wrong_path"} <= critical
    assert not {"straggler", "app_error", "version_drift"} & critical


def test_every_cause_says_what_to_do() -> None:
    for cause in cause_catalogue().values():
        assert cause.meaning
        assert cause.actions or cause.name == "watchdog"
        assert all(action.endswith(".") for action in cause.actions), cause


def test_causes_that_other_catalogues_and_detectors_name_exist() -> None:
    named = {xid.cause for xid in xid_catalogue().values()}
    named |= {str(getattr(one, "cause", "gpu_xid")) for one in default_detectors()}
    assert named <= set(cause_catalogue())
