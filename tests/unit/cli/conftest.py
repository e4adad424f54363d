"""Running the ``stethoscope`` command inside the tests' process."""

import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest

from stethoscope.cli import main

Run: TypeAlias = Callable[..., "Answer"]


class Answer:
    """What the command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def one_line(self) -> str:
        """The error, which must be one line."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("stethoscope: ")
        return self.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["stethoscope", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call
