"""Outgoing ledger: what becomes of every value of a scenario on its way into a file of another tool, held or lost and never dropped in silence."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mpsim.errors import FormatError
from mpsim.formats.ledger import flat, nested
from mpsim.framework import framework, framework_aliases, mark_of
from mpsim.nouns import Quantity
from mpsim.output import write_whole
from mpsim.scenario import Scenario
from mpsim.scenario.sections import Parallelism, Simulation
from mpsim.units import format_exact
from mpsim.version import __version__
from mpsim.workload import Transformer

__all__ = ["Exported", "Held", "Lost", "Outgoing", "check_trains", "header"]

_COSMETIC = frozenset({"schema", "name", "model.name"})


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A value of the scenario that the file holds.

    Parameters
    ----------
    source : str
        Dotted key of the scenario.
    to : str
        Key or flag of the file.
    """

    source: str
    to: str


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """A value of the scenario that the format cannot hold.

    Parameters
    ----------
    key : str
        Dotted key of the scenario, or a whole section; empty for what is lost of the step itself.
    value : object
        As a scenario file would write it.
    """

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        """The loss on one line."""
        if not self.key:
            return self.why
        value = self.value
        if isinstance(value, Mapping):
            value = value.get("preset") or value.get("name") or f"{len(value)} values"
        return f"{self.key} ({_plain(value)}): {self.why}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A scenario in the words of another tool.

    Parameters
    ----------
    format, tool : str
        Name of the format, as commands take it, and which tool and version reads the file.
    text : str
        What the file holds; empty where there are several.
    files : mapping of str to bytes
        Content by name, of a format that has a folder of files.
    nodes : int
        Operations of all ranks together, of an execution trace.
    lost : tuple of Lost
        Laid over what an importer reads from the file, these give the whole scenario again.
    notes : tuple of str
        What the file asks for beside the scenario.
    """

    format: str
    tool: str
    text: str = ""
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    nodes: int = 0
    held: tuple[Held, ...] = ()
    lost: tuple[Lost, ...] = ()
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write the file, or the files into a folder that is made if need be; returns all that are written."""
        place = Path(path)
        if not self.files:
            write_whole(place, self.text)
            return (place,)
        place.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_whole(place / name, content)
        return tuple(place / name for name in self.files)


