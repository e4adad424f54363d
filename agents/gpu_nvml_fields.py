"""What to ask NVML for, how often, and how it becomes canonical metrics.

The pace follows what the calls cost on two H200s (driver 580.159, asked once a second): most take
2 to 80 µs, but energy 3.1 ms, GPM 1.6 to 2.1 ms, the maximum clock 1.7 ms, the temperature margin
1.1 ms, the six policy counters 0.9 ms, BAR1 0.5 ms, each PCIe error counter 0.2 ms, and the error
counters of 18 NVLinks 40 ms. All that is read each time takes 0.35 ms a GPU, what is slow 5 ms,
what is rare 52 ms.
"""

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

from msgspec import Struct

from stethoscope.schemas.metrics import Metric, clean, registry

Nvml: TypeAlias = Any  # the pynvml module, which has no types, or a fake with its functions
Handle: TypeAlias = Any  # a ctypes pointer that only NVML looks into
Read: TypeAlias = Callable[[Nvml, Handle], Sequence[float | None]]


class Pace(IntEnum):
    """How often a value is read anew, in seconds; in between the last one stands."""

    EACH_READ = 0
    SLOW = 30
    RARE = 300


class Call(Struct, frozen=True):
    """One NVML function and the metrics it fills, in their canonical units."""

    name: str
    metrics: tuple[str, ...]
    read: Read
    pace: Pace = Pace.EACH_READ


def _memory(nvml: Nvml, handle: Handle) -> Sequence[float]:
    # Version 2: the first counts the reserved part as used.
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return info.used, info.total, info.free, info.reserved


def _utilization(nvml: Nvml, handle: Handle) -> Sequence[float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _fabric(nvml: Nvml, handle: Handle) -> Sequence[float]:
    info = nvml.c_nvmlGpuFabricInfoV_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info.state, info.healthMask


def _temperature(nvml: Nvml, handle: Handle) -> Sequence[float]:
    return (nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),)


def _slowdown(nvml: Nvml, handle: Handle) -> Sequence[float]:
    which = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    return (nvml.nvmlDeviceGetTemperatureThreshold(handle, which),)


def _sm_clock(nvml: Nvml, handle: Handle) -> Sequence[float]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),)


def _memory_clock(nvml: Nvml, handle: Handle) -> Sequence[float]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),)


def _sm_clock_max(nvml: Nvml, handle: Handle) -> Sequence[float]:
    return (nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),)


def _plain(function: str, *metrics: str, divide: float = 1, pace: Pace = Pace.EACH_READ) -> Call:
    """A function of the handle alone that returns one number."""

    def read(nvml: Nvml, handle: Handle) -> Sequence[float]:
        return (getattr(nvml, function)(handle) / divide,)

    return Call(function, metrics, read, pace)


def _first(function: str, metric: str) -> Call:
    """A function that returns (percent, sampling period)."""

    def read(nvml: Nvml, handle: Handle) -> Sequence[float]:
        return (getattr(nvml, function)(handle)[0] / 100,)

    return Call(function, (metric,), read)


def _attribute(function: str, attribute: str, metric: str, pace: Pace) -> Call:
    """A function that returns a struct of which one field counts."""

    def read(nvml: Nvml, handle: Handle) -> Sequence[float]:
        return (getattr(getattr(nvml, function)(handle), attribute),)

    return Call(function, (metric,), read, pace)


