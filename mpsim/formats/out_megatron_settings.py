"""Settings of Megatron on their way out: the flags of one version, and what became of the scenario's values."""

from __future__ import annotations

from typing import Any, Final

from mpsim.formats.keys import keys
from mpsim.formats.megatron_flags import flags, tags
from mpsim.formats.outgoing import Outgoing
from mpsim.framework import framework
from mpsim.scenario import Scenario

__all__ = ["KEYS", "Settings"]

KEYS: Final = "megatron"


class Settings:
    """Settings of one run of one version of Megatron.

    Parameters
    ----------
    scenario : Scenario
    tag : str
        Version of Megatron-LM whose flags there are.
    preset : str
        Framework preset that a reader takes for it.
    is_dataclass : bool
        Whether settings become fields of dataclasses (YAML) instead of flags.
    """

    def __init__(self, scenario: Scenario, tag: str, preset: str, *, is_dataclass: bool) -> None:
        self.out = Outgoing(scenario)
        self.scenario = scenario
        self.tag = tag
        self.preset = preset
        self.is_dataclass = is_dataclass
        self.given: dict[str, Any] = {}
        self.changes: dict[str, object] = {}
        chosen = scenario.framework
        self.wanted = framework(chosen.preset, chosen.overrides).fields()

    def has(self, name: str) -> bool:
        """Whether the version has a flag."""
        order = tags()
        flag = flags().get(name)
        return flag is not None and (
            self.is_dataclass
            or order.index(flag.first) <= order.index(self.tag) <= order.index(flag.last)
        )

    def since(self, tag: str) -> bool:
        """Whether the version is this one or a later one."""
        return tags().index(self.tag) >= tags().index(tag)

    def value(self, key: str) -> Any:
        """Value of the scenario by dotted key; None where it has none."""
        return self.out.values.get(key)

    def put(self, name: str, value: object, *holds: str) -> bool:
        """Write a setting that holds values of the scenario; where the version lacks it they are lost."""
        if self.has(name):
            self.given[name] = value
            self.out.hold(holds, f"--{name}")
            return True
        first = flags()[name].first if name in flags() else ""
        self.out.lose(holds, f"--{name} came with {first}" if first else f"there is no --{name}")
        return False

    def put_value(self, to: str, *, name: str | None = None) -> bool:
        """Write the setting that says a value of the scenario by the table of keys, in the tool's word where it has words of its own."""
        rows = [key for key in keys(KEYS) if key.to == to and name in (None, key.name)]
        row = next((key for key in rows if self.has(key.name)), rows[0])
        value = self.value(to)
        if not row.values:
            return self.put(row.name, value, to)
        word = row.word(value)
        if word is None:
            self.out.lose(to, f"--{row.name} has no word for it")
            return False
        return self.put(row.name, word, to)

    def habit(self, field: str) -> Any:
        """A field of the scenario's framework as a plain value."""
        value = self.wanted[field]
        return getattr(value, "value", value)
