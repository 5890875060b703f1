"""Records: JSON objects of somebody's file, whose values are read as what they have to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from mpsim.errors import MpsimError
from mpsim.inputs import shown

__all__ = ["MOST", "Record"]

MOST: Final = 1 << 63
"""Bound of whole numbers in files: what is larger is damage, and fits no array."""
_ABSENT: Final[Any] = object()


class Record:
    """One object of a file; a value of another type than asked for is one error with its place, never a slip further on.

    Every method takes a key, and what to give where the key is absent; without that an absent key is an error too.

    Parameters
    ----------
    data : object
        What should be an object.
    place : str
        Where it stands, such as ``trace.json: results.3``.
    error : type of MpsimError
        Class of every error.

    Examples
    --------
    >>> from mpsim.errors import FormatError
    >>> row = Record({"size": 8, "time": "fast"}, "a.json: results.0", error=FormatError)
    >>> row.whole("size"), row.whole("count", 1)
    (8, 1)
    >>> row.number("time")
    Traceback (most recent call last):
    mpsim.errors.FormatError: a.json: results.0: time is 'fast'; needed a finite number
    """

    __slots__ = ("_data", "_error", "place")

    def __init__(self, data: object, place: str, *, error: type[MpsimError]) -> None:
        self.place, self._error = place, error
        if not isinstance(data, Mapping):
            raise error(f"{place}: got {shown(data)}; needed an object")
        self._data: Mapping[str, Any] = data

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def __len__(self) -> int:
        return len(self._data)

    def wrong(self, key: str, needed: str) -> MpsimError:
        """The error of a value that is not what is needed."""
        if key not in self._data:
            return self._error(f"{self.place}: {key} is missing; needed {needed}")
        return self._error(f"{self.place}: {key} is {shown(self._data[key])}; needed {needed}")

    def value(self, key: str) -> object:
        """Value as it is; None where it is absent."""
        return self._data.get(key)

    def _read(
        self, key: str, default: Any, needed: str, fits: Callable[[Any], bool] = lambda _: True
    ) -> Any:
        """Value of a key that fits, or the default."""
        value = self._data.get(key)
        if value is None and default is not _ABSENT:
            return default
        if value is None or not (value is default or fits(value)):
            raise self.wrong(key, needed)
        return value

    def whole(self, key: str, default: Any = _ABSENT, *, least: int = 0, most: int = MOST) -> int:
        """Whole number within its bounds."""
        needed = f"a whole number of {least} to {most}" if most < MOST else "a whole number"
        whole: int = self._read(key, default, needed, lambda value: _is_whole(value, least, most))
        return whole

    def number(self, key: str, default: Any = _ABSENT, *, least: float = -math.inf) -> float:
        """Finite number of at least `least`."""
        needed = "a finite number" + (f" of {least:g} or more" if least > -math.inf else "")
        value = self._read(key, default, needed, lambda value: _is_finite(value) and value >= least)
        number: float = value if value is default else float(value)
        return number

    def text(self, key: str, default: Any = _ABSENT) -> str:
        """Text."""
        text: str = self._read(key, default, "a text", lambda value: isinstance(value, str))
        return text

    def record(self, key: str, default: Any = _ABSENT) -> Record:
        """Object."""
        value = self._read(key, default, "an object", lambda value: isinstance(value, Mapping))
        return Record(value, f"{self.place}: {key}", error=self._error)

    def items(self, key: str, default: Any = _ABSENT) -> list[Any]:
        """List of anything."""
        return list(self._read(key, default, "a list", lambda value: isinstance(value, list)))

    def records(self, key: str, default: Any = _ABSENT) -> list[Record]:
        """List of objects."""
        return [
            Record(item, f"{self.place}: {key}.{index}", error=self._error)
            for index, item in enumerate(self.items(key, default))
        ]

    def wholes(self, key: str, default: Any = _ABSENT, *, least: int = 0) -> tuple[int, ...]:
        """List of whole numbers."""
        values = self.items(key, default)
        for value in values:
            if not _is_whole(value, least, MOST):
                raise self._error(f"{self.place}: {key} holds {shown(value)}; needed whole numbers")
        return tuple(values)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_finite(value: object) -> bool:
    try:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(cast(float, value))
    except OverflowError:  # an integer beyond all floats
        return False
