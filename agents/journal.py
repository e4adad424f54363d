"""journald by its own command: entries after a cursor."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from stethoscope.agents.command import run

_SEQNUM = re.compile(r"s=([0-9a-f]+);i=([0-9a-f]+);")
MAX_ENTRIES = 20_000


class _Record(Struct):
    cursor: str = field(name="__CURSOR")
    realtime_usec: str = field(name="__REALTIME_TIMESTAMP")
    message: str | list[int] | None = field(name="MESSAGE", default=None)
    boot_id: str = field(name="_BOOT_ID", default="")


class Entry(NamedTuple):
    """One entry. ``stream`` and ``seq``: the journal's own sequence and the number in it."""

    cursor: str
    stream: str
    seq: int
    unix_ns: int
    text: str


_decoder = msgspec.json.Decoder(_Record)


def parse_entry(line: bytes) -> Entry | None:
    """One line of ``journalctl -o json``; ``None`` where it is none or has no message."""
    try:
        record = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    position = _SEQNUM.search(record.cursor)
    if position is None or record.message is None or not record.realtime_usec.isdigit():
        return None
    if isinstance(record.message, str):
        text = record.message
    else:  # journald writes text that is not UTF-8 as numbers
        text = bytes(value & 0xFF for value in record.message).decode("utf-8", errors="replace")
    seq = int(position[2], 16)
    return Entry(record.cursor, position[1], seq, int(record.realtime_usec) * 1000, text)


class Journal:
    """What ``journalctl`` selects by ``arguments``, each entry once."""

    def __init__(self, arguments: Sequence[str], timeout_secs: float = 30.0) -> None:
        self._arguments = list(arguments)
        self._timeout_secs = timeout_secs
        self.cursor: str | None = None

    def read(self, since_unix_ns: int) -> list[Entry]:
        """Entries after the cursor, or since then where there is no cursor yet.

        Raises:
            ServiceError: the command is missing, fails or takes too long.
        """
        after = (
            [f"--after-cursor={self.cursor}"]
            if self.cursor
            else [f"--since=@{since_unix_ns // 10**9}"]
        )
        fixed = ["journalctl", "--no-pager", "--quiet", "-o", "json"]
        output = run([*fixed, *self._arguments, *after], self._timeout_secs)
        lines = output.splitlines()[:MAX_ENTRIES]
        entries = [entry for line in lines if (entry := parse_entry(line)) is not None]
        if entries:
            self.cursor = entries[-1].cursor
        return entries