_MEMORY_METRICS = (
    "memory_used_bytes",
    "memory_total_bytes",
    "memory_free_bytes",
    "memory_reserved_bytes",
)
CALLS: tuple[Call, ...] = (
    Call(
        "nvmlDeviceGetUtilizationRates",
        ("gpu_utilization_ratio", "memory_utilization_ratio"),
        _utilization,
    ),
    Call("nvmlDeviceGetMemoryInfo", _MEMORY_METRICS, _memory),
    Call("nvmlDeviceGetTemperature", ("gpu_temp_celsius",), _temperature),
    _plain("nvmlDeviceGetPowerUsage", "power_watts", divide=1e3),
    _plain("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts", divide=1e3),
    Call("nvmlDeviceGetClockInfo(SM)", ("sm_clock_mhz",), _sm_clock),
    Call("nvmlDeviceGetClockInfo(MEM)", ("memory_clock_mhz",), _memory_clock),
    _plain("nvmlDeviceGetCurrentClocksEventReasons", "throttle_reasons_bitmask"),
    _plain("nvmlDeviceGetPerformanceState", "performance_state"),
    _first("nvmlDeviceGetEncoderUtilization", "encoder_utilization_ratio"),
    _first("nvmlDeviceGetDecoderUtilization", "decoder_utilization_ratio"),
    _plain("nvmlDeviceGetCurrPcieLinkGeneration", "pcie_link_gen"),
    _plain("nvmlDeviceGetCurrPcieLinkWidth", "pcie_link_width", pace=Pace.SLOW),
    _plain("nvmlDeviceGetFanSpeed", "fan_speed_ratio", divide=100, pace=Pace.SLOW),
    Call(
        "nvmlDeviceGetGpuFabricInfoV",
        ("fabric_state", "fabric_health_mask"),
        _fabric,
        Pace.SLOW,
    ),
    _plain("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_link_gen_max", pace=Pace.RARE),
    _plain("nvmlDeviceGetMaxPcieLinkWidth", "pcie_link_width_max", pace=Pace.RARE),
    _plain("nvmlDeviceGetMarginTemperature", "gpu_temp_margin_celsius", pace=Pace.RARE),
    Call(
        "nvmlDeviceGetTemperatureThreshold",
        ("gpu_temp_slowdown_celsius",),
        _slowdown,
        Pace.RARE,
    ),
    _attribute("nvmlDeviceGetBAR1MemoryInfo", "bar1Used", "bar1_used_bytes", Pace.RARE),
    _attribute("nvmlDeviceGetRowRemapperHistogram", "none", "row_remap_banks_none", Pace.RARE),
    _plain(
        "nvmlDeviceGetTotalEnergyConsumption", "energy_joules_total", divide=1e3, pace=Pace.RARE
    ),
    Call("nvmlDeviceGetMaxClockInfo(SM)", ("sm_clock_max_mhz",), _sm_clock_max, Pace.RARE),
)


class Source(Struct, frozen=True):
    """A field of ``nvmlDeviceGetFieldValues``; several scopes (links) are summed."""

    field: str
    divide: float = 1
    scopes: tuple[int, ...] = (0,)


class Field(Struct, frozen=True):
    """A metric by field value; the first source that the device supports is kept."""

    metric: str
    sources: tuple[Source, ...]
    pace: Pace = Pace.EACH_READ


ALL_LINKS = (0xFFFFFFFF,)  # as a scope: the sum over links, where the driver makes one
EACH_LINK = tuple(range(18))  # NVLink 4 and 5 have 18 links
_PER_KIB = 1 / 1024
_PER_MIB = 1 / (1024 * 1024)


def _field(metric: str, field: str, divide: float = 1, pace: Pace = Pace.EACH_READ) -> Field:
    return Field(metric, (Source(f"NVML_FI_DEV_{field}", divide),), pace)


def _links(metric: str, *sources: tuple[str, float, tuple[int, ...]], pace: Pace) -> Field:
    return Field(metric, tuple(Source(f"NVML_FI_DEV_{f}", x, s) for f, x, s in sources), pace)


