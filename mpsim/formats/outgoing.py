"""Files written for other tools, and what becomes of every value of the scenario: a written file is
read back by its own reader, which says what it holds and what is lost.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mpsim import structs
from mpsim.errors import FormatError, ScenarioError
from mpsim.formats.imported import Imported
from mpsim.formats.ledger import flat, nested
from mpsim.formats.source import HEAD, Format, Head, Options
from mpsim.formats.words import DATA, table
from mpsim.framework import framework, framework_aliases, mark_of
from mpsim.nouns import Quantity
from mpsim.output import write_whole
from mpsim.scenario import Scenario
from mpsim.scenario.sections import Parallelism, Simulation
from mpsim.shipped import say
from mpsim.units import format_exact
from mpsim.version import __version__
from mpsim.workload import Transformer


@structs.dataclass(frozen=True, slots=True)
class Held:
    """A value of the scenario that the file holds."""

    source: str  # dotted key of the scenario
    to: str  # key or flag of the file


@structs.dataclass(frozen=True, slots=True)
class Lost:
    """A value of the scenario that the format cannot hold."""

    # dotted key of the scenario, or a whole section; empty for what is lost of the step itself
    key: str
    value: object  # as a scenario file would write it
    why: str

    def __str__(self) -> str:
        """The loss on one line."""
        if not self.key:
            return self.why
        value = self.value
        if isinstance(value, Mapping):
            value = value.get("preset") or value.get("name") or f"{len(value)} values"
        return f"{self.key} ({_short(value)}): {self.why}"


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A scenario in the words of another tool."""

    # format, tool: its name, as commands take it, and the tool and version that reads the file
    format: str
    tool: str
    text: str = ""  # what the file holds; empty where there are several
    # content by name, of a format that has a folder of files
    files: Mapping[str, bytes] = structs.field(default_factory=dict)
    nodes: int = 0  # operations of all ranks together, of an execution trace
    held: tuple[Held, ...] = ()
    # laid over what an importer reads from the file, these give the whole scenario again
    lost: tuple[Lost, ...] = ()
    notes: tuple[str, ...] = ()  # what the file asks for beside the scenario

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write the file, or files into a folder, made if need be; returns what is written."""
        place = Path(path)
        if not self.files:
            write_whole(place, self.text)
            return (place,)
        place.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_whole(place / name, content)
        return tuple(place / name for name in self.files)


def read_back(
    scenario: Scenario,
    form: Format,
    text: str,
    *,
    tool: str,
    habits: str = "",
    notes: Iterable[str] = (),
    why: Mapping[str, str] = MappingProxyType({}),
) -> Exported:
    """A written file and the fate of every value: what its own reader makes of the text is held,
    what it makes otherwise or not at all is lost.

    `form`: which reads it. `habits`: part of the file that stands for the framework's preset, in
    words; the tool by default. `why`: reasons by key of the scenario, beside those of the format's
    table. ScenarioError if the reader refuses the layout; a model that the format has no words for
    is a FormatError.
    """
    assert form.read is not None
    try:
        imported = form.read(Head(Path(form.name), text[:HEAD], text), Options())
    except FormatError as error:
        raise ScenarioError(f"{form.title} does not take this layout: {error}") from error
    assert isinstance(imported, Imported)
    lost = _lost(scenario, imported, {**table(DATA, "lost")[form.name], **why})
    lost |= {loss.key: loss for loss in _lost_habits(scenario, imported, habits or tool)}
    order = ["model", "cluster", "parallelism", "schedule", "training", "framework"]
    places = {section: place for place, section in enumerate(order)}
    return Exported(
        format=form.name,
        tool=tool,
        text=text,
        held=tuple(Held(item.to, item.source) for item in imported.mapped if item.to not in lost),
        lost=tuple(sorted(lost.values(), key=lambda own: places.get(own.key.partition(".")[0], 9))),
        notes=tuple(notes),
    )


def _lost(scenario: Scenario, imported: Imported, reasons: Mapping[str, str]) -> dict[str, Lost]:
    """Values that a reader takes otherwise; laid over the import they give the scenario."""
    wanted = _compared(scenario_values(scenario), scenario.transformer)
    found = _compared(flat(imported.scenario), scenario.transformer)
    if "model.preset" in found:  # a writer names only a model that is the scenario's
        wanted = {key: value for key, value in wanted.items() if not key.startswith("model.")}

    def why(key: str) -> str:
        if key in reasons:
            return reasons[key].format(read=found.get(key), cluster=scenario.hardware.name)
        read = f"the file says {_short(found.get(key))}"
        return read if key in found else "the format has no key for it"

    lost = {
        key: Lost(key, wanted.get(key, _REST.get(key)), why(key))
        for key in {**wanted, **found}
        if not key.startswith(("cluster.", "framework.", "model.preset"))
        and _plain(wanted.get(key), key) != _plain(found.get(key), key)
    }
    whole = ["cluster", *(["model"] if "model" in imported.missing else [])]
    whole += ["schedule"] if "schedule.name" in lost else []
    for section in whole:
        lost = {key: loss for key, loss in lost.items() if not key.startswith(f"{section}.")}
        stated = {
            key: value
            for key, value in flat(scenario.resolved()[section]).items()
            if value is not None
        }
        lost[section] = Lost(section, nested(stated), why(section))
    if lost.keys() & {"parallelism.tp", "parallelism.pp", "parallelism.cp"}:
        key = "parallelism.dp"
        lost[key] = Lost(key, scenario.dp, "follows from the accelerators")
    return lost


def scenario_values(scenario: Scenario) -> dict[str, object]:
    """Values of a scenario by dotted key, every preset spelled out; the framework's stand apart."""
    resolved = scenario.resolved()
    del resolved["framework"]
    return flat(resolved, whole=("sweep", "variation", "design"))


