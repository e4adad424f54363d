"""Which cause explains which symptom."""

import pytest

from stethoscope.correlation.places import is_deeper, is_same, leads_to, place_of
from stethoscope.correlation.relations import AT_ONCE, CONFIDENCE, EXPLAINS, TEARDOWN
from stethoscope.schemas.causes import cause_catalogue
from stethoscope.schemas.findings import Subject


def test_every_word_is_a_cause_of_the_catalogue() -> None:
    words = set(EXPLAINS) | set().union(*EXPLAINS.values()) | AT_ONCE | set(CONFIDENCE) | TEARDOWN
    assert words <= set(cause_catalogue())


def test_hardware_is_never_a_symptom_of_a_job() -> None:
    planes = {name: cause.plane for name, cause in cause_catalogue().items()}
    hardware = {n for n, p in planes.items() if p in ("gpu", "fabric", "node")}
    wrong = {
        (cause, symptom)
        for cause, symptoms in EXPLAINS.items()
        if planes[cause] == "job"
        for symptom in symptoms & hardware
    }
    # A GPU slower than its peers is what a slow job looks like.
    assert {symptom for _, symptom in wrong} <= {"gpu_slow"}


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (Subject(node="n", gpu_index=1), Subject(node="n", gpu_index=1, job_id="7"), True),
        (Subject(node="n", gpu_index=1), Subject(node="n", gpu_index=2), False),
        (Subject(node="n", gpu_index=1), Subject(node="m", gpu_index=1), False),
        (Subject(node="n", gpu_pci="a"), Subject(node="n", gpu_pci="a"), True),
        (Subject(node="n", job_id="7"), Subject(node="n", job_id="7"), True),
        (Subject(node="n", job_id="7", gpu_index=1), Subject(node="n", job_id="7"), True),
        (
            Subject(node="n", job_id="7", gpu_index=1),
            Subject(node="n", job_id="8", gpu_index=1),
            False,
        ),
        (Subject(node="n", ib_device="a"), Subject(node="n", ib_device="b"), False),
        (Subject(node="n", mount="/a"), Subject(node="n", mount="/b"), False),
        (Subject(switch="s1"), Subject(switch="s2"), False),
    ],
)
def test_the_same_place(one: Subject, two: Subject, same: bool) -> None:
    assert is_same("gpu_slow", one, "gpu_slow", two) is same
    assert is_same("gpu_slow", two, "gpu_slow", one) is same
    assert not is_same("gpu_slow", one, "gpu_xid", two)


def test_job_symptoms_span_nodes_and_hardware_does_not() -> None:
    here, there, job = Subject(node="n"), Subject(node="m"), Subject(job_id="7")
    assert leads_to("gpu_lost", here, "job_hang", there)
    assert leads_to("gpu_lost", here, "job_hang", job)
    assert leads_to("gpu_lost", here, "gpu_xid", here)
    assert not leads_to("gpu_lost", here, "gpu_xid", there)
    assert not leads_to("job_hang", here, "gpu_lost", here)


def test_causes_that_explain_each_other_are_not_deeper() -> None:
    here = Subject(node="n")
    assert not is_deeper("job_hang", here, "nccl_timeout", here)
    assert is_deeper("gpu_lost", here, "nccl_timeout", here)


def test_what_recurs_is_the_device_or_the_job() -> None:
    gpu = Subject(node="n", gpu_uuid="u", job_id="7")
    assert place_of(gpu) == place_of(Subject(node="n", gpu_uuid="u", job_id="8"))
    assert place_of(Subject(node="n", job_id="7")) != place_of(Subject(node="n", job_id="8"))
    assert place_of(Subject(switch="s1")) != place_of(Subject(switch="s2"))