FIELDS: tuple[Field, ...] = (
    _field("memory_temp_celsius", "MEMORY_TEMP"),
    _field("power_instant_watts", "POWER_INSTANT", 1e3),
    _field("ecc_sbe_volatile_total", "ECC_SBE_VOL_TOTAL"),
    _field("ecc_dbe_volatile_total", "ECC_DBE_VOL_TOTAL"),
    _field("ecc_sbe_aggregate_total", "ECC_SBE_AGG_TOTAL"),
    _field("ecc_dbe_aggregate_total", "ECC_DBE_AGG_TOTAL"),
    _field("remapped_rows_correctable_total", "REMAPPED_COR"),
    _field("remapped_rows_uncorrectable_total", "REMAPPED_UNC"),
    _field("row_remap_pending", "REMAPPED_PENDING"),
    _field("row_remap_failure", "REMAPPED_FAILURE"),
    _field("recovery_action", "GET_GPU_RECOVERY_ACTION"),
    _field("power_violation_seconds_total", "PERF_POLICY_POWER", 1e9, Pace.SLOW),
    _field("thermal_violation_seconds_total", "PERF_POLICY_THERMAL", 1e9, Pace.SLOW),
    _field("sync_boost_violation_seconds_total", "PERF_POLICY_SYNC_BOOST", 1e9, Pace.SLOW),
    _field("board_limit_violation_seconds_total", "PERF_POLICY_BOARD_LIMIT", 1e9, Pace.SLOW),
    _field("low_util_violation_seconds_total", "PERF_POLICY_LOW_UTILIZATION", 1e9, Pace.SLOW),
    _field("reliability_violation_seconds_total", "PERF_POLICY_RELIABILITY", 1e9, Pace.SLOW),
    _field("pcie_replay_total", "PCIE_REPLAY_COUNTER", pace=Pace.SLOW),
    _field("pcie_correctable_errors_total", "PCIE_COUNT_CORRECTABLE_ERRORS", pace=Pace.RARE),
    _field("pcie_nonfatal_errors_total", "PCIE_COUNT_NON_FATAL_ERROR", pace=Pace.RARE),
    _field("pcie_fatal_errors_total", "PCIE_COUNT_FATAL_ERROR", pace=Pace.RARE),
    _field("retired_pages_sbe_total", "RETIRED_SBE", pace=Pace.RARE),
    _field("retired_pages_dbe_total", "RETIRED_DBE", pace=Pace.RARE),
    _field("retired_pages_pending", "RETIRED_PENDING", pace=Pace.RARE),
    _links("nvlink_links_active", ("NVLINK_GET_STATE", 1, EACH_LINK), pace=Pace.SLOW),
    _links(
        "nvlink_tx_bytes_total",
        ("NVLINK_COUNT_XMIT_BYTES", 1, EACH_LINK),
        ("NVLINK_THROUGHPUT_DATA_TX", _PER_KIB, ALL_LINKS),
        pace=Pace.SLOW,
    ),
    _links(
        "nvlink_rx_bytes_total",
        ("NVLINK_COUNT_RCV_BYTES", 1, EACH_LINK),
        ("NVLINK_THROUGHPUT_DATA_RX", _PER_KIB, ALL_LINKS),
        pace=Pace.SLOW,
    ),
    _links(
        "nvlink_crc_flit_errors_total",
        ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 1, (0,)),
        ("NVLINK_ERROR_DL_CRC", 1, EACH_LINK),
        pace=Pace.RARE,
    ),
    _links(
        "nvlink_crc_data_errors_total",
        ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 1, (0,)),
        pace=Pace.RARE,
    ),
    _links(
        "nvlink_replay_errors_total",
        ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", 1, (0,)),
        ("NVLINK_ERROR_DL_REPLAY", 1, EACH_LINK),
        pace=Pace.RARE,
    ),
    _links(
        "nvlink_recovery_errors_total",
        ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1, (0,)),
        ("NVLINK_ERROR_DL_RECOVERY", 1, EACH_LINK),
        pace=Pace.RARE,
    ),
    _links(
        "nvlink_symbol_errors_total",
        ("NVLINK_COUNT_SYMBOL_ERRORS", 1, EACH_LINK),
        pace=Pace.RARE,
    ),
    _links(
        "nvlink_effective_errors_total",
        ("NVLINK_COUNT_EFFECTIVE_ERRORS", 1, EACH_LINK),
        pace=Pace.RARE,
    ),
)

# (GPM metric id, canonical metric, what to divide by); ids of nvml.h.
GPM: tuple[tuple[int, str, float], ...] = (
    (1, "gr_engine_active_ratio", 100),
    (2, "sm_active_ratio", 100),
    (3, "sm_occupancy_ratio", 100),
    (4, "int_active_ratio", 100),
    (5, "tensor_active_ratio", 100),
    (6, "tensor_dfma_active_ratio", 100),
    (7, "tensor_hmma_active_ratio", 100),
    (9, "tensor_imma_active_ratio", 100),
    (10, "dram_active_ratio", 100),
    (11, "fp64_active_ratio", 100),
    (12, "fp32_active_ratio", 100),
    (13, "fp16_active_ratio", 100),
    (20, "pcie_tx_bytes_per_sec", _PER_MIB),
    (21, "pcie_rx_bytes_per_sec", _PER_MIB),
    (60, "nvlink_rx_bytes_per_sec", _PER_MIB),
    (61, "nvlink_tx_bytes_per_sec", _PER_MIB),
)

# NVML's value types: which member of the union holds the number.
VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Cleaner:
    """Drops what a metric cannot mean, and counts it.

    >>> cleaner = Cleaner()
    >>> cleaner("gpu_temp_celsius", 4294967295), cleaner("memory_temp_celsius", 0)
    (None, None)
    >>> cleaner.invalid_total
    1
    """

    def __init__(self) -> None:
        self.invalid_total = 0
        self._metrics: dict[str, Metric] = registry()

    def __call__(self, name: str, value: float | None) -> float | None:
        """The value, or ``None`` where it is blank, not finite or out of range."""
        if value is None or (value == 0 and name == "memory_temp_celsius"):
            return None  # boards without the sensor report a memory of 0 C
        cleaned = clean(self._metrics[name], value)
        if cleaned is None:
            self.invalid_total += 1
        return cleaned
