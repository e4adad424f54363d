"""Why a job is slow, as its GPUs and hosts show it. Shared by the detectors of slowness.

In synchronous training every rank slows down together, so step times say nothing of the culprit;
what differs is what the GPUs do meanwhile. Against their own healthy past, waiting GPUs compute
less; the culprit computes as much or more (it is what they wait for), or stands idle where the
others spin in a collective.
"""

import numpy as np

from stethoscope.detectors.job_context import (
    CLOCK,
    ENGINE,
    LOOK_BACK_SECS,
    POWER,
    PROCESSES,
    SM,
    TENSOR,
    UTIL,
    Floats,
    Gpu,
    JobContext,
    nan_mean,
)
from stethoscope.detectors.job_health import HEALTHY_SECS
from stethoscope.schemas.findings import NS, Subject

# Peers that wait compute 1/slowdown of their healthy share, the culprit its whole share or more: so
# it stands out by the slowdown itself. Six tenths of that leave room for what else is uneven.
BUSIER_SHARE = 0.6
# An idle culprit: this much less of its time busy than its peers, each against its own past.
IDLER_SHARE = 0.3
# Without activity metrics: no GPU draws less than in health, so none waits.
SAME_DRAW = 0.95
# A clock that fell explains the slowdown if, against its peers', it fell by six tenths of it, and
# by a tenth at least: boards of one node differ by some percent under a power cap.
STEADY_CLOCK = 0.9
CPU_BUSY_RATIO = 0.85
CPU_RISE_RATIO = 0.3


def strangers(job: JobContext, now_ns: int) -> list[tuple[Gpu, int, int]]:
    """GPUs of the job with more processes than its own: (GPU, processes now, of its own)."""
    found = []
    counts = job.latest(now_ns, LOOK_BACK_SECS)[:, PROCESSES] if job.gpus else np.empty(0)
    # Each has at least its own rank: with one process (or NaN) there is nothing to look at.
    for i in np.flatnonzero(counts > 1.9).tolist():
        own = own_processes(job, i)
        if counts[i] > own + 0.9:
            found.append((job.gpus[i], round(float(counts[i])), own))
    return found


def own_processes(job: JobContext, i: int) -> int:
    """Processes that belong on GPU ``i``: its ranks, or what it had in health if that is more."""
    gpu = job.gpus[i]
    ranks = sum(1 for g in job.gpus if (g.node, g.index) == (gpu.node, gpu.index))
    healthy = job.healthy[i, PROCESSES] if job.healthy_secs >= 5 else np.nan
    return max(ranks, 0 if np.isnan(healthy) else round(float(healthy)))


