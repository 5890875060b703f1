"""Figures of results in words: what each is called, and how people write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mpsim.shipped import read_shipped
from mpsim.units import Dimension, format_quantity, percent, price

_SHARE, _COUNT, _PRICE = "share", "count", "USD"
_USUAL: Final = 4  # digits of a figure; counts have another


def _figures(job: str) -> dict[str, tuple[str, str | Dimension]]:
    """Words and kind of what is compared of a job, by the name of the figure."""
    rows = read_shipped("mpsim.study.data", "columns.yaml")[job].items()
    own = (_SHARE, _COUNT, _PRICE)
    return {name: (words, kind if kind in own else Dimension(kind)) for name, (words, kind) in rows}


FIGURES, SERVICE_FIGURES, PLAN_FIGURES = map(_figures, ("steps", "services", "plans"))
_KNOWN: Final = {**FIGURES, **SERVICE_FIGURES, **PLAN_FIGURES}


def title_of(name: str) -> str:
    """A figure in words; parts of a step have none but their name."""
    return _KNOWN[name][0] if name in _KNOWN else name.replace("_", " ")


def unit_of(name: str) -> str:
    """Unit of a figure: SI, ``share``, ``USD``, ``count`` of things, ``1`` of a number."""
    kind = _KNOWN[name][1]
    if isinstance(kind, Dimension):
        return kind.value
    return "1" if kind == _COUNT and name != "accelerators" else kind


def figure_text(name: str, value: float | None, *, signed: bool = False, digits: int = 4) -> str:
    """A figure as people write it; parts are times. Differences are `signed`, shares in points."""
    if value is None:
        return "-"
    kind = _KNOWN[name][1] if name in _KNOWN else Dimension.TIME
    sign = "+" if signed and value > 0 else ""
    if kind == _SHARE:
        return f"{100 * value:+.1f} points" if signed else percent(value)
    if isinstance(kind, Dimension):
        return format_quantity(value, kind, digits=digits, signed=signed)
    if kind == _PRICE:
        return f"{sign}{price(value)}"
    if value == int(value) or abs(value) >= 10 ** (digits if digits < _USUAL else 4):
        return f"{sign}{value:,.0f}"
    return f"{sign}{value:,.{digits + 1}g}"


def part_text(seconds: float | None) -> str:
    """Seconds as people write them."""
    return "?" if seconds is None else format_quantity(seconds, Dimension.TIME)


def share_text(value: float | None) -> str:
    """A relative difference."""
    return "-" if value is None else percent(value, signed=True)


def worded(value: object) -> str:
    """A value of a setting; null leaves it to its default."""
    return "default" if value is None else str(value)


def warned(warnings: Mapping[str, object]) -> tuple[str, ...]:
    """Warnings of several results, each once with the names that it is of, unless of all.

    Examples
    --------
    >>> warned({"A": ["hot", "late"], "B": ["hot"]})
    ('warning: hot', 'warning (A): late')
    """
    of: dict[str, list[str]] = {}
    for name, each in warnings.items():
        for warning in each if isinstance(each, list | tuple) else ():
            of.setdefault(str(warning), []).append(name)
    return tuple(
        f"warning: {text}"
        if len(names) == len(warnings)
        else f"warning ({', '.join(names)}): {text}"
        for text, names in of.items()
    )
