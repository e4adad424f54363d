"""What ``mlxlink`` and ``ethtool`` say of a port: parsers of their text, and a runner of tools.

Several lanes become one value: the weakest for powers, the strongest for the bias current.
"""

import re
import subprocess
import time
from collections import deque

from msgspec import Struct

from stethoscope.schemas.events import Value

NO_LIGHT_DBM = -40.0  # what transceivers report as -inf: the floor of the registry's range
MAX_OUTPUT_BYTES = 1 << 20
_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_NUMBERS = re.compile(rf"^\s*{_NUMBER}(?:\s*,\s*{_NUMBER})*(?=\s|$)")
_MLXLINK: dict[str, tuple[str, float, bool]] = {
    # name: (metric, what to divide by, whether the least lane counts)
    "temperature": ("optics_temp_celsius", 1.0, False),
    "voltage": ("optics_voltage_volts", 1e3, True),
    "bias current": ("optics_bias_milliamps", 1.0, False),
    "rx power current": ("optics_rx_power_dbm", 1.0, True),
    "tx power current": ("optics_tx_power_dbm", 1.0, True),
    "effective physical ber": ("effective_ber", 1.0, False),
    "raw physical ber": ("raw_ber", 1.0, False),
}
_ETHTOOL: tuple[tuple[re.Pattern[str], str, bool], ...] = (
    (
        re.compile(r"^Laser (?:tx )?bias current(?: ?\(Channel \d+\))?$"),
        "optics_bias_milliamps",
        False,
    ),
    (
        re.compile(r"^(?:Transmit avg optical power(?: ?\(Channel \d+\))?|Laser output power)$"),
        "optics_tx_power_dbm",
        True,
    ),
    (
        re.compile(
            r"^(?:Rcvr signal avg optical power(?: ?\(Channel \d+\))?"
            r"|Receiver signal average optical power)$"
        ),
        "optics_rx_power_dbm",
        True,
    ),
    (re.compile(r"^Module temperature$"), "optics_temp_celsius", False),
    (re.compile(r"^Module voltage$"), "optics_voltage_volts", True),
)
_DBM = re.compile(rf"(?P<dbm>{_NUMBER}|-inf) dBm")
_LEADING = re.compile(rf"^{_NUMBER}")
_STATISTIC = re.compile(r"^\s*(?P<name>[A-Za-z]\w*): (?P<value>\d{1,20})\s*$")
# PFC, ECN and what a lossless fabric must not drop; names as the driver gives them.
_KEPT_STATISTICS = re.compile(
    r"^(?:[rt]x_prio\d_(?:pause(?:_duration|_transition)?|discards|buf_discard)"
    r"|[rt]x_global_pause(?:_duration|_transition)?|[rt]x_pause_ctrl_phy|rx_ecn_mark"
    r"|rx_discards_phy|tx_discards_phy|rx_crc_errors_phy|rx_symbol_err_phy|rx_pcs_symbol_err_phy"
    r"|rx_out_of_buffer|link_down_events_phy|tx_pause_storm_(?:warning|error)_events"
    r"|rx_prio\d_cong_discard)$"
)


def parse_mlxlink(text: str) -> dict[str, Value]:
    """``mlxlink -d DEVICE -m -c``: module temperature, voltage, bias, powers and bit-error ratios.

    >>> parse_mlxlink("Rx Power Current [dBm] : 1.394,-2.5 [-10.4..6]")
    {'optics_rx_power_dbm': -2.5}
    """
    found: dict[str, Value] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        known = _MLXLINK.get(name.partition("[")[0].strip().lower())
        if known is None:
            continue
        metric, divide, least = known
        numbers = _NUMBERS.match(rest)
        if numbers is None:  # N/A: no module, or a copper cable
            continue
        lanes = [float(n.strip()) / divide for n in numbers[0].split(",")]
        found[metric] = min(lanes) if least else max(lanes)
    return found


