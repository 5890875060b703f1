"""Settings of Megatron as a scenario, whether a command line, a YAML file or a recipe of NeMo or Megatron-Bridge states them.

Every setting has the name of its flag without dashes. What is absent takes Megatron's default, which is one thing on the command line and another in the
dataclasses that YAML files fill.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mpsim.formats.keys import values_of
from mpsim.formats.ledger import Ledger, shortened
from mpsim.formats.words import table

__all__ = ["Settings"]

_KEYS: Final = "megatron"


@dataclasses.dataclass(slots=True)
class Settings:
    """Settings of one run, and the ledger they go into.

    Parameters
    ----------
    ledger : Ledger
    keys : mapping of str to str
        Key of the file that states each setting.
    values : mapping of str to object
        What each says: a switch true or false, text, or a list.
    preset : str
        Framework preset of the era.
    since : int
        Place of the era's first tag among all tags.
    is_dataclass : bool
        Whether absent settings take the defaults of the dataclasses instead of those of the command line.
    """

    ledger: Ledger
    keys: Mapping[str, str]
    values: Mapping[str, Any]
    preset: str
    since: int
    is_dataclass: bool

    @property
    def has_experts(self) -> bool:
        """Whether the model has experts."""
        return "model.moe.experts" in self.ledger.scenario

    def on(self, name: str) -> bool:
        """Whether a switch is set."""
        value = self.values.get(name)
        if value is None or value is True or value is False:
            return bool(value)
        return str(value).strip().lower() in ("true", "1", "yes")

    def text(self, name: str) -> str | None:
        """Text of a setting; None where it is absent."""
        value = self.values.get(name)
        return (
            None
            if value is None or value is True
            else value
            if isinstance(value, str)
            else str(value)
        )

    def integer(self, name: str, *, least: int = 0, most: int = 10**12) -> int | None:
        """A whole number; None where it is absent, refused by name where it is none."""
        value = self.values.get(name)
        if value is None:
            return None
        number = _whole(value)
        if number is None or not least <= number <= most:
            self.ledger.refuse(
                f"{self.place(name)}: got {shortened(value)}; needed a whole number of at least {least}"
            )
            return None
        return number

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
            self.ledger.refuse(f"{self.place(name)}: got {shortened(value)}; needed a number")
            return None
        return number

    def meant(self, name: str, usual: str | None = None) -> Any:
        """Value of the scenario that the word of a setting stands for; None where there is none, refused by name where nobody knows the word.

        Parameters
        ----------
        name : str
            One whose words stand in the table of keys.
        usual : str, optional
            The word where the setting is absent.
        """
        value = self.values.get(name)
        given = value[0] if isinstance(value, list) and value else value
        word = usual if given is None or given is True else str(given)
        if word is None:
            return None
        known = values_of(_KEYS, name)
        if word not in known:
            self.ledger.refuse(
                f"{self.place(name)}: got {shortened(word)}; needed one of {', '.join(known)}"
            )
            return None
        return known[word]

    def place(self, name: str) -> str:
        """Where a setting stands in the file."""
        return self.ledger.place(self.keys.get(name, name))

    def put(
        self, names: str | Sequence[str], to: str, value: object, why: str = "Megatron's default"
    ) -> None:
        """Give a key of the scenario its value, mapped from those settings that are stated, else assumed."""
        listed = [names] if isinstance(names, str) else names
        stated = [self.keys[name] for name in listed if name in self.keys]
        if stated:
            self.ledger.put(stated, to, value)
        else:
            self.ledger.assume(to, value, why)

    def ignore(self, names: str | Sequence[str], why: str) -> None:
        """Say why stated settings change nothing."""
        listed = [names] if isinstance(names, str) else names
        self.ledger.ignore([self.keys[name] for name in listed if name in self.keys], why)

    def since_tag(self, tag: str) -> bool:
        """Whether the era begins with this tag or a later one."""
        tags: list[str] = table("mpsim.formats.data", "megatron")["tags"]
        return self.since >= tags.index(tag)


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(str(value).replace("_", ""))
    except ValueError:
        return None
    return int(number) if abs(number) < 1e15 and number == int(number) else None
