"""Ledger: what becomes of every key of a configuration, each in exactly one list.

A reader takes the keys of a file out of it, says which key of the scenario each became, and closes
it: the rest is ignored. Values of unmapped keys are never kept: files hold paths and tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from mpsim import structs
from mpsim.errors import FormatError
from mpsim.formats.imported import Assumed, Imported, Mapped
from mpsim.formats.words import keys, keys_to
from mpsim.inputs import shown

MOST_LAYERS: Final = 4096
"""Layers, stages and experts that a configuration may state: no model has so many."""

_NEEDED = ("model", "cluster", "training.global_batch", "training.sequence_length")
_OFF: Final = (None, False, 0, "", "0", "none", "None", "false", "False", "off")
_UNSET: Final = (None, False, "False", "false", "None", "none", "null")


class Ledger:
    """Keys of one configuration file, and what became of them.

    `file`: path as the user gave it; only its name enters what is written. `values`: value of every
    key, nested ones dotted. `lines`: line of each key, where it is known.

    Examples
    --------
    >>> ledger = Ledger("config.json", {"hidden_size": 64, "use_cache": True}, {"hidden_size": 3})
    >>> ledger.put("hidden_size", "model.hidden", 64)
    >>> ledger.close("hf").lines, ledger.close("hf").ignored
    ({'model.hidden': 'config.json:3 hidden_size'}, ('use_cache',))
    """

    def __init__(
        self, file: str, values: Mapping[str, object], lines: Mapping[str, int] | None = None
    ) -> None:
        self.file = file
        self.values = values
        self.scenario: dict[str, object] = {}
        self.warnings: list[str] = []
        self.model_parameters: int | None = None
        self.served: dict[str, tuple[object, str]] = {}
        self._lines = lines or {}
        self._origin: dict[str, str] = {}
        self._mapped: dict[tuple[str, str], Mapped] = {}
        self._assumed: dict[str, Assumed] = {}
        self._missing: dict[str, None] = {}
        self._refused: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str, default: object = None) -> Any:
        """Value of a key of the file, which decides nothing about what becomes of it."""
        return self.values.get(key, default)

    def put(self, source: str | Iterable[str], to: str, value: object) -> None:
        """Give a key of the scenario a value that one or several keys of the file state.

        `source`: keys of the file; those that it does not have are left out. `to`: dotted key of
        the scenario.
        """
        keys = [key for key in ((source,) if isinstance(source, str) else source) if key in self]
        self.scenario[to] = value
        self._assumed.pop(to, None)
        first, *others = keys or [""]
        self._origin[to] = ", ".join([self.place(first), *others]) if first else ""
        for key in keys:
            self._mapped[key, to] = Mapped(key, to, value)

    def assume(self, to: str, value: object, why: str) -> None:
        """Give a key of the scenario a value that the file does not state."""
        self.scenario[to] = value
        self._assumed[to] = Assumed(to, value, why)
        self._origin[to] = "assumed"

    def note(self, to: str, why: str, value: object = "") -> None:
        """Say what was taken for granted about something that is no value of the scenario."""
        self._assumed[to] = Assumed(to, value, why)

    def drop(self, to: str) -> None:
        """Take back a value that something else says better; its keys of the file stay mapped."""
        self.scenario.pop(to, None)
        self._assumed.pop(to, None)

    def warn(self, text: str) -> None:
        """Tell the user something that moves time or memory; once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def ask(self, to: str) -> None:
        """Say that the scenario needs a key that the file leaves open."""
        self._missing[to] = None

    def refuse(self, why: str) -> None:
        """Say what cannot be simulated; the file is refused when the ledger is closed."""
        if why not in self._refused:
            self._refused.append(why)

    def place(self, key: str) -> str:
        """Where a key stands, such as ``config.json:12 hidden_size``."""
        line = self._lines.get(key, 0)
        return f"{Path(self.file).name}:{line} {key}" if line else f"{Path(self.file).name} {key}"

    def integer(
        self, key: str, *, least: int = 0, most: int = 10**15, value: object = None
    ) -> int | None:
        """A whole number of the file; None where the key is absent or null, and refused by name
        where it is none. `value`: what it says, where the file has it otherwise.
        """
        value = self.get(key) if value is None else value
        if value is None:
            return None
        number = _whole(value)
        if number is None or not least <= number <= most:
            needed = f"needed a whole number of at least {least}"
            needed += f" and at most {most}" if number is not None and number > most else ""
            self.refuse(f"{self.place(key)}: got {shown(value)}; {needed}")
            return None
        return number

    def switch(self, key: str) -> bool | None:
        """A truth value of the file, as a string too; None where it is absent or null."""
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word in ("true", "1", "yes", "on"):
            return True
        if word in ("false", "0", "no", "off"):
            return False
        self.refuse(f"{self.place(key)}: got {shown(value)}; needed true or false")
        return None

    def close(
        self,
        format: str,  # noqa: A002 - the word of the command line
        *,
        tool: str = "",
        version: str = "",
        moves: Callable[[str], object] = lambda _: False,
        idle: str = "",
    ) -> Imported:
        """The file, with every key's fate; FormatError: refusals. `idle`: `key` or `key=value`."""
        if self._refused:
            raise FormatError(
                "\n".join(
                    why if why.startswith(Path(self.file).name) else f"{self.file}: {why}"
                    for why in self._refused
                )
            )
        taken = {key for key, _ in self._mapped}
        left = [key for key in self.values if key not in taken]
        stated = [key for key in left if self.get(key) not in _OFF]
        # a key that no pattern calls idle is told, so one of next year is too
        judged = re.compile(f"({'|'.join(idle.split())})(=.*)?", re.DOTALL).fullmatch
        told = {key for key in stated if idle and not judged(f"{key}={self.get(key)}")}
        felt = [key for key in stated if key in told or moves(key)]
        if felt:
            named = ", ".join(felt[:20]) + (", ..." if len(felt) > 20 else "")
            self.warn(f"not simulated, though time or memory may depend on it: {named}")
        serves = any(to.startswith("serving.") for to in self.scenario)
        for key in _NEEDED[:2] if serves else _NEEDED:
            below = any(to == key or to.startswith(f"{key}.") for to in self.scenario)
            if not below and not any(missing.startswith(key) for missing in self._missing):
                self._missing[key] = None
        return Imported(
            scenario=nested(self.scenario),
            assumed=tuple(self._assumed.values()),
            ignored=tuple(left),
            lines={to: place for to, place in self._origin.items() if to in self.scenario},
            format=format,
            tool=tool,
            version=version,
            files=(self.file,),
            mapped=tuple(self._mapped.values()),
            missing=tuple(self._missing),
            warnings=tuple(self.warnings),
            served=self.served,
            model_parameters=self.model_parameters,
        )