def explain(job: JobContext, ratio: float, onset_ns: int, now_ns: int) -> tuple[str, Subject, str]:
    """(cause, subject, reason) of a job ``ratio`` times slower; the job if nothing stands out."""
    foreign = strangers(job, now_ns)
    if foreign:
        gpu, count, own = foreign[0]
        reason = f"{count} processes on GPU {gpu.index} of {gpu.node}, {own} of them the job's"
        return "gpu_contention", job.gpu_subject(gpu), reason
    secs = max(3, min(15, (now_ns - onset_ns) // NS))
    lately = job.window(now_ns, secs)
    starved = _starved_host(job)
    culprit = _culprit(job, ratio, lately)
    if culprit is not None and (starved is None or culprit[2]):
        return "straggler", job.gpu_subject(culprit[0]), culprit[1]
    if starved is not None:
        node, busy, before = starved
        subject = Subject(cluster=job.cluster, node=node, job_id=job.job_id)
        return (
            "host_contention",
            subject,
            f"CPUs of {node} {busy:.0%} busy, {before:.0%} in health",
        )
    return "step_time_regression", job.subject(), _nothing_stands_out(job, lately)


def _nothing_stands_out(job: JobContext, lately: Floats) -> str:
    """Said of a job that no part of it explains; idle GPUs point outside them."""
    reason = "no GPU and no host of it stands out"
    busy, before = nan_mean(lately[:, UTIL]), nan_mean(job.healthy[:, UTIL])
    if busy < before - IDLER_SHARE:
        reason += f"; its GPUs are busy {busy:.0%} of the time, {before:.0%} in health"
    return reason


def was_seen(job: JobContext, onset_ns: int, now_ns: int) -> bool:
    """Whether the job's GPUs were looked at since the onset; ``True`` if they never are."""
    if not job.gpus or np.isnan(job.healthy[:, UTIL]).all():
        return True
    telling = UTIL if np.isnan(job.healthy[:, TENSOR]).any() else TENSOR
    return not bool(np.isnan(_since(job, onset_ns, now_ns)[:, telling]).any())


def _since(job: JobContext, onset_ns: int, now_ns: int) -> Floats:
    """Means since the onset, its first second left out: half of it was healthy."""
    return job.window(now_ns, max(1, min(15, (now_ns - onset_ns) // NS - 1)))


def does_more(job: JobContext, ratio: float, onset_ns: int, now_ns: int) -> bool:
    """Whether the steps are longer because there is more to compute in each.

    Longer steps of the same size leave at least one GPU computing less a second (tensor activity
    times clock) than in health; a batch that grew unannounced leaves none.
    """
    if job.healthy_secs < HEALTHY_SECS or not job.gpus or strangers(job, now_ns):
        return False
    lately = _since(job, onset_ns, now_ns)
    if np.isnan(job.healthy[:, TENSOR]).all():
        draw = lately[:, POWER] / job.healthy[:, POWER]
        return bool((draw >= SAME_DRAW).all())
    work = lately[:, TENSOR] * lately[:, CLOCK]
    healthy = job.healthy[:, TENSOR] * job.healthy[:, CLOCK]
    if np.isnan(work).any() or not (healthy > 0).all():
        return False
    return bool((work / healthy).min() >= 1.0 - 0.5 * (1.0 - 1.0 / ratio))


def _starved_host(job: JobContext) -> tuple[str, float, float] | None:
    for node, metrics in sorted(job.host.items()):
        busy = metrics.get("cpu_busy_ratio")
        before = job.healthy_cpu.get(node)
        if busy is None or before is None:
            continue
        if busy - before >= CPU_RISE_RATIO and busy >= min(CPU_BUSY_RATIO, before + 0.5):
            return node, busy, before
    return None


def _culprit(job: JobContext, ratio: float, lately: Floats) -> tuple[Gpu, str, bool] | None:
    """(GPU, reason, sure) of the one that the others wait for."""
    if len(job.gpus) < 2 or job.healthy_secs < HEALTHY_SECS:
        return None
    return _slower_clock(job, ratio, lately) or _busier(job, ratio, lately) or _idler(job, lately)


def _slower_clock(job: JobContext, ratio: float, lately: Floats) -> tuple[Gpu, str, bool] | None:
    healthy = job.healthy[:, CLOCK]
    if not (healthy > 0.0).all() or np.isnan(lately[:, CLOCK]).any():
        return None
    relative = lately[:, CLOCK] / healthy
    low = int(relative.argmin())
    limit = min(STEADY_CLOCK, 1.0 / (1.0 + BUSIER_SHARE * (ratio - 1.0)))
    if relative[low] >= limit * float(np.delete(relative, low).min()):
        return None
    if lately[low, UTIL] < 0.5:
        return None  # it idles, and idle GPUs clock down
    reason = (
        f"SM clock of GPU {job.gpus[low].index} at {lately[low, CLOCK]:.0f} MHz"
        f" ({job.healthy[low, CLOCK]:.0f} in health)"
    )
    return job.gpus[low], reason, True


def _busier(job: JobContext, ratio: float, lately: Floats) -> tuple[Gpu, str, bool] | None:
    limit = 1.0 + BUSIER_SHARE * min(1.0, max(0.2, ratio - 1.0))
    for metric, name in ((TENSOR, "tensor cores"), (SM, "SMs"), (POWER, "power")):
        healthy = job.healthy[:, metric]
        if not (healthy > 0.02).all() or np.isnan(lately[:, metric]).any():
            continue
        if metric == POWER and not np.isnan(lately[:, TENSOR]).all():
            break  # what computes is known better
        relative = lately[:, metric] / healthy
        top = int(relative.argmax())
        others = np.delete(relative, top)
        middle = float(np.median(others))
        if middle <= 0 or relative[top] / middle < limit or relative[top] < 0.75:
            continue
        now, past = lately[top, metric], healthy[top]
        level = f"{now:.0%} active ({past:.0%} in health)"
        if metric == POWER:
            level = f"at {now:.0f} W ({past:.0f} in health)"
        reason = (
            f"{name} of GPU {job.gpus[top].index} {level}, its peers' at {middle:.0%} of their own"
            f" past"
        )
        return job.gpus[top], reason, True
    return None


def _idler(job: JobContext, lately: Floats) -> tuple[Gpu, str, bool] | None:
    engine, healthy = lately[:, ENGINE], job.healthy[:, ENGINE]
    if np.isnan(engine).any() or np.isnan(healthy).any():
        return None
    change = engine - healthy
    low = int(change.argmin())
    others = np.delete(change, low)
    if float(np.median(others)) - change[low] < IDLER_SHARE or np.delete(engine, low).min() < 0.85:
        return None
    reason = (
        f"GPU {job.gpus[low].index} is busy {engine[low]:.0%} of the time"
        f" ({healthy[low]:.0%} in health) while its peers spin and wait"
    )
    return job.gpus[low], reason, False
