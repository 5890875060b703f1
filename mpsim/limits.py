"""Limits of what is computed unasked: a question that costs more says so first.

Whoever means it goes on: ``--yes`` on the command line, ``with mpsim.unlimited():`` in Python.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Final

from mpsim.errors import TooLargeError

MEMORY_LIMIT: Final = 2e9  # memory of one simulation [B]
TIME_LIMIT: Final = 60.0  # time of one simulation [s]
POINT_LIMIT: Final = 1_000_000  # points of one study

_UNLIMITED: contextvars.ContextVar[bool] = contextvars.ContextVar("unlimited", default=False)
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_FEW = 120  # of a unit that are still read at a glance


@contextlib.contextmanager
def unlimited() -> Iterator[None]:
    """Compute whatever is asked inside the block, however much it costs.

    Examples
    --------
    >>> import mpsim
    >>> scenario = mpsim.load("scenarios/quickstart.yaml")  # doctest: +SKIP
    >>> with mpsim.unlimited():  # doctest: +SKIP
    ...     mpsim.simulate(scenario.with_values({"training.global_batch": 8_000_000}))
    """
    token = _UNLIMITED.set(True)
    try:
        yield
    finally:
        _UNLIMITED.reset(token)


def set_unlimited(wanted: bool) -> None:
    """Compute whatever is asked from now on, or not: what ``--yes`` says."""
    _UNLIMITED.set(wanted)


def is_unlimited() -> bool:
    """Whether limits count for nothing here."""
    return _UNLIMITED.get()


def refuse_large(
    what: str,
    *,
    memory_bytes: float = 0.0,
    seconds: float = 0.0,
    points: int = 0,
    smaller: Sequence[str] = (),
) -> None:
    """Refuse a question above a limit, unless it was said that it is meant.

    `what`: the question with its size in words, such as ``gpt3: 2,500,000 microbatches, about
    40,000,000 operations``. `memory_bytes` and `seconds`: estimated cost. `points`: simulations of
    a study. `smaller`: changes that make it smaller. TooLargeError says what the question would
    cost, which limits that is above, and how to go on.
    """
    above = [
        *(["2 GB"] if memory_bytes > MEMORY_LIMIT else []),
        *(["60 s"] if seconds > TIME_LIMIT and not points else []),  # a study shows its progress
        *([f"{POINT_LIMIT:,} points"] if points > POINT_LIMIT else []),
    ]
    if not above or is_unlimited():
        return
    costs = f"about {_bytes(memory_bytes)} of memory and {rough_time(seconds)}"
    ways = f"make it smaller ({' or '.join(smaller)}), or" if smaller else "make it smaller, or"
    raise TooLargeError(
        f"{what}: would take {costs}, above the limit of {' and '.join(above)}; {ways} go on with"
        " --yes (in Python: with mpsim.unlimited())",
        memory_bytes=memory_bytes,
        seconds=seconds,
        points=points,
    )


def _bytes(amount: float) -> str:
    """A size as people say it."""
    return f"{amount / 1e9:.2g} GB" if amount >= 1e9 else f"{max(amount, 1e6) / 1e6:.0f} MB"


def rough_time(seconds: float) -> str:
    """A time as people say it.

    Examples
    --------
    >>> rough_time(90.0), rough_time(5400.0), rough_time(1e6)
    ('90 s', '90 min', '12 days')
    """
    for unit, name in ((1.0, "s"), (_MINUTE, "min"), (_HOUR, "h")):
        if seconds < _FEW * unit:
            return f"{max(seconds / unit, 1):.0f} {name}"
    return f"{seconds / _DAY:,.0f} days"
