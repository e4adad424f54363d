"""Slurm's compressed node lists, expanded exactly: ``gpu[01-03,07]`` is four nodes.

Grammar: names apart by commas; a name is text with any number of bracket groups; a group is
numbers and ranges apart by commas; a range's leading zeros are those of its low end.
"""

import itertools
import re

MAX_NODES = 100_000
_NOBODY = frozenset({"", "(null)", "n/a", "none", "none assigned"})
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def expand(text: str) -> list[str]:
    """Node names in the list's own order; none for Slurm's words for nobody.

    >>> expand("b04-[09-10],rack[0-1]_blade[0-1],c427-032")
    ['b04-09', 'b04-10', 'rack0_blade0', 'rack0_blade1', 'rack1_blade0', 'rack1_blade1', 'c427-032']
    >>> expand("(null)")
    []

    Raises:
        ValueError: not a node list, or more than ``MAX_NODES``; says at which position.
    """
    text = text.strip()
    if text.lower() in _NOBODY:
        return []
    names: list[str] = []
    for start, part in _parts(text):
        if not part:
            raise _wrong("an empty name", text, start)
        names.extend(_expand_name(part, text, start, MAX_NODES - len(names)))
    return names


def _parts(text: str) -> list[tuple[int, str]]:
    """Pieces between commas outside of brackets, each with its position."""
    parts: list[tuple[int, str]] = []
    start, opened = 0, -1
    for position, letter in enumerate(text):
        if letter == "[":
            if opened >= 0:
                raise _wrong("a bracket inside a bracket", text, position)
            opened = position
        elif letter == "]":
            if opened < 0:
                raise _wrong("a bracket that closes nothing", text, position)
            opened = -1
        elif letter.isspace():
            raise _wrong("a space", text, position)
        elif letter == "," and opened < 0:
            parts.append((start, text[start:position]))
            start = position + 1
    if opened >= 0:
        raise _wrong("a bracket that is not closed", text, opened)
    parts.append((start, text[start:]))
    return parts


def _expand_name(part: str, text: str, start: int, room: int) -> list[str]:
    pieces: list[list[str]] = []
    position = start
    count = 1
    for index, piece in enumerate(re.split(r"[\[\]]", part)):
        inside = index % 2 == 1
        pieces.append(_expand_group(piece, text, position, room) if inside else [piece])
        count *= len(pieces[-1])
        if count > room:
            raise _wrong(f"more than {MAX_NODES} nodes", text, position)
        position += len(piece) + 1
    return ["".join(chosen) for chosen in itertools.product(*pieces)]


def _expand_group(group: str, text: str, start: int, room: int) -> list[str]:
    numbers: list[str] = []
    position = start
    for item in group.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise _wrong(f"{item!r} is no number or range", text, position)
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise _wrong(f"the range {item!r} runs backwards", text, position)
        if int(high) - int(low) >= room - len(numbers):
            raise _wrong(f"more than {MAX_NODES} nodes", text, position)
        width = len(low)
        numbers.extend(f"{number:0{width}d}" for number in range(int(low), int(high) + 1))
        position += len(item) + 1
    return numbers


def _wrong(what: str, text: str, position: int) -> ValueError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return ValueError(f"node list {shown!r}: {what} at position {position}")
