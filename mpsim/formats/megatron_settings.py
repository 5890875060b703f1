"""Settings of Megatron on their way in and out, whether a command line or the fields of its dataclasses in a YAML file hold them.

Every setting has the name of its flag without dashes. What is absent takes Megatron's default, which is one thing on the command line and another in the
dataclasses that YAML files fill. Plain rows of the table are read and written here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Final

from mpsim.formats.ledger import Ledger, Settings
from mpsim.formats.megatron_flags import flags, tags
from mpsim.formats.outgoing import check_trains, scenario_values
from mpsim.formats.words import Key, keys, keys_to
from mpsim.scenario import Scenario

_KEYS: Final = "megatron"


@dataclasses.dataclass(slots=True)
class Reading(Settings):
    """Settings of one run of Megatron on their way in."""

    table: ClassVar[str] = _KEYS
    usual: ClassVar[str] = "Megatron's default"
    preset: str  # framework preset of the era
    tag: str  # first version of the era
    # whether absent settings take the defaults of the dataclasses instead of those of the command
    # line
    is_dataclass: bool

    def on(self, *names: str) -> bool:
        """Whether one of these switches is set."""
        values = (self.values.get(name) for name in names)
        return any(value is True or str(value).strip().lower() in ("true", "1", "yes") for value in values)  # fmt: skip

    def read(self, *targets: str) -> None:
        """Read plain rows of the table: a value of the scenario each, from the first of its keys that the file has."""
        for to in targets:
            rows = keys_to(_KEYS, to)
            row = next((row for row in rows if self.stated(row.name)), rows[0])
            value = self._plain(row)
            if value is None:
                usual = (
                    row.dataclass
                    if self.is_dataclass and row.dataclass is not None
                    else row.default
                )
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
        """Write rows of the table: the first key of each value (else the usual one) that the version has, in the tool's word where it has words of its own."""
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
