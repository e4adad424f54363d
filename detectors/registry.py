"""All detectors, written out: kind, settings, class, and what each reads. A test proves it full.

``default_detectors`` is what runs without a configuration file. To add one see
docs/adding-a-detector.md.
"""

from typing import Literal, NamedTuple, TypeAlias

from stethoscope.detectors.agent_silent import AgentSilent, AgentSilentConfig
from stethoscope.detectors.clock_skew import ClockSkew, ClockSkewConfig
from stethoscope.detectors.counter_rise import CounterRise, CounterRiseConfig
from stethoscope.detectors.cuda_oom import CudaOom, CudaOomConfig
from stethoscope.detectors.data_stall import DataStall, DataStallConfig
from stethoscope.detectors.gpu_contention import GpuContention, GpuContentionConfig
from stethoscope.detectors.gpu_lost import GpuLost, GpuLostConfig
from stethoscope.detectors.gpu_throttled import GpuThrottled, GpuThrottledConfig
from stethoscope.detectors.grad_explosion import GradExplosion, GradExplosionConfig
from stethoscope.detectors.host_oom import HostOom, HostOomConfig
from stethoscope.detectors.ib_port_down import IbPortDown, IbPortDownConfig
from stethoscope.detectors.job_failed import JobFailed, JobFailedConfig
from stethoscope.detectors.job_hang import JobHang, JobHangConfig
from stethoscope.detectors.loss_nan import LossNan, LossNanConfig
from stethoscope.detectors.loss_spike import LossSpike, LossSpikeConfig
from stethoscope.detectors.nccl_path import NcclPath, NcclPathConfig
from stethoscope.detectors.nccl_timeout import NcclTimeout, NcclTimeoutConfig
from stethoscope.detectors.orphan_process import OrphanProcess, OrphanProcessConfig
from stethoscope.detectors.rank_lost import RankLost, RankLostConfig
from stethoscope.detectors.step_time import StepTime, StepTimeConfig
from stethoscope.detectors.telemetry_degraded import TelemetryDegraded, TelemetryDegradedConfig
from stethoscope.detectors.threshold import Threshold, ThresholdConfig
from stethoscope.detectors.xid import Xid, XidConfig
from stethoscope.schemas.config import DetectorConfig


class Entry(NamedTuple):
    """One kind: its settings, its class, and which stage feeds it."""

    config: type[DetectorConfig]
    detector: type
    reads: Literal[
        "samples", "lines", "ports", "scrapes", "blindness", "clocks", "nodes", "jobs", "ended_jobs"
    ]


DETECTORS: dict[str, Entry] = {
    "threshold": Entry(ThresholdConfig, Threshold, "samples"),
    "counter_rise": Entry(CounterRiseConfig, CounterRise, "samples"),
    "gpu_throttled": Entry(GpuThrottledConfig, GpuThrottled, "samples"),
    "ib_port_down": Entry(IbPortDownConfig, IbPortDown, "ports"),
    "gpu_lost": Entry(GpuLostConfig, GpuLost, "scrapes"),
    "telemetry_degraded": Entry(TelemetryDegradedConfig, TelemetryDegraded, "blindness"),
    "clock_skew": Entry(ClockSkewConfig, ClockSkew, "clocks"),
    "agent_silent": Entry(AgentSilentConfig, AgentSilent, "nodes"),
    "xid": Entry(XidConfig, Xid, "lines"),
    "host_oom": Entry(HostOomConfig, HostOom, "lines"),
    "step_time": Entry(StepTimeConfig, StepTime, "jobs"),
    "data_stall": Entry(DataStallConfig, DataStall, "jobs"),
    "gpu_contention": Entry(GpuContentionConfig, GpuContention, "jobs"),
    "job_hang": Entry(JobHangConfig, JobHang, "jobs"),
    "nccl_timeout": Entry(NcclTimeoutConfig, NcclTimeout, "jobs"),
    "nccl_path": Entry(NcclPathConfig, NcclPath, "jobs"),
    "cuda_oom": Entry(CudaOomConfig, CudaOom, "jobs"),
    "rank_lost": Entry(RankLostConfig, RankLost, "jobs"),
    "loss_nan": Entry(LossNanConfig, LossNan, "jobs"),
    "loss_spike": Entry(LossSpikeConfig, LossSpike, "jobs"),
    "grad_explosion": Entry(GradExplosionConfig, GradExplosion, "jobs"),
    "job_failed": Entry(JobFailedConfig, JobFailed, "jobs"),
    "orphan_process": Entry(OrphanProcessConfig, OrphanProcess, "ended_jobs"),
}

AnyDetectorConfig: TypeAlias = (
    ThresholdConfig
    | CounterRiseConfig
    | GpuThrottledConfig
    | IbPortDownConfig
    | GpuLostConfig
    | TelemetryDegradedConfig
    | ClockSkewConfig
    | AgentSilentConfig
    | XidConfig
    | HostOomConfig
    | StepTimeConfig
    | DataStallConfig
    | GpuContentionConfig
    | JobHangConfig
    | NcclTimeoutConfig
    | NcclPathConfig
    | CudaOomConfig
    | RankLostConfig
    | LossNanConfig
    | LossSpikeConfig
    | GradExplosionConfig
    | JobFailedConfig
    | OrphanProcessConfig
)


def default_detectors() -> list[AnyDetectorConfig]:
    """What runs without a file. Each limit's source stands beside it."""
    return [
        *_default_limits(),
        GpuThrottledConfig(),
        IbPortDownConfig(),
        GpuLostConfig(),
        TelemetryDegradedConfig(),
        ClockSkewConfig(),
        AgentSilentConfig(),
        XidConfig(),
        HostOomConfig(),
        StepTimeConfig(),
        DataStallConfig(),
        GpuContentionConfig(),
        JobHangConfig(),
        NcclTimeoutConfig(),
        NcclPathConfig(),
        CudaOomConfig(),
        RankLostConfig(),
        LossNanConfig(),
        LossSpikeConfig(),
        GradExplosionConfig(),
        JobFailedConfig(),
        OrphanProcessConfig(),
    ]


def _default_limits() -> list[AnyDetectorConfig]:
    return [
        # NVIDIA H100 and H200 slow down near 87 to 90 C, HBM is specified to 95 C.
        ThresholdConfig(
            name="gpu_overheating",
            metric="gpu_temp_celsius",
            cause="gpu_overheating",
            limit=88.0,
            clear_limit=84.0,
            for_secs=30.0,
            keep_firing_secs=60.0,
        ),
        ThresholdConfig(
            name="memory_overheating",
            metric="memory_temp_celsius",
            cause="gpu_overheating",
            limit=96.0,
            clear_limit=92.0,
            for_secs=30.0,
            keep_firing_secs=60.0,
        ),
        # States that the driver itself reports as wanting a reset, or a new board.
        ThresholdConfig(
            name="row_remap_failure",
            metric="row_remap_failure",
            cause="gpu_row_remap_failure",
            limit=0.5,
        ),
        ThresholdConfig(
            name="row_remap_pending",
            metric="row_remap_pending",
            cause="gpu_row_remap_pending",
            limit=0.5,
        ),
        # Uncorrectable errors, fatal errors of the bus: any rise is a fault.
        CounterRiseConfig(
            name="ecc_dbe", metric="ecc_dbe_volatile_total", cause="gpu_ecc_uncorrectable"
        ),
        CounterRiseConfig(
            name="pcie_fatal", metric="pcie_fatal_errors_total", cause="pcie_degraded"
        ),
    ]
