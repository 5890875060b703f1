"""The ``sweep:`` section: values by dotted key, as a list or a range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias

import pydantic

__all__ = ["SweepValues", "expand_range", "points"]

MAX_VALUES: Final = 1000
NEARLY: Final = 1e-9  # of a step: a stop that rounding misses still counts


def expand_range(bounds: object) -> list[int | float]:
    """Values from start to stop, both included where the step lands on it.

    Parameters
    ----------
    bounds : object
        ``[start, stop, step]`` as written; the step may be negative.

    Raises
    ------
    ValueError
        If it is anything else, or has no value, or more than a thousand.

    Examples
    --------
    >>> expand_range([2, 8, 2]), expand_range([0.1, 0.3, 0.1])
    ([2, 4, 6, 8], [0.1, 0.2, 0.3])
    """
    if not (isinstance(bounds, list) and len(bounds) == 3 and all(map(_is_number, bounds))):
        raise ValueError(
            f"got range {str(bounds)[:60]}; needed [start, stop, step] of three numbers"
        )
    start, stop, step = bounds
    count = math.floor((stop - start) / step + NEARLY) + 1 if step else 0
    if not 1 <= count <= MAX_VALUES:
        raise ValueError(
            f"got range {bounds} with {max(count, 0)} values; needed 1 to {MAX_VALUES}, with a step "
            "that leads from start to stop"
        )
    if all(isinstance(bound, int) for bound in bounds):
        return [start + index * step for index in range(count)]
    return [float(f"{start + index * step:.12g}") for index in range(count)]


def points(sweep: Mapping[str, tuple[object, ...]]) -> Iterator[dict[str, object]]:
    """Every combination of the values, the last key changing fastest."""
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _expand(value: object) -> object:
    if isinstance(value, Mapping) and set(value) == {"range"}:
        return tuple(expand_range(value["range"]))
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_VALUES:
        got = f"a list of {len(value)}" if isinstance(value, list | tuple) else repr(value)[:60]
        raise ValueError(
            f"got {got}; needed a list of values, or a range such as {{range: [1, 8, 1]}}"
        )
    return tuple(value)


_NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
_RANGE = {"type": "object", "properties": {"range": _NUMBERS}, "required": ["range"]}

SweepValues: TypeAlias = Annotated[
    tuple[Any, ...],
    pydantic.BeforeValidator(_expand),
    pydantic.WithJsonSchema({"anyOf": [{"type": "array", "minItems": 1}, _RANGE]}),
]