def _compared(values: Mapping[str, Any], model: Transformer) -> dict[str, object]:
    """Values without those that say nothing of the step or follow from others."""
    idle = {"schema", "name", "model.name", "parallelism.dp"}
    if model.mla is not None:  # latent attention has widths of its own
        idle |= {"model.kv_heads", "model.head_dim"}
    if model.moe is None:
        idle.add("parallelism.etp")
    elif model.moe.gated_mlp in (None, model.gated_mlp):
        idle.add("model.moe.gated_mlp")
    kept = {key: value for key, value in values.items() if key not in idle}
    if shared := kept.pop("model.moe.shared_experts", 0):  # one as wide as all of them is the same
        width = kept.get("model.moe.shared_ffn_hidden") or kept["model.moe.ffn_hidden"]
        kept["model.moe.shared_ffn_hidden"] = shared * width
    return kept


def _plain(value: object, key: str) -> object:
    """A value as it is compared; what is left out has the value at rest."""
    value = _REST.get(key) if value is None else value
    return list(value) if isinstance(value, tuple) else value


def _lost_habits(scenario: Scenario, imported: Imported, tool: str) -> Iterator[Lost]:
    """Fields of the framework that a reader of the file takes otherwise."""
    read: dict[str, object] = dict(imported.scenario["framework"])
    preset, chosen, aliases = str(read.pop("preset")), scenario.framework, framework_aliases()
    wanted = framework(chosen.preset, chosen.overrides).fields()
    if aliases.get(chosen.preset, chosen.preset) != aliases.get(preset, preset):
        found = framework(preset, read).fields()
        differ = sum(wanted[field] != found[field] for field in wanted)
        why = f"the file stands for {preset}, {differ} of whose habits differ"
        yield Lost("framework.preset", chosen.preset, why)
    found = framework(chosen.preset, read).fields()
    for field, value in wanted.items():
        if value != found[field]:
            yield Lost(f"framework.{field}", _habit(field, value), "no key of the file says it")


def check_trains(scenario: Scenario) -> None:
    """Refuse a scenario that serves: every format that is written describes a training step."""
    if scenario.serves:
        raise FormatError(say("formats.is_service", name=scenario.name or "scenario"))


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


def _short(value: object) -> str:
    if value is None:
        return "left out"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _defaults() -> dict[str, object]:
    """Values of keys that a scenario leaves out."""
    model = {
        f"model.{field.name}": field.default
        for field in structs.fields(Transformer)
        if field.default is not structs.MISSING
    }
    experts = dict.fromkeys(("capacity_factor", "spread", "dense_layers", "shared_experts"), 0)
    experts |= {"imbalance": 1, "every": 1, "shared_ffn_hidden": 0}
    return (
        model
        | {f"model.moe.{key}": value for key, value in experts.items()}
        | {f"parallelism.{key}": value for key, value in Parallelism().model_dump().items()}
        | {f"simulation.{key}": value for key, value in Simulation().model_dump().items()}
        | {"training.recompute": "none", "schedule.name": "1f1b", "schedule.virtual_stages": 1}
        | {"training.recompute_method": "uniform", "training.recompute_layers": 1}
        | {"training.method": "full", "training.frozen": [], "training.adapter.dropout": 0.0}
        | {"training.packing": False, "training.reference": False}
    )


_REST: Mapping[str, object] = _defaults()
"""Values that say nothing: a format that has no word for them loses nothing."""
