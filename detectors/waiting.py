"""GPUs that wait: spinning in a collective, or idle. Shared by the detectors of hangs."""

import numpy as np
import numpy.typing as npt

from stethoscope.detectors.job_context import (
    DRAM,
    NVLINK,
    PCIE,
    POWER,
    SM,
    TENSOR,
    UTIL,
    Floats,
    Gpu,
    JobContext,
)

SPIN_RATIO = 0.9
Bools = npt.NDArray[np.bool_]


def at_work(lately: Floats, healthy: Floats) -> Bools:
    """``bool[gpus]``: whether a GPU computes or moves data, rather than idles or spins.

    A rank that spins in a collective on an H200 reads SM active 0.01 to 0.18, no tensor or memory
    work, and no traffic; idle links of PCIe read 3 MB/s. Where the driver gives no activity, a
    busy GPU that draws less than 0.4 of its healthy power spins.
    """
    moves = (lately[:, NVLINK] > 1e8) | (lately[:, PCIE] > 3e7) | (lately[:, DRAM] > 0.02)
    draws = ~(lately[:, POWER] < 0.4 * healthy[:, POWER])
    blind = np.isnan(lately[:, SM]) & (lately[:, UTIL] > 0.05) & draws
    working: Bools = (lately[:, TENSOR] > 0.01) | (lately[:, SM] > 0.3) | moves | blind
    return working


def spins(lately: Floats) -> Bools:
    """``bool[gpus]``: of GPUs that do not work, those that wait in a collective."""
    return lately[:, UTIL] > SPIN_RATIO


def missing(job: JobContext, lately: Floats) -> list[Gpu]:
    """GPUs that are not in the collective in which the job waits; an unseen one may well be."""
    idle = lately[:, UTIL] <= SPIN_RATIO
    return [gpu for gpu, idles in zip(job.gpus, idle, strict=True) if idles]


def is_few(job: JobContext, gpus: list[Gpu]) -> bool:
    """Whether so few of the job's GPUs are missing that the fault may be theirs."""
    return len(gpus) <= max(1, len(job.gpus) // 8)