class Outgoing:
    """Values of one scenario, and what became of them.

    Raises
    ------
    FormatError
        If it serves.
    """

    def __init__(self, scenario: Scenario) -> None:
        check_trains(scenario)
        self.scenario = scenario
        resolved = (
            scenario.resolved()
        )  # every preset spelled out, and what it holds beside one step
        del resolved["framework"]
        self.values = flat(resolved, whole=("sweep", "variation"))
        self.notes: list[str] = []
        self._held: dict[tuple[str, str], Held] = {}
        self._lost: dict[str, Lost] = {}

    def hold(self, keys: str | Iterable[str], *words: str) -> None:
        """Say that the file holds values of the scenario, and under which of its keys."""
        for key in (keys,) if isinstance(keys, str) else keys:
            for word in words:
                self._held[key, word] = Held(key, word)

    def lose(self, keys: str | Iterable[str], why: str) -> None:
        """Say that the format has no word for values of the scenario; those that are at rest are no loss."""
        for key in (keys,) if isinstance(keys, str) else keys:
            if key in self.values and self.values[key] != _REST.get(key, ...):
                self._lost[key] = Lost(key, self.values[key], why)

    def force(self, key: str, why: str) -> None:
        """Say that a value is lost also where it is at rest, because the file says otherwise."""
        self._lost[key] = Lost(key, self.values.get(key, _REST.get(key)), why)

    def lose_section(self, section: str, why: str) -> None:
        """Say that the format has no word for a whole section, such as ``model`` or ``model.moe``."""
        head = f"{section}."
        own = {
            key.removeprefix(head): value
            for key, value in self.values.items()
            if key.startswith(head) and value is not None
        }
        if own:
            self._lost = {key: loss for key, loss in self._lost.items() if not key.startswith(head)}
            self._lost[section] = Lost(section, nested(own), why)

    @property
    def losses(self) -> tuple[str, ...]:
        """Keys that are lost so far."""
        return tuple(self._lost)

    def lose_cluster(self, why: str) -> None:
        """Say that no file of this format names the accelerators and links that it runs on."""
        self._lost["cluster"] = Lost("cluster", self.scenario.resolved()["cluster"], why)

    def behave(self, preset: str, changes: Mapping[str, object], *, tool: str) -> None:
        """Account for the framework: what the file's readers take, against what the scenario has.

        Parameters
        ----------
        preset : str
            Preset whose habits the file stands for.
        changes : mapping of str to object
            Fields that the file states otherwise, as a scenario would write them.
        tool : str
            In words, for the reason of a loss.
        """
        chosen = self.scenario.framework
        wanted = framework(chosen.preset, chosen.overrides).fields()
        aliases = framework_aliases()
        same = aliases.get(chosen.preset, chosen.preset) == aliases.get(preset, preset)
        read = framework(preset, changes).fields()
        if same:
            self.hold("framework.preset", tool)
        else:
            differ = sum(wanted[field] != read[field] for field in wanted)
            why = f"the file stands for {preset}, {differ} of whose habits differ"
            self._lost["framework.preset"] = Lost("framework.preset", chosen.preset, why)
            # a reader writes no override for what its own preset has; with another preset laid over it that is lost too
            usual = framework(preset, {}).fields()
            stated = {
                field: value for field, value in changes.items() if read[field] != usual[field]
            }
            read = framework(chosen.preset, stated).fields()
        for field, value in wanted.items():
            if value != read[field]:
                key = f"framework.{field}"
                self._lost[key] = Lost(key, _habit(field, value), "no key of the file says it")

    def close(self, name: str, *, tool: str, text: str) -> Exported:
        """The file and the fate of every value; what nobody spoke of is lost, unless it is at rest."""
        told = {key for key, _ in self._held}
        sections = tuple(f"{key}." for key in self._lost)
        for key, value in self.values.items():
            if (
                key in told
                or key in self._lost
                or key.startswith(sections)
                or key in _COSMETIC
                or key.startswith(("cluster.", "framework."))
            ):
                continue
            if value != _REST.get(key, ...) and value is not None:
                self._lost[key] = Lost(key, value, "the format has no key for it")
        order = ["model", "cluster", "parallelism", "schedule", "training", "framework"]
        places = {section: place for place, section in enumerate(order)}
        lost = sorted(
            self._lost.values(), key=lambda loss: places.get(loss.key.partition(".")[0], len(order))
        )
        return Exported(
            format=name,
            tool=tool,
            text=text,
            held=tuple(self._held.values()),
            lost=tuple(lost),
            notes=tuple(self.notes),
        )


def check_trains(scenario: Scenario) -> None:
    """Refuse a scenario that serves: every format that is written describes a training step."""
    if scenario.serves:
        raise FormatError(
            f"{scenario.name or 'scenario'}: describes a service; files of this format describe a training step"
        )


def header(scenario: Scenario, tool: str) -> list[str]:
    """Lines that say what a file was written from; of the scenario nothing but its name."""
    name = "".join(letter for letter in scenario.name if letter.isprintable()) or "a scenario"
    return [f"{name}, written by mpsim {__version__} for {tool}"]


def _habit(field: str, value: object) -> object:
    """A field of a framework as a scenario writes it."""
    if isinstance(value, enum.Enum):
        return value.value
    mark = mark_of(field)
    if isinstance(mark, Quantity) and isinstance(value, float):
        return format_exact(value, mark.dimension)
    return value


def _plain(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _defaults() -> dict[str, Any]:
    """Values of keys that a scenario leaves out."""
    model = {
        f"model.{field.name}": field.default
        for field in dataclasses.fields(Transformer)
        if field.default is not dataclasses.MISSING
    }
    experts = dict.fromkeys(("capacity_factor", "spread", "dense_layers", "shared_experts"), 0)
    experts |= {"imbalance": 1, "every": 1, "shared_ffn_hidden": 0}
    return (
        model
        | {f"model.moe.{key}": value for key, value in experts.items()}
        | {f"parallelism.{key}": value for key, value in Parallelism().model_dump().items()}
        | {f"simulation.{key}": value for key, value in Simulation().model_dump().items()}
        | {"training.recompute": "none", "schedule.virtual_stages": 1}
    )


_REST: Mapping[str, Any] = _defaults()
"""Values that say nothing: a format that has no word for them loses nothing."""
