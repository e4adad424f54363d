"""Xid and SXid lines of the kernel log."""

import pytest

from stethoscope.detectors.xid import Xid, XidConfig
from stethoscope.schemas.findings import Finding

from .build import at, kernel, node_context
from .shared_lines import SharedLine, shared_lines


def read(*lines: str, config: XidConfig | None = None) -> list[Finding]:
    detector, node = Xid(config or XidConfig()), node_context()
    return [f for i, line in enumerate(lines) for f in detector.update(kernel(line, i), node)]


@pytest.mark.parametrize(
    ("line", "code", "cause", "severity"),
    [
        (
            "NVRM: Xid (PCI:0000:00:06): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of",
            119,
            "gpu_xid",
            "critical",
        ),
        (
            "NVRM: Xid (PCI:0000:00:06): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"
            " the bus.",
            79,
            "gpu_lost",
            "critical",
        ),
        ("NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus", 79, "gpu_lost", "critical"),
        (
            "[ 3.1] NVRM: Xid (PCI:0000:00:06): 31, pid=1, name=nvc:[driver], channel 0x0c",
            31,
            "gpu_xid",
            "info",
        ),
        (
            "NVRM: Xid (PCI:0000:00:06 GPU-I:05): 94, pid=7194, Contained: CE User Channel",
            94,
            "gpu_ecc_uncorrectable",
            "warning",
        ),
        (
            "NVRM: Xid (PCI:0000:00:06): 154, GPU recovery action changed from 0x0 (None) to 0x4"
            " (Drain and Reset)",
            154,
            "gpu_xid",
            "info",
        ),
        ("NVRM: Xid (PCI:0000:00:06): 154, recovery action) changed (0x1", 154, "gpu_xid", "info"),
        ("NVRM: Xid (0000:00:06.0): 48, DBE", 48, "gpu_ecc_uncorrectable", "critical"),
        ("NVRM: Xid (PCI:0000:00:06): 45, pid=1, Ch 00000001", 45, "gpu_xid", "info"),
        ("NVRM: Xid (PCI:0000:00:06): 9999, a code of tomorrow", 9999, "gpu_xid", "warning"),
    ],
)
def test_the_line_zoo(line: str, code: int, cause: str, severity: str) -> None:
    (only,) = read(line)
    assert (only.value, only.cause, only.severity) == (float(code), cause, severity)
    assert (only.subject.node, only.subject.gpu_index) == ("node01", 0)
    assert only.moment
    assert (only.score is None) == (severity == "info")
    assert only.score is None or only.score >= 1.0


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:00:06)",
        "NVRM: Xid (PCI:0000:00:06): , pid=1",
        "NVRM: Xid (): 79, GPU has",
        "NVRM: Xid )PCI:0000:00:06(: 79",
        "NVRM: GPU at PCI:0000:00:06: GPU-00000000-0000-4000-8000-000000000001",
        "usb 1-1: new device",
        "",
    ],
)
def test_malformed_and_other_lines_say_nothing(line: str) -> None:
    assert read(line) == []


def test_the_process_is_named_where_known() -> None:
    (only,) = read("NVRM: Xid (PCI:0000:00:06): 31, pid=13705, name=proc, channel 0x0c")
    assert "by pid 13705 proc" in only.evidence


def test_a_follower_names_its_cause() -> None:
    (only,) = read("NVRM: Xid (PCI:0000:00:06): 45, pid=1, name=p, Ch 1 caused by previous Xid 149")
    assert "follows Xid 149" in only.evidence
    assert only.severity == "info"


@pytest.mark.parametrize(("word", "severity"), [("Nonfatal", "info"), ("Fatal  ", "critical")])
def test_nvlink5_lines_carry_their_own_severity(word: str, severity: str) -> None:
    (only,) = read(f"NVRM: Xid (PCI:0000:00:07): 149, NETIR_LINK_EVT  {word} XC0 i0 Link 01 (0x02)")
    assert (only.severity, only.subject.gpu_index) == (severity, 1)


def test_a_gpu_that_was_never_scraped_is_named_by_its_address() -> None:
    (only,) = read("NVRM: Xid (PCI:0009:01:00): 79, GPU has fallen off the bus")
    assert (only.subject.gpu_index, only.subject.gpu_pci) == (None, "0009:01:00")


def test_ignored_codes_are_recorded_all_the_same() -> None:
    (only,) = read("NVRM: Xid (PCI:0000:00:06): 79, x", config=XidConfig(ignore=[79]))
    assert (only.severity, only.score) == ("info", None)


def test_folded_lines_count() -> None:
    line = kernel("NVRM: Xid (PCI:0000:00:06): 95, Uncontained: FBHUB. RST: Yes", 7, count=800_000)
    (only,) = Xid(XidConfig()).update(line, node_context())
    assert (only.raw_events, only.started_unix_ns) == (800_000, at(7))


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        (
            "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "critical",
        ),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", "info"),
        ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion", "info"),
        ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 99999, Fatal, unheard of", "critical"),
    ],
)
def test_sxid_severity_is_the_lines_own_word(line: str, severity: str) -> None:
    (only,) = read(line)
    assert (only.cause, only.severity) == ("nvswitch_error", severity)
    assert only.subject.node == "node01"
    assert (only.score is None) == (severity == "info")


@pytest.mark.parametrize("rest", ["Data {0x000001c0, 0x00bd5c8a}", "Severity 0 Engine instance 44"])
def test_follow_up_lines_of_an_sxid_are_the_same_event(rest: str) -> None:
    assert read(f"nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, {rest}") == []


def test_fallen_off_the_bus_without_an_xid() -> None:
    (only,) = read("NVRM: GPU 0000:00:07.0: GPU has fallen off the bus.")
    assert (only.cause, only.subject.gpu_index) == ("gpu_lost", 1)


def test_fallen_off_the_bus_over_three_records() -> None:
    (only,) = read(
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:00:07.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    )
    assert (only.cause, only.subject.gpu_index) == ("gpu_lost", 1)
    assert only.started_unix_ns == at(2)


def test_a_gpu_that_was_only_probed_has_not_fallen_off() -> None:
    assert (
        read(
            "NVRM: The NVIDIA GPU 0000:00:07.0",
            "NVRM: (PCI ID: 10de:2330) installed in this system is not supported",
            "NVRM: by the NVIDIA 580.159.04 driver release.",
        )
        == []
    )


@pytest.mark.parametrize("shared", shared_lines("xid", "sxid", "gpu_lost_no_xid"))
def test_lines_that_were_reported_in_public(shared: SharedLine) -> None:
    found = read(*shared.line.split("\n"))
    follow_up = "Data {" in shared.line
    assert len(found) == (0 if follow_up else 1)
