r"""The kernel's record device, ``/dev/kmsg``: one read gives one record.

A record is ``level,seq,usec,flags;text`` with bytes it will not print as ``\xNN``; then come
continuation lines that begin with a space. Source: Documentation/ABI/testing/dev-kmsg.
"""

import errno
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_RECORD_BYTES = 16 * 1024
MAX_RECORDS = 50_000
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_HEAD = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]*;")


class Record(NamedTuple):
    """One record. ``usec`` counts on the monotonic clock since boot."""

    seq: int
    usec: int
    text: str


def parse_record(data: bytes) -> Record | None:
    r"""A record as the device gives it, its lines joined; ``None`` where it is none.

    >>> parse_record(b"6,339,5140900,-;NVRM: loading\n SUBSYSTEM=pci\n")
    Record(seq=339, usec=5140900, text='NVRM: loading')
    """
    head = _HEAD.match(data)
    if head is None:
        return None
    body = data[head.end() :].split(b"\n", 1)[0]
    if b"\\x" in body:
        body = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), body)
    text = " ".join(body.decode("utf-8", errors="replace").split("\n"))
    return Record(int(head[2]), int(head[3]), text)


class Kmsg:
    """The device, from a sequence number on."""

    def __init__(self, path: str) -> None:
        """Open it.

        Raises:
            OSError: absent, or forbidden (needs ``CAP_SYSLOG`` where ``dmesg_restrict`` is 1).
        """
        self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.next_seq = 0
        self.overruns = 0

    def read(self) -> Iterator[Record]:
        """Records not yet seen, at most ``MAX_RECORDS``; counts those overwritten before."""
        for _ in range(MAX_RECORDS):
            data = self._read_one()
            if data is None:
                return
            record = parse_record(data)
            if record is None or record.seq < self.next_seq:
                continue
            if self.next_seq:
                self.overruns += record.seq - self.next_seq
            self.next_seq = record.seq + 1
            yield record

    def close(self) -> None:
        """Let go of the device."""
        os.close(self._handle)

    def _read_one(self) -> bytes | None:
        while True:
            try:
                return os.read(self._handle, MAX_RECORD_BYTES) or None
            except BlockingIOError:
                return None
            except OSError as error:
                # Records were overwritten before we came to them; the next read goes on after.
                if error.errno != errno.EPIPE:
                    raise
