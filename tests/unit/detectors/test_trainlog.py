"""Step lines of the known formats."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.detectors.trainlog import StepLine, parse_step

from .shared_lines import SharedLine, shared_lines

Expected = dict[str, float | int | None]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            " [2024-08-21 10:19:42] iteration        4/   25000 | consumed samples:         4096 |"
            " elapsed time per iteration (ms): 270125.4 | throughput per GPU (TFLOP/s/GPU): 449.6 |"
            " learning rate: 7.500000E-08 | global batch size:  1024 | lm loss: 2.120380E+00 |"
            " loss scale: 1.0 | grad norm: 14.218 | number of skipped iterations:   0 |"
            " number of nan iterations:   0 |",
            {
                "iteration": 4,
                "step_secs": 270.1254,
                "loss": 2.12038,
                "grad_norm": 14.218,
                "work": 1024.0,
                "skipped": 0,
            },
        ),
        (
            " iteration 10/ 500000 | elapsed time per iteration (ms): 13035.3 |"
            " global batch size: 1024 | loss scale: 8388608.0 |"
            " number of skipped iterations:  10 | number of nan iterations:   2 |",
            {"iteration": 10, "loss": None, "skipped": 10, "nan_iterations": 2},
        ),
        (
            "[2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4,"
            " lr=[4.9e-05, 4.9e-05], mom=[(0.9, 0.95)]",
            {"iteration": 10, "loss": None, "step_secs": None},
        ),
        (
            "{'loss': 3.5534, 'grad_norm': 1.4142, 'learning_rate': 2.0454e-06, 'epoch': 0.01}",
            {"iteration": None, "loss": 3.5534, "grad_norm": 1.4142},
        ),
        (
            "{'loss': 2.0491, 'learning_rate': 0.00019, 'epoch': 0.28}",
            {"loss": 2.0491, "grad_norm": None},
        ),
        (
            "  1%|          | 10/1752 [00:29<1:22:01,  2.83s/it]",
            {"iteration": 10, "step_secs": 2.83},
        ),
        (
            " 50%|█████     | 876/1752 [00:29<00:29,  4.00it/s]",
            {"iteration": 876, "step_secs": 0.25},
        ),
        (
            "Epoch 0:  97% 1651/1702 [13:00<00:24,  2.0it/s, loss=0.158, v_num=0]",
            {"iteration": 1651, "step_secs": 0.5, "loss": 0.158},
        ),
        (
            "Epoch 0:   6%|##  | 32040/500150 [6:28:43<94:39:17,  1.25it/s, loss=2.6, v_num=95nc,"
            " reduced_train_loss=2.590, global_step=3.2e+4, consumed_samples=2.56e+7]",
            {"iteration": 32040, "step_secs": 0.8, "loss": 2.6},
        ),
        (
            "[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm:"
            " 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%",
            {"iteration": 4, "loss": 7.62585, "grad_norm": 26.625, "step_secs": None},
        ),
        (
            "step 00004/21400 (0.02%) | loss: 8.893647 | lrm: 1.00 | dt: 989.44ms | tok/sec:"
            " 529,882 | mfu: 74.13 | total time: 0.00m",
            {"iteration": 4, "loss": 8.893647, "step_secs": 0.98944},
        ),
        ("iter 100: loss 4.2, time 45.12ms, mfu 12.3%", {"iteration": 100, "step_secs": 0.04512}),
        ("step 7: train loss 2.5, norm 1.1, dt 284.6ms, tok/sec 72", {"step_secs": 0.2846}),
        ("iteration 3/ 9 | lm loss: NAN | grad norm: inf |", {"loss": math.nan}),
        ("step=5 loss=1.5e-3 step_time=0.25 num_tokens=2,048", {"loss": 0.0015, "work": 2048.0}),
    ],
)
def test_the_formats(line: str, expected: Expected) -> None:
    step = parse_step(line)
    assert step is not None
    found = {name: getattr(step, name) for name in expected}
    assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "work"),
    [
        ("  1%|          | 10/1752 [00:29<1:22:01,  2.83s/it]", 1752.0),
        (" 40%|####      | 10/25 [00:02<00:04,  4.00it/s]", 25.0),
        ("Epoch 0:  97% 1651/1702 [13:00<00:24,  2.0it/s, loss=0.158]", None),
        ("  1%|  | 10/1752 [00:29<1:22:01,  2.83s/it] global batch size: 64 |", 64.0),
    ],
)
def test_a_bare_bar_is_known_by_its_total(line: str, work: float | None) -> None:
    step = parse_step(line)
    assert step is not None
    assert step.work == work


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Epoch [1/100] validation loss: 6.9132",
        "{'eval_loss': 1.23, 'eval_runtime': 4.5, 'epoch': 1.0}",
        "validation loss at iteration 1000 | lm loss value: 2.1E+00 | lm loss PPL: 8.2E+00",
        "saving checkpoint at iteration     500 to /ckpt",
        "resuming from step 1000, loss 2.0",
        "loaded checkpoint step 4 loss 2.0",
        '  File "train.py", line 7, in loss_step',
        "using loss scale 1.0",
        "Validation DataLoader 0:  12%|#    | 3/25 [00:00<00:05,  4.10it/s]",
        "[rank0]: Evaluating:  12%|#    | 3/25 [00:00<00:05,  4.10it/s]",
        "Sanity Checking DataLoader 0:  50%|##  | 1/2 [00:00<00:00,  4.10it/s]",
        "Traceback (most recent call last):",
    ],
)
def test_other_lines_are_no_steps(line: str) -> None:
    assert parse_step(line) is None


@pytest.mark.parametrize(
    "shared",
    shared_lines(
        "iter_megatron", "iter_hf", "iter_lightning", "iter_nemo", "iter_titan", "iter_nanochat"
    ),
)
def test_lines_that_were_reported_in_public(shared: SharedLine) -> None:
    assert isinstance(parse_step(shared.line), StepLine)


@given(st.text(max_size=300))
def test_any_text_is_read_or_left(text: str) -> None:
    step = parse_step("loss step iteration " + text)
    assert step is None or step.skipped >= 0


@given(
    st.integers(min_value=0, max_value=10**9),
    st.floats(min_value=1e-6, max_value=1e6),
    st.floats(min_value=0.1, max_value=1e7),
)
def test_numbers_come_back(iteration: int, loss: float, ms: float) -> None:
    line = f" iteration {iteration}/ 99 | elapsed time per iteration (ms): {ms:.1f} |"
    step = parse_step(f"{line} lm loss: {loss:.6E} |")
    assert step is not None
    assert step.iteration == iteration
    assert step.loss == pytest.approx(loss, rel=1e-6)
    assert step.step_secs == pytest.approx(ms / 1000, abs=1e-4)
