"""Sums of numbers: the same bytes from Python 3.11 to 3.13, though `sum` adds floats in another way since 3.12."""

from __future__ import annotations

import builtins
import functools
import math
import operator
import sys
from pathlib import Path

import pytest

import mpsim
from mpsim.cli import main
from tests.cli.test_intervals import COMMANDS, tables

__all__ = ["tables"]  # which commands read, made by its fixture

HERE = str(Path(mpsim.__file__).parent)
NAMES = ("run quickstart", "run gpt3-175b-a100", "run mixtral-8x7b-h100", "run deepseek-v3-disaggregated", "run llama3-70b-h100")  # fmt: skip
NAMES += ("compare", "search", "search services", "plan", "scale", "goodput 20", "validate")
NUMBERS = {int, float, bool}


def rounded(items: list[object]) -> bool:
    """Whether numbers added one after the other are not their exact sum, as `math.fsum` gives it."""
    if not {float} <= set(map(type, items)) <= NUMBERS:
        return False
    return bool(functools.reduce(operator.add, items) != math.fsum(items))


@pytest.mark.parametrize("name", NAMES)
def test_no_figure_is_a_rounded_sum_of_floats(name, monkeypatch, capsys):
    """Each `sum` of the package that a command calls is exact for what it is given, or is `math.fsum`."""
    own, places = builtins.sum, set()

    def watched(iterable, /, start=0):
        items = list(iterable)
        caller = sys._getframe(1)
        if caller.f_code.co_filename.startswith(HERE) and rounded([start, *items]):
            places.add(f"{caller.f_code.co_filename.removeprefix(HERE)}:{caller.f_lineno}")
        return own(items, start)

    monkeypatch.setattr(builtins, "sum", watched)
    code = main(list(map(str, COMMANDS[name])))
    monkeypatch.undo()
    capsys.readouterr()
    assert (code, sorted(places)) == (0, [])
