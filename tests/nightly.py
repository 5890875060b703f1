"""Values of a test that CI runs a few of, and `ci/optional nightly` all of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
NIGHTLY = os.environ.get("MPSIM_NIGHTLY") == "1"
"""Whether every value is run."""


def some(values: Iterable[T], count: int) -> list[object]:
    """All values, those between `count` evenly spread ones marked `nightly`."""
    listed: Sequence[T] = list(values)
    spread = {place * len(listed) // count for place in range(count)}
    return [value if place in spread else _at_night(value) for place, value in enumerate(listed)]


def _at_night(value: object) -> object:
    """A value, or several of one test in a tuple, marked; a value that has an id keeps it."""
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, marks=pytest.mark.nightly, id=value.id)
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=pytest.mark.nightly)


def examples(usual: int, nightly: int) -> int:
    """Random examples of a law: the larger number at night."""
    return nightly if NIGHTLY else usual
