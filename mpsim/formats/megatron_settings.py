"""Settings of Megatron on their way in and out, whether a command line or the fields of its
dataclasses in a YAML file hold them.

Every setting has the name of its flag without dashes; of each flag the tags that have it are known,
and of versions their eras. What is absent takes Megatron's default, one on the command line,
another in the dataclasses that YAML fills. Plain rows of the table are read and written here.

References
----------
NVIDIA/Megatron-LM, ``arguments.py`` at 22 tags, v1.0 to core_v0.19.0, and d98e8a64 (2026-08-22).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import ClassVar, Final, NamedTuple

from mpsim import structs
from mpsim.errors import FormatError
from mpsim.formats.ledger import Ledger, Settings
from mpsim.formats.outgoing import check_trains, scenario_values
from mpsim.formats.words import DATA, Key, keys, keys_to, table
from mpsim.memo import remembered
from mpsim.scenario import Scenario
from mpsim.shipped import say


class Flag(NamedTuple):
    """One flag of Megatron-LM."""

    name: str  # without its dashes
    first: str  # first, last: first and last tag that has it
    last: str
    is_switch: bool  # whether it takes no value


@remembered(1)
def flags() -> Mapping[str, Flag]:
    """Every flag of the table, by name."""
    text = (resources.files(DATA) / "megatron-flags.csv").read_text("utf-8")
    aborts = table(DATA, "megatron")["aborts"]
    return {
        name: Flag(name, first, aborts.get(name, last), kind == "switch")
        for name, first, last, kind in list(csv.reader(text.splitlines()))[1:]
    }


@remembered(1)
def tags() -> tuple[str, ...]:
    """Tags of Megatron-LM, oldest first."""
    return tuple(table(DATA, "megatron")["tags"])


@remembered(1)
def refused() -> Mapping[str, str]:
    """Why a flag's model or step cannot be simulated."""
    reasons = table(DATA, "megatron")["refused"]
    return {name: why for why, names in reasons.items() for name in names.split()}


@remembered(1)
def moves() -> frozenset[str]:
    """Flags that move the time or the memory of a step and are not simulated."""
    return frozenset(table(DATA, "megatron")["moves"].split())


def era_of(names: Sequence[str]) -> tuple[str, str]:
    """First and last tag with all of these flags. FormatError names two that exclude each other."""
    known = [flags()[name] for name in names if name in flags()]
    if not known:
        return tags()[0], tags()[-1]
    youngest = max(known, key=lambda flag: tags().index(flag.first))
    oldest = min(known, key=lambda flag: tags().index(flag.last))
    if tags().index(youngest.first) > tags().index(oldest.last):
        raise FormatError(say("formats.no_version", youngest=youngest, oldest=oldest))
    return youngest.first, oldest.last


def preset_of(tag: str) -> str:
    """The framework preset of the era that a tag belongs to."""
    eras: list[tuple[str, str]] = table(DATA, "megatron")["eras"]
    return [name for first, name in eras if tags().index(first) <= tags().index(tag)][-1]


def newest_tag(preset: str) -> str | None:
    """The newest tag of the era that a framework preset stands for, or None."""
    released = (tag for tag in reversed(tags()) if tag != "HEAD")
    return next((tag for tag in released if preset_of(tag) == preset), None)


_KEYS: Final = "megatron"


@structs.dataclass(slots=True)
class Reading(Settings):
    """Settings of one run of Megatron on their way in."""

    table: ClassVar[str] = _KEYS
    usual: ClassVar[str] = "Megatron's default"
    preset: str  # framework preset of the era
    tag: str  # first version of the era
    # whether absent settings take the defaults of the dataclasses, not of the command line
    is_dataclass: bool

    def on(self, *names: str) -> bool:
        """Whether one of these switches is set."""
        values = (self.values.get(name) for name in names)
        return any(
            value is True or str(value).strip().lower() in ("true", "1", "yes") for value in values
        )

    def read(self, *targets: str) -> None:
        """Read plain rows of the table: a value each, from the first of its keys in the file."""
        for to in targets:
            rows = keys_to(_KEYS, to)
            row = next((row for row in rows if self.stated(row.name)), rows[0])
            value = self._plain(row)
            if value is None:
                fills = self.is_dataclass and row.dataclass is not None
                usual = row.dataclass if fills else row.default
                value = None if row.name in self.keys and row.kind == "word" else usual
            if value is not None:
                self.put(row.name, to, value)
            elif row.ask:
                self.ledger.ask(to)

    def _plain(self, row: Key) -> object:
        if row.kind == "int":
            return self.integer(row.name)
        if row.kind == "number":
            return self.number(row.name)
        if row.kind == "word":
            return self.meant(row.name)
        if row.kind == "says":
            return row.says if self.on(row.name) else None
        return self.on(row.name) == (row.kind == "switch")

    def since(self, tag: str) -> bool:
        """Whether the era begins with this tag or a later one."""
        return tags().index(self.tag) >= tags().index(tag)


class Writing:
    """Settings of one run of one version of Megatron.

    `tag`: version of Megatron-LM whose flags there are. `preset`: framework preset that a reader
    takes for it. `is_dataclass`: whether settings become fields of dataclasses (YAML) instead of
    flags.
    """

    def __init__(self, scenario: Scenario, tag: str, preset: str, *, is_dataclass: bool) -> None:
        check_trains(scenario)
        self.run = scenario
        self.values = scenario_values(scenario)
        self.tag = tag
        self.preset = preset
        self.is_dataclass = is_dataclass
        self.given: dict[str, object] = {}
        self.why: dict[str, str] = {}  # reasons why values are lost, by key of the scenario
        self.notes: list[str] = []

    def reading(self, given: Mapping[str, object]) -> Reading:
        """These settings as a reader has them, whose layout and model are those of the run."""
        ledger = Ledger("", {})
        ledger.scenario = self.values
        names = {name: name for name in given}
        return Reading(ledger, names, given, self.preset, self.tag, self.is_dataclass)

    def has(self, name: str) -> bool:
        """Whether the version has a flag."""
        order, flag = tags(), flags().get(name)
        return flag is not None and (
            self.is_dataclass
            or order.index(flag.first) <= order.index(self.tag) <= order.index(flag.last)
        )

    def has_any(self, to: str) -> bool:
        """Whether the version has a flag for a value of the scenario."""
        return any(self.has(row.name) for row in keys_to(_KEYS, to))

    def scenario(self, key: str, usual: object = None) -> object:
        """Value of the scenario by dotted key."""
        return self.values.get(key, usual)

    def put(self, name: str, value: object) -> bool:
        """Write a setting; where the version lacks it, what it says is lost."""
        if self.has(name):
            self.given[name] = value
            return True
        first = flags()[name].first if name in flags() else ""
        why = f"--{name} came with {first}" if first else f"there is no --{name}"
        self.why |= {row.to: why for row in keys(_KEYS) if row.name == name}
        return False

    def write(self, *targets: str, usual: object = None) -> None:
        """Write rows of the table: each value's first key that the version has, in its word."""
        for to in targets:
            rows = keys_to(_KEYS, to)
            row = next((row for row in rows if self.has(row.name)), rows[0])
            value = usual if self.scenario(to) is None else self.scenario(to)
            if row.kind in ("switch", "off", "says"):
                on = (
                    value == row.says
                    if row.kind == "says"
                    else bool(value) == (row.kind == "switch")
                )
                if on:
                    self.put(row.name, True)
            elif not row.values:
                self.put(row.name, value)
            elif (word := row.word(value)) is not None:
                self.put(row.name, word)
            else:
                self.why[to] = f"--{row.name} has no word for it"