@structs.dataclass(slots=True)
class Settings:
    """Settings of a configuration by one name each, and the ledger they go into."""

    table: ClassVar[str]
    usual: ClassVar[str]
    ledger: Ledger
    keys: Mapping[str, str]  # key of the file that states each setting
    values: Mapping[str, Any]  # what each says: a switch true or false, text, or a list

    def stated(self, *names: str) -> list[str]:
        """Settings that have a value."""
        return [name for name in names if self.values.get(name) not in _UNSET]

    def first(self, *names: str) -> str:
        """The first of these settings that is there; the first of all where none is."""
        return next((name for name in names if name in self.keys), names[0])

    def text(self, name: str) -> str | None:
        """Text of a setting; None where it is absent or off."""
        value = self.values.get(name)
        return None if value in _UNSET or value is True else str(value)

    def integer(self, *names: str, least: int = 1, most: int = 10**12) -> int | None:
        """A whole number of the first of these settings; None if absent, else refused by name."""
        name = self.first(*names)
        if name not in self.keys:
            return None
        return self.ledger.integer(self.keys[name], least=least, most=most, value=self.values[name])

    def number(self, name: str) -> float | None:
        """A number; None where it is absent, refused by name where it is none."""
        value = self.values.get(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not abs(number) < 1e15:
            self.ledger.refuse(f"{self.place(name)}: got {shown(value)}; needed a number")
            return None
        return number

    def meant(self, name: str, usual: str | None = None) -> Any:
        """Value that the word of a setting stands for, `usual` if absent; refused if unknown."""
        value = self.values.get(name)
        given = value[0] if isinstance(value, list) and value else value
        word = usual if given is None or given is True else str(given)
        if word is None:
            return None
        known = next(row.values for row in keys(self.table) if row.name == name)
        if word not in known:
            needed = ", ".join(known)
            self.ledger.refuse(f"{self.place(name)}: got {shown(word)}; needed one of {needed}")
        return known.get(word)

    def place(self, name: str) -> str:
        """Where a setting stands in the file."""
        return self.ledger.place(self.keys.get(name, name))

    def refuse(self, name: str, why: str) -> None:
        """Refuse the file for a setting, or for the one that says a value of the scenario."""
        if "." in name and name not in self.keys:
            name = self.first(*(row.name for row in keys_to(self.table, name)), name)
        self.ledger.refuse(f"{self.place(name)}: {why}")

    def put(self, names: str | Iterable[str], to: str, value: object, why: str = "") -> None:
        """Give a key of the scenario its value, mapped from the stated settings, else assumed."""
        listed = [names] if isinstance(names, str) else names
        stated = [self.keys[name] for name in listed if name in self.keys]
        if stated:
            self.ledger.put(stated, to, value)
        else:
            self.ledger.assume(to, value, why or self.usual)

    def scenario(self, to: str, usual: object = None) -> Any:
        """Value that the scenario has so far."""
        return self.ledger.scenario.get(to, usual)


def _whole(value: object) -> int | None:
    """A whole number, also where JSON or a shell writes it as 5e8 or as a word."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(str(value).replace("_", "")) if isinstance(value, str | float) else None
    except ValueError:
        return None
    return (
        int(number) if number is not None and abs(number) < 1e18 and number == int(number) else None
    )


def flat(
    data: Mapping[str, object], head: str = "", whole: Collection[str] = ()
) -> dict[str, object]:
    """Leaves of nested mappings by dotted key; lists, empty mappings and `whole` are leaves.

    Examples
    --------
    >>> flat({"a": {"b": 1, "c": [2]}, "d": {}})
    {'a.b': 1, 'a.c': [2], 'd': {}}
    """
    leaves: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value and f"{head}{key}" not in whole:
            leaves |= flat(value, f"{head}{key}.", whole)
        else:
            leaves[f"{head}{key}"] = value
    return leaves


def nested(values: Mapping[str, object]) -> dict[str, object]:
    """Dotted keys as nested mappings.

    Examples
    --------
    >>> nested({"model.hidden": 64, "model.moe.experts": 8})
    {'model': {'hidden': 64, 'moe': {'experts': 8}}}
    """
    data: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = data
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return data


def laid(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """One mapping over another, key by key.

    Examples
    --------
    >>> laid({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = laid(under, value) if both else value  # type: ignore[arg-type]
    return merged