def parse_ethtool_module(text: str) -> dict[str, Value]:
    """``ethtool -m NETDEV``; alarm thresholds and flags have other names and are left out.

    >>> parse_ethtool_module("Rcvr signal avg optical power(Channel 1) : 0.0000 mW / -inf dBm")
    {'optics_rx_power_dbm': -40.0}
    """
    found: dict[str, Value] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            continue
        for pattern, metric, least in _ETHTOOL:
            if (
                pattern.match(name.strip())
                and (number := _module_number(metric, value)) is not None
            ):
                old = found.get(metric)
                worse = min if least else max
                found[metric] = number if old is None else worse(old, number)
    return found


def _module_number(metric: str, text: str) -> float | None:
    if metric.endswith("_dbm"):
        match = _DBM.search(text)
        if match is None:
            return None
        return NO_LIGHT_DBM if match["dbm"] == "-inf" else max(float(match["dbm"]), NO_LIGHT_DBM)
    leading = _LEADING.match(text.strip())
    return float(leading[0]) if leading else None


def parse_ethtool_statistics(text: str) -> dict[str, int]:
    r"""``ethtool -S NETDEV``: the pause, ECN and discard counters, under the driver's names.

    >>> parse_ethtool_statistics("     rx_prio3_pause: 17\n     rx_packets: 5")
    {'rx_prio3_pause': 17}
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        match = _STATISTIC.match(line)
        if match and _KEPT_STATISTICS.match(match["name"]) and int(match["value"]) < 2**64:
            found[match["name"]] = int(match["value"])
    return found


class Ask(Struct, frozen=True):
    """A command to run for a port; ``parser`` is ``mlxlink``, ``module`` or ``statistics``."""

    port: tuple[str, int]
    parser: str
    command: tuple[str, ...]


class Answer(Struct, frozen=True):
    """Its output, ``None`` when it failed or took too long."""

    ask: Ask
    text: str | None


class ToolQueue:
    """Runs one tool at a time beside the reads, so that a slow firmware delays no sample."""

    def __init__(self, timeout_secs: float) -> None:
        self._timeout_ns = int(timeout_secs * 1e9)
        self._waiting: deque[Ask] = deque()
        self._running: tuple[Ask, subprocess.Popen[bytes], int] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return self._running is None and not self._waiting

    def put(self, asks: list[Ask]) -> None:
        """Queue commands."""
        self._waiting.extend(asks)

    def poll(self, monotonic_ns: int, wait_secs: float = 0.0) -> list[Answer]:
        """Collect what has ended and start the next; waits that long at most for answers."""
        answers: list[Answer] = []
        end = time.monotonic() + wait_secs
        while not self.idle:
            if self._running is None:
                answers.extend(self._start(monotonic_ns))
                continue
            answer = self._collect(monotonic_ns, max(0.001, end - time.monotonic()))
            if answer is None:
                break
            answers.append(answer)
            if time.monotonic() >= end:
                answers.extend(self._start(monotonic_ns))
                break
        return answers

    def close(self) -> None:
        """Kill what runs."""
        if self._running is not None:
            self._running[1].kill()
            self._running[1].communicate()
            self._running = None
        self._waiting.clear()

    def _start(self, monotonic_ns: int) -> list[Answer]:
        if not self._waiting:
            return []
        ask = self._waiting.popleft()
        try:
            process = subprocess.Popen(  # noqa: S603  # our own arguments, no shell
                ask.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return [Answer(ask, None)]
        self._running = (ask, process, monotonic_ns)
        return []

    def _collect(self, monotonic_ns: int, wait_secs: float) -> Answer | None:
        if self._running is None:
            return None
        ask, process, started_ns = self._running
        try:
            output, _ = process.communicate(timeout=wait_secs)
        except subprocess.TimeoutExpired:
            if monotonic_ns - started_ns < self._timeout_ns:
                return None
            process.kill()
            process.communicate()
            self._running = None
            return Answer(ask, None)
        self._running = None
        text = output[:MAX_OUTPUT_BYTES].decode(errors="replace")
        return Answer(ask, text if process.returncode == 0 else None)
