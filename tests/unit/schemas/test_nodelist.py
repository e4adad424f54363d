import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.schemas.nodelist import MAX_NODES, expand


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("node[001-004,007]", ["node001", "node002", "node003", "node004", "node007"]),
        ("b04-[09-10]", ["b04-09", "b04-10"]),
        ("nodeA,nodeB[001,003],nodeC", ["nodeA", "nodeB001", "nodeB003", "nodeC"]),
        (
            "foo003,foo0[10-12],foo[103-104],foo-m11-16",
            ["foo003", "foo010", "foo011", "foo012", "foo103", "foo104", "foo-m11-16"],
        ),
        (
            "rack[0-1]_blade[0-1]",
            ["rack0_blade0", "rack0_blade1", "rack1_blade0", "rack1_blade1"],
        ),
        ("host[001,003-004,006]", ["host001", "host003", "host004", "host006"]),
        ("c427-032,c429-002", ["c427-032", "c429-002"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[08-11]x", ["n08x", "n09x", "n10x", "n11x"]),
        ("gpu01", ["gpu01"]),
        ("[1-2]", ["1", "2"]),
        ("(null)", []),
        ("", []),
        ("  ", []),
        ("n/a", []),
        ("None assigned", []),
    ],
)
def test_expands_exactly(text: str, nodes: list[str]) -> None:
    assert expand(text) == nodes


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("gpu[1-2", 3),
        ("gpu1-2]", 6),
        ("gpu[[1]]", 4),
        ("gpu[]", 4),
        ("gpu[1,,2]", 6),
        ("gpu[4-1]", 4),
        ("gpu[a-b]", 4),
        ("a,,b", 2),
        ("a, b", 2),
        ("a,", 2),
        ("gpu[1-2],x[0-99999999999]", 11),
        ("r[0-999]b[0-999]", 10),
    ],
)
def test_names_the_position_of_what_is_wrong(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=rf"at position {position}$"):
        expand(text)


def test_the_largest_list_still_expands() -> None:
    assert len(expand(f"n[1-{MAX_NODES}]")) == MAX_NODES


name = st.text("abcxyz-_.0189", min_size=1, max_size=8).filter(lambda text: text != "n/a")


@given(st.lists(name, min_size=1, max_size=20))
def test_plain_names_come_back(names: list[str]) -> None:
    assert expand(",".join(names)) == names


@given(name, st.integers(0, 5000), st.integers(0, 200), st.integers(1, 6))
def test_a_range_is_what_it_counts(prefix: str, low: int, more: int, width: int) -> None:
    written = f"{prefix}[{low:0{width}d}-{low + more}]"
    width = max(width, len(str(low)))
    assert expand(written) == [f"{prefix}{n:0{width}d}" for n in range(low, low + more + 1)]


@given(st.text("ab019[],- ", max_size=30))
def test_anything_expands_or_is_refused(text: str) -> None:
    try:
        nodes = expand(text)
    except ValueError:
        return
    assert all(node and not set(node) & set("[], ") for node in nodes)
