"""Whatever the bytes: events, refusals or one clear error, and nothing else."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stethoscope.replay.chunks import lines
from stethoscope.replay.files import read_events
from stethoscope.schemas.errors import ConfigError, InputError
from stethoscope.schemas.events import Event
from stethoscope.streams.config import parse_config

few = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SCRAPS = [b'{"kind":"clock","time_unix_ns":5}', b"\n", b"{", b"}", b"\0", b"\xff", b"\r\n", b"null"]


@few
@given(parts=st.lists(st.sampled_from(SCRAPS) | st.binary(max_size=20), max_size=30))
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"])
def test_any_file_is_read_or_refused(tmp_path: Path, name: str, parts: list[bytes]) -> None:
    path = tmp_path / name
    content = b"".join(parts)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    refused: list[str] = []
    events: list[Event] = []
    said = f"{path}: no error"
    try:
        events = list(read_events([path], lambda error, where: refused.append(where)))
    except InputError as error:
        said = str(error)
    assert bool(events) == said.endswith("no error")
    assert said.startswith(str(path))
    assert "\n" not in said


@few
@given(content=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=6))
def test_lines_do_not_depend_on_where_pieces_end(content: bytes, cuts: list[int]) -> None:
    content = content.replace(b"\x01", b"\n")

    def pieces() -> Iterator[bytes]:
        at = 0
        for cut in sorted(cuts):
            yield content[at:cut]
            at = max(at, cut)
        yield content[at:]

    whole = content.split(b"\n")
    assert list(lines(pieces(), 1000)) == (whole if whole[-1] else whole[:-1])


KEYS = ["cluster", "kafka", "brokers", "severity", "timing", "password", "bearer_token"]
yaml_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["xid", "off"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@few
@given(text=st.text(max_size=60))
def test_any_text_is_a_configuration_or_one_line_of_error(text: str) -> None:
    _configure(text)


entries = st.dictionaries(
    st.sampled_from(["kind", "name", "mode", "match", "metric", "cause", "for_secs"]),
    st.sampled_from(["threshold", "xid", "page", ""]) | yaml_values,
    max_size=4,
)


@few
@given(value=yaml_values | st.fixed_dictionaries({"detectors": st.lists(entries, max_size=3)}))
def test_any_yaml_is_a_configuration_or_one_line_of_error(value: object) -> None:
    import yaml

    _configure(yaml.safe_dump(value, allow_unicode=True))


def _configure(text: str) -> None:
    said = "x.yaml: ok"
    try:
        parse_config(text, "x.yaml")
    except ConfigError as error:
        said = str(error)
    assert said.startswith("x.yaml:")
    assert "\n" not in said
