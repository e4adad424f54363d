"""Which cause explains which symptom. Written out; what stands here decides who is the root."""

# What a fault of hardware, fabric or node does to the jobs that run on it.
JOB_SYMPTOMS = frozenset(
    {
        "job_hang",
        "nccl_timeout",
        "rank_lost",
        "job_failed",
        "app_error",
        "straggler",
        "step_time_regression",
        "throughput_drop",
        "mfu_drop",
        "data_stall",
        "gpu_slow",
        "checkpoint_stale",
    }
)
SLOW_SYMPTOMS = frozenset(
    {"step_time_regression", "throughput_drop", "mfu_drop", "data_stall", "straggler", "gpu_slow"}
)
END_SYMPTOMS = frozenset({"nccl_timeout", "job_hang", "rank_lost", "job_failed", "app_error"})
# Reasons of slowness that stand by themselves: another one soon after is another fault.
SETTLED_SLOW = frozenset({"straggler", "data_stall", "gpu_contention", "host_contention"})
VAGUE_SLOW = SLOW_SYMPTOMS - {"straggler"}

EXPLAINS: dict[str, frozenset[str]] = {
    "gpu_lost": JOB_SYMPTOMS | {"gpu_xid", "nvlink_error", "pcie_degraded"},
    "gpu_xid": JOB_SYMPTOMS,
    "gpu_ecc_uncorrectable": JOB_SYMPTOMS | {"gpu_xid", "gpu_row_remap_pending"},
    "gpu_row_remap_failure": JOB_SYMPTOMS | {"gpu_xid"},
    "nvswitch_error": JOB_SYMPTOMS | {"nvlink_error", "gpu_xid"},
    "nvlink_error": JOB_SYMPTOMS | {"gpu_xid"},
    "pcie_degraded": SLOW_SYMPTOMS,
    "gpu_overheating": SLOW_SYMPTOMS | {"gpu_throttled"},
    "gpu_throttled": SLOW_SYMPTOMS,
    "ib_port_down": JOB_SYMPTOMS,
    "switch_down": JOB_SYMPTOMS | {"ib_port_down"},
    "node_down": JOB_SYMPTOMS | {"agent_silent"},
    "agent_silent": JOB_SYMPTOMS,  # a node that is gone takes its ranks along
    "host_oom": JOB_SYMPTOMS,
    "gpu_contention": SLOW_SYMPTOMS,
    "host_contention": VAGUE_SLOW,
    "nccl_wrong_path": SLOW_SYMPTOMS | {"benchmark_regression"},
    "straggler": VAGUE_SLOW,
    "data_stall": frozenset({"step_time_regression", "throughput_drop", "mfu_drop"}),
    "cuda_oom": END_SYMPTOMS,
    "loss_nan": frozenset({"loss_spike", "grad_explosion", "job_failed", "app_error"}),
    "loss_spike": frozenset({"grad_explosion"}),
    "rank_lost": END_SYMPTOMS,
    "job_hang": END_SYMPTOMS,
    "nccl_timeout": END_SYMPTOMS,
    "app_error": frozenset({"job_failed", "rank_lost", "nccl_timeout"}),
}

# Roots by nature: nothing deeper is worth waiting for.
AT_ONCE = frozenset({"gpu_lost", "gpu_ecc_uncorrectable", "gpu_row_remap_failure"})

# What a job's orderly end may leave behind.
TEARDOWN = END_SYMPTOMS | {"data_stall", "step_time_regression", "straggler"}

# How sure the cause is by itself: a driver's word or a line that names it, against an inference.
CONFIDENCE: dict[str, float] = {
    "straggler": 0.8,
    "gpu_slow": 0.7,
    "data_stall": 0.75,
    "host_contention": 0.75,
    "step_time_regression": 0.6,
    "throughput_drop": 0.6,
    "job_hang": 0.85,
    "loss_spike": 0.8,
    "grad_explosion": 0.7,
    "job_failed": 0.6,
    "agent_silent": 0.7,
}
SURE = 0.95


def explains(cause: str, symptom: str) -> bool:
    """Whether ``cause`` may be why ``symptom`` is seen."""
    return symptom in EXPLAINS.get(cause, frozenset())
