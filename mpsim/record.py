"""Records: JSON objects of somebody's file, whose values are read as what they have to be."""

from __future__ import annotations

import sys
from typing import Final, TypeVar

from mpsim.errors import MpsimError
from mpsim.inputs import shown

MOST: Final = 1 << 63
"""Bound of whole numbers in files: what is larger is damage, and fits no array."""
T = TypeVar("T")


class Record:
    """One object of a file; a value of another type than asked for is one error with its place,
    never a slip further on.

    Every method takes a key, and what to give where the key is absent; without that an absent key
    is an error too. `data`: what should be an object. `place`: where it stands, such as
    ``trace.json: results.3``. `error`: class of every error.

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
        if not isinstance(data, dict):
            raise error(f"{place}: got {shown(data)}; needed an object")
        self._data: dict[str, object] = data

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

    def _read(self, key: str, kind: type[T], default: T | None, needed: str) -> T:
        """Value of a key, which has to be of a kind, or the default."""
        value = self._data.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(key, needed)
        return value

    def whole(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = MOST
    ) -> int:
        """Whole number within its bounds."""
        needed = f"a whole number of {least} to {most}" if most < MOST else "a whole number"
        whole = self._read(key, int, default, needed)
        if key in self and not least <= whole <= most:
            raise self.wrong(key, needed)
        return whole

    def number(self, key: str) -> float:
        """Finite number."""
        value = self._data.get(key)
        kind = int if isinstance(value, int) else float
        number = self._read(key, kind, None, "a finite number")
        if not -sys.float_info.max <= number <= sys.float_info.max:
            raise self.wrong(key, "a finite number")
        return float(number)

    def text(self, key: str, default: str | None = None) -> str:
        """Text."""
        return self._read(key, str, default, "a text")

    def record(self, key: str, default: dict[str, object] | None = None) -> Record:
        """Object."""
        value = self._read(key, dict, default, "an object")
        return Record(value, f"{self.place}: {key}", error=self._error)

    def items(self, key: str, default: list[object] | None = None) -> list[object]:
        """List of anything."""
        return self._read(key, list, default, "a list")

    def records(self, key: str, default: list[object] | None = None) -> list[Record]:
        """List of objects."""
        return [
            Record(item, f"{self.place}: {key}.{index}", error=self._error)
            for index, item in enumerate(self.items(key, default))
        ]

    def wholes(self, key: str, default: list[object] | None = None) -> tuple[int, ...]:
        """List of whole numbers."""
        wholes: list[int] = []
        for value in self.items(key, default):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
                raise self._error(f"{self.place}: {key} holds {shown(value)}; needed whole numbers")
            wholes.append(value)
        return tuple(wholes)
