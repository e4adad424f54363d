"""The ranks that a log line names before its text.

``srun -l`` writes the task as ``3: ``, torchrun the role and the rank within the node as
``[default0]:``, PyTorch the job's rank as ``[rank3]:`` or ``[Rank 3]``, DeepSpeed and Megatron's
logger as ``[rank-3/8]``.
"""

import re

_HEAD_CHARS = 256
_PREFIX = re.compile(r"^\s*(?:\d{1,6}: |\[(?:rank|default|trainer|worker)\d{1,6}\]:?\s?)+")
_OF_JOB = re.compile(r"\[rank(\d{1,6})\]|\[Rank (\d{1,6})\]|\bRank (\d{1,6})\]|\[rank-(\d{1,6})/")
_WITHIN_NODE = re.compile(r"\[(?:default|trainer|worker)(\d{1,6})\]:")
_OF_TASK = re.compile(r"^\s*(\d{1,6}): ")


def rank_of(line: str) -> int | None:
    """The rank that the line names: PyTorch's first, then torchrun's local one, then srun's task.

    >>> rank_of("3: [default1]:[rank9]: loss")
    9
    """
    head = line[:_HEAD_CHARS]
    for pattern in (_OF_JOB, _WITHIN_NODE, _OF_TASK):
        if match := pattern.search(head):
            return int(next(group for group in match.groups() if group))
    return None


def is_within_node(line: str) -> bool:
    """Whether the rank that ``rank_of`` reads counts the processes of one node only.

    >>> is_within_node("[default1]: loss"), is_within_node("[default1]:[rank9]: loss")
    (True, False)
    """
    head = line[:_HEAD_CHARS]
    return _OF_JOB.search(head) is None and _WITHIN_NODE.search(head) is not None


def prefix_of(line: str) -> str:
    """What stands before the text: the same for all lines of one rank.

    >>> prefix_of("3: [rank9]: loss"), prefix_of("loss")
    ('3: [rank9]: ', '')
    """
    match = _PREFIX.match(line)
    return match[0] if match else ""
