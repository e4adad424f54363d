"""The fault catalogues: complete, loud where it matters, quiet where it does not."""

import pytest

from stethoscope.schemas.sxid import sxid_catalogue
from stethoscope.schemas.xid import xid_catalogue


def test_every_code_of_the_catalogue_is_there() -> None:
    assert set(xid_catalogue()) == set(range(1, 176))


@pytest.mark.parametrize(
    "code", [46, 48, 54, 62, 64, 74, 79, 95, 119, 120, 140, 143, *range(144, 151)]
)
def test_what_takes_a_gpu_away_is_critical(code: int) -> None:
    assert xid_catalogue()[code].severity == "critical"


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69, 154])
def test_what_a_program_does_to_itself_wakes_nobody(code: int) -> None:
    assert xid_catalogue()[code].severity == "info"


def test_a_pending_remap_waits_for_working_hours() -> None:
    assert xid_catalogue()[63].severity == "warning"
    assert xid_catalogue()[63].cause == "gpu_row_remap_pending"


@pytest.mark.parametrize(("code", "user"), [(13, True), (31, True), (45, True), (79, False)])
def test_user_code(code: int, user: bool) -> None:
    assert xid_catalogue()[code].user_code is user


def test_user_code_is_never_critical() -> None:
    assert not [x for x in xid_catalogue().values() if x.user_code and x.severity == "critical"]


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (79, "gpu_lost"),
        (48, "gpu_ecc_uncorrectable"),
        (64, "gpu_row_remap_failure"),
        (74, "nvlink_error"),
        (119, "gpu_xid"),
    ],
)
def test_cause(code: int, cause: str) -> None:
    assert xid_catalogue()[code].cause == cause


def test_names_say_something_in_one_short_line() -> None:
    for xid in xid_catalogue().values():
        assert 0 < len(xid.name) <= 60, xid
        assert xid.mnemonic


@pytest.mark.parametrize(
    ("code", "severity"), [(20034, "critical"), (22013, "info"), (12028, "info")]
)
def test_sxid_severity(code: int, severity: str) -> None:
    assert sxid_catalogue()[code].severity == severity


def test_sxid_catalogue_is_whole() -> None:
    assert len(sxid_catalogue()) == 420
