import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.train_rules import RULES, rule_of, user_rules
from stethoscope.detectors.marks import mark_of
from stethoscope.detectors.trainlog import parse_step
from stethoscope.schemas.agent_config import LineRule
from stethoscope.schemas.errors import ConfigError

SHARED = Path(__file__).parents[4] / "shared"
FILE = "/ckpt/step_100/mp_rank_00_model_states.pt"

# Every rule has lines that it reads, and lines that look like it and are for no rule.
READ = {
    "megatron": [
        " [2026-11-29 18:03:07.762982] iteration        1/   50000 | consumed samples: 16 |",
        "iteration 5/ 9 | lm loss: NAN | grad norm: nan | number of nan iterations: 1 |",
    ],
    "traceback": ["Traceback (most recent call last):", "The above exception was the direct cause"],
    "nccl_warn": [
        "node01:983:1261 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer",
        "ncclRemoteError: A call failed possibly due to a network error",
        "socketProgress: Connection closed by remote peer node02<59116>",
    ],
    "nccl_info": [
        "node01:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0",
        "node01:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "node01:1:1 [0] NCCL INFO Using network Socket",
        "node01:1:1 [0] NCCL INFO NET/IB : No device found.",
        "node01:1:1 [0] NCCL INFO comm 0x1bf rank 0 nranks 2 cudaDev 0 busId 60 - Destroy COMPLETE",
    ],
    "nccl_version": ["NCCL version 2.28.9+cuda13.0"],
    "pytorch_watchdog": [
        "[rank0]:[E1129 16:08:25.70 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective",
        "Observed flight recorder dump signal from another rank via TCPStore.",
    ],
    "cuda_error": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB.",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    ],
    "elastic": [
        "E1129 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -9)",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 1279)",
        "Root Cause (first observed failure):",
        "/workspace/train.py FAILED",
    ],
    "signal": [
        "Fatal Python error: Segmentation fault",
        "terminate called after throwing",
        "Killed",
    ],
    "slurm_step": [
        "slurmstepd: error: *** STEP 4.0 ON node01 CANCELLED AT 2024-04-20T09:09:37 ***",
        "srun: error: node02: task 289: Exited with exit code 1",
    ],
    "exception": ["ValueError: bad batch", "KeyError: 'x'", "2026-01-01 00:00:00 | ERROR | main"],
    "not_a_number": [
        "Rank 11: found NaN in local grad norm in backward pass",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536",
    ],
    "input_output": ["OSError: [Errno 28] No space left on device", "connection reset by peer"],
    "validation": [
        "Epoch [1/100] validation loss: 6.9132",
        "{'eval_loss': 2.0491, 'eval_runtime': 7.1}",
        " validation loss at iteration 1000 | lm loss value: 2.5",
    ],
    "checkpoint": [
        "  successfully saved checkpoint from iteration 1 to ./ckpt/",
        "saving checkpoint at iteration 500 to /ckpt",
        f"[Torch] Saving {FILE}...",
        "Resuming from checkpoint /ckpt/global_step500",
    ],
    "deepspeed": [
        "[logging.py:96:log_dist] [Rank 0] step=10, skipped=4, lr=[4.9e-05], mom=[(0.9, 0.95)]",
        "[timer.py:157:stop] 0/10, SamplesPerSec=1.8825260836384787",
    ],
    "hf_trainer": ["{'loss': 3.5534, 'grad_norm': 1.41, 'learning_rate': 2.0e-06, 'epoch': 0.01}"],
    "progress_bar": [
        "  1%|          | 10/1752 [00:29<1:22:01,  2.83s/it]",
        "Epoch 0:  97% 1651/1702 [13:00<00:24,  2.11it/s, loss=0.158, v_num=0]",
    ],
    "step": [
        "[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  tps: 10,050",
        "step 1: train loss 9.8514, norm 1.4714, dt 28430.64ms, tok/sec 72",
        "2026-11-29 17:58:07 | INFO | train | step=1080 seq_len=1024 loss=4.1388 step_time=0.04s",
        "loss=2.1 global_step=77",
    ],
    "epoch": ["Epoch 12 finished", "epoch: 3"],
    "straggler": ["[default0]:    Min: 9.17ms, Max: 10.12ms, Avg: 9.55ms, Slowdown: 1.10x"],
    "lifecycle": ["Training completed in 3 h", "starting training", "world_size=16"],
}
UNREAD = [
    "",
    "node01:1:1 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1",
    "node01:1:1 [0] NCCL INFO Tree 15 : 0 -> 1 -> -1/-1/-1",
    "node01:1:1 [0] NCCL INFO Connected to proxy localRank 0 -> connection 0x7fe32c0050d8",
    "Downloading: 45%|####      | 4/9 [00:10<00:12,  2.0it/s]",
    "Map: 100%|##########| 9/9 [00:10<00:00,  2.0it/s]",
    "a stepwise approach to the problem",
    "it is a lossless transfer",
    "config: {'lr': 1, 'batch': 4}",
    "the user typed a nanometer",
    "seed 42",
    "warming up the kernels",
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
]


def test_every_rule_has_examples() -> None:
    assert [rule.name for rule in RULES] == list(READ)


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, lines in READ.items() for line in lines]
)
def test_rules_read_their_lines(name: str, line: str) -> None:
    rule = rule_of(line)
    assert rule is not None
    assert name in {rule.name, *(r.name for r in RULES if r.reads(line, line.lower()))}


@pytest.mark.parametrize("line", UNREAD)
def test_other_lines_stay_here(line: str) -> None:
    rule = rule_of(line)
    assert rule is None, rule


def test_clues_admit_all_that_the_pattern_reads() -> None:
    for rule in RULES:
        for line in READ[rule.name]:
            if rule.pattern.search(line):
                assert any(clue in line.lower() for clue in rule.clues), (rule.name, line)


def test_whatever_a_detector_reads_in_the_recordings_goes_out() -> None:
    logs = list((SHARED / "traces").glob("*/*.log"))
    if not logs:
        pytest.skip("the recordings are not here")
    for log in logs:
        for line in log.read_text(errors="replace").splitlines():
            if parse_step(line) or mark_of(line):
                assert rule_of(line) is not None, line


def test_whatever_a_detector_reads_in_the_collection_goes_out() -> None:
    path = SHARED / "data" / "log_lines.jsonl"
    if not path.exists():
        pytest.skip("the collection of log lines is not here")
    for text in path.read_text().splitlines():
        line = json.loads(text)["line"]
        if parse_step(line) or mark_of(line):
            assert rule_of(line) is not None, line


def test_a_users_rule_is_asked_first() -> None:
    rules = (*user_rules([LineRule(name="mine", pattern=r"reward \d+")]), *RULES)
    mine, other = rule_of("reward 7", rules), rule_of("iteration 5/9", rules)
    assert mine is not None
    assert other is not None
    assert (mine.name, mine.category, other.name) == ("mine", "user", "megatron")


def test_a_users_rule_that_is_none_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"train_log.rules: '\(' is no regular expression"):
        user_rules([LineRule(name="x", pattern="(")])


@given(st.text(max_size=300))
def test_any_line_is_for_a_rule_or_none(line: str) -> None:
    rule = rule_of(line)
    assert rule is None or rule in RULES
