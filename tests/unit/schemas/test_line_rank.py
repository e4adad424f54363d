"""The ranks that lines name, as srun, torchrun, PyTorch and DeepSpeed write them."""

import pytest

from stethoscope.schemas.line_rank import is_within_node, prefix_of, rank_of


@pytest.mark.parametrize(
    ("line", "rank", "within_node"),
    [
        ("[rank3]:[E1129 16:08:25.70 ProcessGroupNCCL.cpp:1628] text", 3, False),
        ("[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught", 1, False),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 255] Exception", 255, False),
        ("[default2]: step 1", 2, True),
        ("[trainer0]:step 1", 0, True),
        ("12: step 1 loss 2", 12, False),
        ("3: [default1]: loss", 1, True),
        ("3: [default1]:[rank9]: loss", 9, False),
        ("[rank-7/8][INFO ] x", 7, False),
        ("AssertionError: found NaN", None, False),
        ("12:30: text", None, False),
        ("x" * 300 + "[rank3]", None, False),
        ("", None, False),
    ],
)
def test_the_rank_that_a_line_names(line: str, rank: int | None, within_node: bool) -> None:
    assert (rank_of(line), is_within_node(line)) == (rank, within_node)


@pytest.mark.parametrize(
    ("line", "prefix"),
    [
        ("3: [default1]:[rank9]: loss", "3: [default1]:[rank9]: "),
        ("[rank3]:[E1129 16:08:25.70 x] text", "[rank3]:"),
        ("  7: loss", "  7: "),
        ("loss 3: x", ""),
    ],
)
def test_the_prefix_of_all_lines_of_a_rank(line: str, prefix: str) -> None:
    assert prefix_of(line) == prefix
