"""Training-log lines to numbers: step lines of the known formats, and marks that other lines set.

Pure text work. A line is a *step line* when it names an iteration and at least a loss or a time.
Formats: Megatron-LM, DeepSpeed, Hugging Face Trainer, PyTorch Lightning and tqdm bars, torchtitan,
NeMo, nanoGPT, ``key=value`` loggers. Sources: the formats' own print statements; examples stand
in ``tests/unit/detectors/test_trainlog.py``.
"""

import math
import re
from typing import NamedTuple

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_FLAGS = re.IGNORECASE

_ITERATION = re.compile(
    r"(?:\biteration\s+|\bglobal[_ ]step\W{1,4}|\bsteps?['\"]?\s*[:=\[]?\s*"
    r"|\biter['\"]?\s*[:=]?\s*)"
    r"(\d+)(?!\.\d)\b"
    r"|(?<![\d/])(\d+)/\d+\s*\[",
    _FLAGS,
)
_LOSS = re.compile(
    r"(?<![a-z_])(?:lm[ _]loss|(?:reduced_)?train(?:ing)?[_ /]loss|total_loss|loss)['\"]?"
    rf"\s*[:=]?\s*(?:tensor\()?({NUMBER})(?![\w.])",
    _FLAGS,
)
_GRAD = re.compile(
    rf"(?:grad(?:ient)?[_ ]?norm|global_grad_norm|(?<=, )norm)['\"]?\s*[:=]?\s*({NUMBER})(?![\w.])",
    _FLAGS,
)
_STEP_SECS = re.compile(
    r"(?:(?P<label>elapsed time per iteration \(ms\)|train_step_timing in s"
    r"|iter(?:ation)? time \(s\)|step[_ ]time(?:_s|_secs|_ms)?|iter[_ ]time|batch[_ ]time"
    r"|time_per_step|\bdt|\btime)['\"]?"
    rf"\s*[:=]?\s*(?P<value>{NUMBER})\s*(?P<unit>ms|s)?\b)"
    rf"|(?P<rate>\d+\.?\d*)\s*(?P<per>it/s|s/it)",
    _FLAGS,
)
_WORK = (
    re.compile(r"(?<!consumed )\b(?:num_)?tokens\s*[:=]\s*(\d[\d,]*)\b", _FLAGS),
    re.compile(r"\bglobal[ _]batch[ _]size\s*[:=]\s*(\d+)", _FLAGS),
    re.compile(r"\bseq(?:uence)?[_ ]len(?:gth)?\s*[:=]\s*(\d+)", _FLAGS),
    re.compile(r"\bbatch[ _]size\s*[:=]\s*(\d+)", _FLAGS),
)
_BAR_TOTAL = re.compile(r"(?<![\d/])\d+/(\d+)\s*\[")
_SKIPPED = re.compile(r"number of skipped iterations:\s*(\d+)", _FLAGS)
_NAN_ITERATIONS = re.compile(r"number of nan iterations:\s*(\d+)", _FLAGS)
_NOT_A_STEP = re.compile(
    r"\b(?:val(?:id(?:ation)?)?|eval(?:uation)?|test)[_ ]?(?:loss|lm loss|step|iter)|\beval_loss"
    r"|checkpoint|loaded|resum|^Traceback|\bFile \""
    r"|^(?:\[\w+\]:)?\s*(?:validati|evaluati|sanity check|testing|predict)",
    _FLAGS,
)
_QUICK = re.compile(r"loss|it/s|s/it|iteration|step", _FLAGS)


class StepLine(NamedTuple):
    """Numbers of one step line; absent is ``None``. ``work`` sizes the step (tokens, batch).

    The ``work`` of a bare progress bar is its total: a trainer's bar and its evaluation's often
    look alike but for that, and must not be compared.
    """

    iteration: int | None
    step_secs: float | None
    loss: float | None
    grad_norm: float | None
    work: float | None
    skipped: int
    nan_iterations: int


def parse_step(line: str) -> StepLine | None:
    """The step line's numbers, or ``None`` when the line is something else.

    >>> parse_step("step 7: train loss 2.5, norm 1.1, dt 284.6ms, tok/sec 72").step_secs
    0.2846
    >>> parse_step("iteration 3/ 9 | lm loss: NAN | grad norm: nan |").loss
    nan
    >>> parse_step("Epoch [1/100] validation loss: 6.9132") is None
    True
    """
    if not _QUICK.search(line) or _NOT_A_STEP.search(line):
        return None
    iteration = _ITERATION.search(line)
    loss = _number(_LOSS.search(line))
    secs = _step_secs(line)
    if loss is None and (iteration is None or (secs is None and "skipped=" not in line)):
        return None
    if iteration is None and not line.lstrip().startswith("{"):
        return None
    return StepLine(
        iteration=_whole(iteration[1] or iteration[2]) if iteration else None,
        step_secs=secs,
        loss=loss,
        grad_norm=_number(_GRAD.search(line)),
        work=_bar_total(line) if loss is None and _work(line) is None else _work(line),
        skipped=_count(_SKIPPED, line),
        nan_iterations=_count(_NAN_ITERATIONS, line),
    )


def _number(match: "re.Match[str] | None") -> float | None:
    return None if match is None else float(match[1].replace(",", ""))


def _count(pattern: "re.Pattern[str]", line: str) -> int:
    match = pattern.search(line)
    return (_whole(match[1]) or 0) if match else 0


def _whole(digits: str) -> int | None:
    """The number; ``None`` for one that 63 bits cannot hold, which no trainer counts to."""
    return int(digits) if len(digits) <= 18 else None


def _step_secs(line: str) -> float | None:
    match = _STEP_SECS.search(line)
    if match is None:
        return None
    if match["rate"]:
        rate = float(match["rate"])
        if match["per"].lower() == "s/it":
            return rate
        return 1.0 / rate if rate > 0 else None
    value = float(match["value"].replace(",", ""))
    if not math.isfinite(value):
        return None
    label = match["label"].lower()
    in_ms = match["unit"] == "ms" or "(ms)" in label or label.endswith("_ms")
    return value / 1000.0 if in_ms else value


def _bar_total(line: str) -> float | None:
    match = _BAR_TOTAL.search(line)
    return float(match[1]) if match else None


def _work(line: str) -> float | None:
    tokens, global_batch, seq_len, batch = (p.search(line) for p in _WORK)
    if tokens:
        return float(tokens[1].replace(",", ""))
    size = global_batch or batch
    if size is None and seq_len is None:
        return None
    return float(size[1] if size else 1) * float(seq_len[1] if seq_len else 1)
