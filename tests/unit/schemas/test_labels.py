import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.schemas.findings import Subject
from stethoscope.schemas.incidents import Incident
from stethoscope.schemas.labels import (
    MAX_VALUE_CHARS,
    clean_label_name,
    clean_labels,
    device_of,
    page_labels,
)

MakeIncident = Callable[..., Incident]
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")  # as Alertmanager's own validation


def test_every_label_that_applies_and_no_other(make_incident: MakeIncident) -> None:
    root = Subject(cluster="c1", rack="r7", node="node01", gpu_index=3, gpu_uuid="GPU-9", rank=5)
    labels = page_labels(
        make_incident(root=root, jobs=["4711", "4712"]), job_name="llama", user="ada"
    )
    assert labels == {
        "alertname": "GpuLost",
        "cluster": "c1",
        "severity": "critical",
        "audience": "infra",
        "incident_id": "0123456789abcdef",
        "cause": "gpu_lost",
        "node": "node01",
        "device": "gpu3",
        "rack": "r7",
        "job_id": "4711",
        "job_name": "llama",
        "user": "ada",
    }


def test_what_does_not_apply_is_absent_not_empty(make_incident: MakeIncident) -> None:
    labels = page_labels(
        make_incident(root=Subject(switch="leaf1")), job_name="nobody's", user="nobody"
    )
    assert set(labels) == {
        "alertname",
        "cluster",
        "severity",
        "audience",
        "incident_id",
        "cause",
        "switch",
    }


def test_a_job_is_known_by_its_root_when_no_job_is_listed(make_incident: MakeIncident) -> None:
    assert page_labels(make_incident(root=Subject(job_id="8")))["job_id"] == "8"


def test_what_varies_is_no_label(make_incident: MakeIncident) -> None:
    root = Subject(node="n", gpu_index=0)
    first = page_labels(make_incident(root=root, jobs=["1"]))
    later = page_labels(
        make_incident(
            root=root,
            jobs=["1", "2"],
            nodes=["n", "m"],
            raw_events=900,
            confidence=0.1,
            title="other",
        )
    )
    assert first == later


@pytest.mark.parametrize(
    ("subject", "device"),
    [
        (Subject(gpu_index=0), "gpu0"),
        (Subject(gpu_uuid="GPU-1"), "GPU-1"),
        (Subject(gpu_pci="0000:9b:00"), "0000:9b:00"),
        (Subject(ib_device="mlx5_2", ib_port=1), "mlx5_2/1"),
        (Subject(ib_device="mlx5_2"), "mlx5_2"),
        (Subject(switch="leaf1", ib_port=17), "port17"),
        (Subject(mount="/scratch"), "/scratch"),
        (Subject(node="n1"), None),
    ],
)
def test_device_of(subject: Subject, device: str | None) -> None:
    assert device_of(subject) == device


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("proc_aname[2]", "proc_aname_2_"),
        ("foo.bar", "foo_bar"),
        ("json.value[/x]", "json_value__x_"),
        ("ünode", "_node"),
        ("0", "_0"),
        ("", "_"),
    ],
)
def test_bad_label_names(bad: str, good: str) -> None:
    assert clean_label_name(bad) == good


def test_first_of_two_colliding_names_wins_and_long_values_are_cut() -> None:
    labels = clean_labels({"a.b": "first", "a_b": "second", "long": "x" * 5000})
    assert labels["a_b"] == "first"
    assert len(labels["long"]) == MAX_VALUE_CHARS


@given(st.dictionaries(st.text(), st.text(st.characters(codec=None))))
def test_cleaned_labels_are_always_valid(labels: dict[str, str]) -> None:
    for name, value in clean_labels(labels).items():
        assert LABEL_NAME.fullmatch(name)
        assert value
        assert value.encode("utf-8")
    assert clean_labels(clean_labels(labels)) == clean_labels(labels)
