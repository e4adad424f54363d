"""Log lines that are no step lines: what they mean for a job."""

import pytest

from stethoscope.detectors.marks import mark_of

from .shared_lines import SharedLine, shared_lines


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        (
            "[rank0]:[E321 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation"
            " timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000)",
            "nccl_timeout",
        ),
        (
            "[rank1]:[E626 x.cpp:1785] [PG ID 0 Rank 1] Exception (either an error or timeout)"
            " detected by watchdog at work: 808, last enqueued NCCL work: 811",
            "nccl_timeout",
        ),
        ("[Rank 1] Received a dump signal due to a collective timeout from rank 0", "nccl_dump"),
        ("[PG 0 Rank 144] Heartbeat monitor timed out! Process will be terminated", "nccl_stuck"),
        ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making", "nccl_stuck"),
        ("NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0", "nccl_socket"),
        ("NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "nccl_shm"),
        ("NCCL INFO Channel 03/0 : 8[0] -> 0[0] [receive] via NET/IB/1/GDRDMA", "nccl_net_ib"),
        ("NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM", "nccl_p2p"),
        ("ib.c:1 NCCL WARN NET/IB : Got completion with status=12 opcode=0", "nccl_error"),
        ("ncclRemoteError: A call failed possibly due to a network error", "nccl_error"),
        ("NCCL INFO comm 0x55d0 rank 0 nranks 2 busId 60 - Destroy COMPLETE", "nccl_destroy"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda_ecc"),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda_error"),
        ("api.py:869] failed (exitcode: -9) local_rank: 5 (pid: 2630) of binary", "worker_failed"),
        ("Root Cause (first observed failure):", "root_cause"),
        ("  rank      : 1 (local_rank: 1)", "exit_rank"),
        ("  exitcode  : -9 (pid: 14750)", "exit_code"),
        ("srun: error: node02: task 289: Bus error", "task_exit"),
        (
            "*** STEP 4.0 ON node01 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***",
            "cancelled",
        ),
        ("Exception: Current loss scale already at minimum - cannot decrease", "scaler_floor"),
        ("RuntimeError: DataLoader worker (pid 5) is killed by signal: Bus error.", "data_worker"),
        ("OSError: [Errno 28] No space left on device", "data_worker"),
        ("saving checkpoint at iteration     500 to /ckpt", "checkpoint_begin"),
        ("  successfully saved checkpoint from iteration     500 to /ckpt", "checkpoint_end"),
        ("Saving model checkpoint to /out/checkpoint-500", "checkpoint_begin"),
        ("Epoch [1/100] validation loss: 6.9132", "evaluation"),
        ("{'eval_loss': 1.23, 'eval_runtime': 4.5, 'epoch': 1.0}", "evaluation"),
        ("Validation DataLoader 0:  12%|#  | 3/25 [00:00<00:05,  4.10it/s]", "evaluation"),
        ("Traceback (most recent call last):", "traceback"),
        ("[rank0]: Traceback (most recent call last):", "traceback"),
        ("ValueError: shapes do not match", "exception"),
        ("[rank1]: my.pkg.ConfigError: no such data", "exception"),
        ("KeyboardInterrupt", "exception"),
    ],
)
def test_what_a_line_says(line: str, mark: str) -> None:
    assert mark_of(line) == mark


@pytest.mark.parametrize(
    "line",
    [
        "",
        "node01:673:673 [0] NCCL INFO Using network Socket",
        "node01:673:673 [0] NCCL INFO NET/IB : No device found.",
        "NCCL version 2.28.9+cuda13.0",
        " iteration 9/ 99 | elapsed time per iteration (ms): 5.0 | lm loss: 2.0E+00 |",
        "the user wrote an Error in a sentence: nothing happened",
        "loading data from /data/valid.bin",
        "x" * 100_000,
    ],
)
def test_lines_that_mean_nothing(line: str) -> None:
    assert mark_of(line) is None


@pytest.mark.parametrize(
    "shared",
    shared_lines("nccl_timeout", "nccl_heartbeat", "nccl_ib", "cuda_ecc", "oom", "nan")
    + shared_lines("dataloader", "torchrun"),
)
def test_lines_that_were_reported_in_public(shared: SharedLine) -> None:
    # A block of several lines reaches the pipeline line by line.
    assert any(mark_of(line) is not None for line in shared.line.split("\n"))
