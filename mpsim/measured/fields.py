"""Fields of a JSON object read strictly: every one there, none unknown, each of its type."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpsim.errors import CalibrationError, nearest

__all__ = ["FieldReader"]


class FieldReader:
    """A JSON object whose keys are the fields of a dataclass.

    Parameters
    ----------
    data : mapping
        As parsed.
    kind : type
        The dataclass; a field with a default may be left out.

    Raises
    ------
    CalibrationError
        If a field is missing or unknown.
    """

    def __init__(self, data: Mapping[str, Any], kind: type) -> None:
        fields = {one.name: one for one in dataclasses.fields(kind)}
        for key in data:
            if key not in fields:
                raise CalibrationError(f"unknown field {key!r}; {nearest(key, fields)}")
        self.data = dict(data)
        for name, field in fields.items():
            if name not in data:
                if field.default is dataclasses.MISSING:
                    raise CalibrationError(f"field {name!r} is missing")
                self.data[name] = field.default

    def text(self, name: str) -> str:
        """A string."""
        return str(self._typed(name, self.data[name], str, "a string"))

    def texts(self, name: str) -> Sequence[str]:
        """A list of strings."""
        return [str(self._typed(name, one, str, "strings")) for one in self._items(name)]

    def word(self, name: str, known: Sequence[str]) -> str:
        """One of the `known` strings."""
        word = self.text(name)
        if word not in known:
            raise CalibrationError(f"{name!r} is {word!r}; {nearest(word, known)}")
        return word

    def switch(self, name: str) -> bool:
        """True or false."""
        return bool(self._typed(name, self.data[name], bool, "true or false"))

    def count(self, name: str, *, least: int = 0) -> int:
        """A whole number, at least `least`."""
        return self._count(name, self.data[name], least)

    def counts(self, name: str) -> Sequence[int]:
        """A list of whole numbers."""
        return [self._count(name, one, 0) for one in self._items(name)]

    def number(self, name: str) -> float:
        """A finite number, not negative."""
        return self._number(name, self.data[name])

    def numbers(self, name: str) -> Sequence[float]:
        """A list of finite numbers, none negative."""
        return [self._number(name, one) for one in self._items(name)]

    def rows(self, name: str) -> Sequence[Sequence[float]]:
        """A list of lists of finite numbers, none negative."""
        rows = [self._typed(name, one, list, "lists of numbers") for one in self._items(name)]
        return [[self._number(name, one) for one in row] for row in rows]

    def sizes(self, name: str) -> Mapping[str, int]:
        """An object of whole numbers."""
        return {
            key: self._count(f"{name}.{key}", one, 0) for key, one in self._object(name).items()
        }

    def words(self, name: str) -> Mapping[str, str | int | float | bool]:
        """An object of strings, numbers and switches."""
        found = self._object(name)
        for key, one in found.items():
            if not isinstance(one, str | int | float | bool):
                raise CalibrationError(f"'{name}.{key}' is {_kind(one)}; needed a plain value")
        return found

    def objects(self, name: str, kind: type) -> Iterator[FieldReader]:
        """A list of objects with the fields of `kind`."""
        for one in self._items(name):
            yield FieldReader(self._typed(name, one, dict, "objects"), kind)

    def optional_object(self, name: str, kind: type) -> FieldReader | None:
        """An object with the fields of `kind`, or None where there is none."""
        return None if self.data[name] is None else FieldReader(self._object(name), kind)

    def _items(self, name: str) -> list[Any]:
        return list(self._typed(name, self.data[name], list, "a list"))

    def _object(self, name: str) -> dict[str, Any]:
        return dict(self._typed(name, self.data[name], dict, "an object"))

    @staticmethod
    def _typed(name: str, value: Any, kind: type, needed: str) -> Any:
        if not isinstance(value, kind):
            raise CalibrationError(f"{name!r} holds {_kind(value)}; needed {needed}")
        return value

    @staticmethod
    def _count(name: str, value: object, least: int) -> int:
        if type(value) is not int or value < least:
            raise CalibrationError(f"{name!r} is {value!r}; needed a whole number from {least}")
        return value

    @staticmethod
    def _number(name: str, value: object) -> float:
        if type(value) not in (int, float):
            raise CalibrationError(f"{name!r} holds {_kind(value)}; needed a number")
        number = float(value)  # type: ignore[arg-type]
        if not math.isfinite(number) or number < 0:
            raise CalibrationError(f"{name!r} is {number}; needed a finite number, not negative")
        return number


def _kind(value: object) -> str:
    words = {
        type(None): "null",
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a switch",
    }
    return words.get(type(value), type(value).__name__)
