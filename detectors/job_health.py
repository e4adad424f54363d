"""What a job is like while nothing is wrong: the pace of its lines, and its GPUs' healthy means."""

import statistics
from bisect import bisect_right
from itertools import pairwise

import numpy as np

from stethoscope.detectors.job_context import PACE_LINES, RECENT_SECS, JobContext
from stethoscope.schemas.findings import NS

HEALTHY_SECS = 3  # so much of health must be known to compare with
LEARN_LAG_SECS = 8
USUAL_RATIO = 1.5  # a gap between lines is usual up to so many times the median
SETTLE_SECS = 3  # a sample of the first steps still averages over the start


def settle_pace(context: JobContext) -> None:
    """Renew ``pace_secs``, the median time between the last twenty step lines.

    Lines that come in bursts (a buffered log, several lines a step) count by burst.
    """
    if not context.new_steps or len(context.steps) < 3:
        return
    gaps = _gaps_secs([s.time_unix_ns for s in context.steps[-PACE_LINES:]])
    context.pace_secs = statistics.median(gaps)
    bursts = _gaps_secs(context.beats)
    if statistics.median_low(gaps) < 1.0 and len(bursts) >= 2:
        burst_secs = statistics.median_high(bursts)
        if burst_secs > 1.5:
            context.pace_secs = burst_secs


def _gaps_secs(times_ns: list[int]) -> list[float]:
    return [(b - a) / NS for a, b in pairwise(times_ns)]


def learn_healthy(context: JobContext, now_ns: int) -> None:
    """Move the healthy means towards a second that lies ``LEARN_LAG_SECS`` and a step back.

    Only where the job stepped then, and nothing was wrong since: a fault is noticed some seconds
    after it began, and must not become normal.
    """
    lag_secs = LEARN_LAG_SECS + int(USUAL_RATIO * (context.pace_secs or 0.0))
    then_ns = now_ns - min(lag_secs, RECENT_SECS - 1) * NS
    if context.disturbed_ns > then_ns or not _stepped(context, then_ns, now_ns):
        return
    second = context.second(then_ns)
    known = ~np.isnan(second)
    if context.gpus and not known.any():
        return
    context.healthy_secs += 1
    context.healthy_count = context.healthy_count + known
    weights = 1.0 / np.clip(context.healthy_count, 1.0, 60.0)
    old = np.where(np.isnan(context.healthy), 0.0, context.healthy)
    moved = old + weights * (np.where(known, second, 0.0) - old)
    context.healthy = np.where(known, moved, context.healthy)
    weight = 1.0 / min(context.healthy_secs, 60)
    for node, metrics in context.host.items():
        cpu = metrics.get("cpu_busy_ratio")
        if cpu is not None:
            before = context.healthy_cpu.get(node, cpu)
            context.healthy_cpu[node] = before + weight * (cpu - before)


def _stepped(context: JobContext, then_ns: int, now_ns: int) -> bool:
    """Whether that moment lies between two lines as far apart as usual: a save is no training.

    Where the next line is still to come, it counts as usual until it is late.
    """
    usual_ns = int(max(2.0, 1.0 + USUAL_RATIO * (context.pace_secs or 0.0)) * NS)
    times = [s.time_unix_ns for s in context.steps]
    at = bisect_right(times, then_ns)
    if at <= 2 or times[0] > then_ns - SETTLE_SECS * NS:
        return False
    until_ns = times[at] if at < len(times) else now_ns
    return until_ns - times[at - 1] < usual_ns
