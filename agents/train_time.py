"""When a line of a training log was written: by its own stamp, else by when it was read."""

from collections.abc import Sequence
from datetime import tzinfo

from stethoscope.agents.line_time import LineTime, line_time

# A stamp of whole seconds this near to the reading tells less than the reading does.
NEAR_NS = 5 * 10**9
MAX_AHEAD_NS = 60 * 10**9
# Zones differ by quarters of an hour; less than two of them may as well be a buffer's delay.
_QUARTER_NS = 900 * 10**9
_MIN_SHIFT_NS = 2 * _QUARTER_NS


def times_of(
    texts: Sequence[str],
    zone: tzinfo | None,
    *,
    now_unix_ns: int,
    modified_unix_ns: int,
    last_read_unix_ns: int | None,
) -> list[int]:
    """Unix nanoseconds of the lines of one read.

    Lines without a stamp are spread evenly over the time since the file was last read; in a file
    that was not followed before (``last_read_unix_ns`` is ``None``) they take their neighbour's
    stamp, and without any the file's last change.
    """
    own = [line_time(text, now_unix_ns, zone) for text in texts]
    end_ns = min(now_unix_ns, max(modified_unix_ns, last_read_unix_ns or 0))
    if last_read_unix_ns is None:
        stamped = [stamp.unix_ns for stamp in own if stamp and stamp.unix_ns <= now_unix_ns]
        nearest_ns = stamped[0] if stamped else end_ns
        times: list[int] = []
        for stamp in own:
            nearest_ns = nearest_ns if stamp is None else settle(stamp, end_ns, live=False)
            times.append(nearest_ns)
        return times
    span_ns = max(0, end_ns - last_read_unix_ns)
    read = [last_read_unix_ns + span_ns * (i + 1) // len(own) for i in range(len(own))]
    pairs = zip(own, read, strict=True)
    return [at if stamp is None else settle(stamp, at, live=True) for stamp, at in pairs]


def settle(own: LineTime, read_unix_ns: int, *, live: bool) -> int:
    """The better of a line's own stamp and the time of its reading.

    A live line whose stamp is off by whole quarters of an hour was stamped in another zone.

    >>> settle(LineTime(7 * 3600 * 10**9, True), 8 * 3600 * 10**9 + 5, live=True) // 10**9
    28800
    """
    off_ns = read_unix_ns - own.unix_ns
    if live and abs(off_ns) >= _MIN_SHIFT_NS:
        shift_ns = round(off_ns / _QUARTER_NS) * _QUARTER_NS
        if abs(off_ns - shift_ns) > MAX_AHEAD_NS:
            return read_unix_ns  # a date that the line speaks of
        return settle(LineTime(own.unix_ns + shift_ns, own.exact), read_unix_ns, live=False)
    if off_ns < -MAX_AHEAD_NS or (not own.exact and abs(off_ns) <= NEAR_NS):
        return read_unix_ns
    return own.unix_ns
