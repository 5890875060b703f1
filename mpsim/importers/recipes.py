"""Recipes by name: launch scripts of NeMo 2 and Megatron-Bridge that start one, with what they change in it.

``nemo llm pretrain --factory llama3_70b trainer.num_nodes=8`` and ``run_recipe.py --recipe llama3_70b_pretrain_config model.context_parallel_size=1`` are read; recipes are functions
of Python packages, so those of models that mpsim has stand in ``mpsim/formats/data/recipes.yaml``, and any other is refused by name.

References
----------
NVIDIA/NeMo v2.3.0, ``nemo/collections/llm/recipes``; NVIDIA-NeMo/Megatron-Bridge 067f987d, ``src/megatron/bridge/recipes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mpsim.errors import FormatError, nearest
from mpsim.formats.megatron import tags
from mpsim.formats.words import table
from mpsim.importers.imported import Imported
from mpsim.importers.launch import Launch, Stated, header, launched, scheduler_variables
from mpsim.importers.ledger import Ledger
from mpsim.importers.megatron_scenario import put_scenario
from mpsim.importers.megatron_settings import Settings
from mpsim.importers.megatron_yaml import put_precision, setting
from mpsim.importers.shell import Command, Word, commands
from mpsim.importers.source import Format, Head, Options, read_text
from mpsim.scalars import resolve

__all__ = ["RECIPES"]

_TABLE: Final = ("mpsim.formats.data", "recipes")
_TOOLS: Final = {"nemo": ("NeMo 2", "nemo-2", "core_v0.9.0"), "megatron-bridge": ("Megatron-Bridge", "megatron-bridge", "core_v0.14.0")}  # fmt: skip
_CALL: Final = re.compile(r"([A-Za-z_]\w*)(?:\((.*)\))?", re.DOTALL)
_ENDING: Final = re.compile(r"(_pretrain)?(_\d+gpu_h100_bf16)?(_pretrain)?(_(?:16k|64k|128k))?(_config)?(_recipe)?")  # fmt: skip
LARGEST: Final = 1_000_000  # characters of a launch script


def _is_recipe(head: Head) -> bool:
    return not head.is_object and re.search(
        r"\bnemo\s+llm\s+pretrain\b|run_recipe\.py|--recipe[= ]\w+_(pretrain|recipe)", head.text
    ) is not None  # fmt: skip


def _read_recipe(head: Head, options: Options) -> Imported:
    """Read the command that starts a recipe.

    Raises
    ------
    FormatError
        If there is none or more than one, or nobody here knows the recipe.
    """
    text = read_text(head.path, needed="a launch script", largest=LARGEST)
    file = str(head.path)
    lines = header(text)
    known = [command for command in commands(text, scheduler_variables(lines)) if _named(command)]
    if len({tuple(word.text for word in command.words) for command in known}) != 1:
        raise FormatError(
            f"{file}: {len(known)} commands start a recipe; needed one, such as 'nemo llm pretrain --factory llama3_8b'"
        )
    return _imported(known[-1], launched(known[-1].words, lines), file, options)


def _named(command: Command) -> Word | None:
    """The word that names the recipe; None where the command starts none."""
    words = command.words
    for place, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name not in ("--factory", "--recipe", "--recipe-name", "--recipe_name"):
            continue
        if equals:
            return Word(value, word.line, word.unknown)
        if place + 1 < len(words):
            return words[place + 1]
    return None


def _imported(command: Command, launch: Launch | None, file: str, options: Options) -> Imported:
    word = _named(command)
    assert word is not None
    if word.unknown:
        raise FormatError(f"{file}:{word.line}: the recipe needs {word.unknown[0]}; set it in the file")  # fmt: skip
    kind = "nemo" if any(item.text == "llm" for item in command.words) else "megatron-bridge"
    tool, preset, tag = _TOOLS[kind]
    call = _CALL.fullmatch(word.text.strip())
    name = _plain(call[1] if call else word.text, kind)
    recipes: Mapping[str, Mapping[str, Any]] = table(*_TABLE)[kind]
    if name not in recipes:
        raise FormatError(
            f"{file}:{word.line}: recipe {word.text[:60]!r} of {tool} is not known; {nearest(name, recipes)}, or save its configuration as YAML and import that"
        )
    ledger, changed = _ledger(command, launch, word, file, call[2] if call and call[2] else "")
    recipe = recipes[name]
    keys, values = _settings(recipe, changed)
    put_precision(ledger, keys, values, table("mpsim.formats.data", "megatron-yaml"))
    settings = Settings(
        ledger,
        keys,
        values,
        preset=preset,
        since=tags().index(tag),
        is_dataclass=True,
    )
    ledger.put("recipe", "model.preset", recipe["model"])
    put_scenario(settings, _launch(launch, ledger, recipe), options, model=recipe["model"])
    for key in ledger.values:
        last = key.rpartition(".")[2]
        if key in changed:
            ledger.ignore(key, f"{last} moves neither time nor memory, or is not simulated")
        else:
            ledger.ignore(key, "how processes are placed and find each other")
    return ledger.close("nemo-recipe", tool=f"{tool}, recipe {name}")


def _plain(name: str, kind: str) -> str:
    """A recipe's name without what all of a tool's recipes end with."""
    known: Mapping[str, Any] = table(*_TABLE)[kind]
    if name in known:
        return name
    for place in range(len(name), 0, -1):
        ending = _ENDING.fullmatch(name[place:])
        if ending is not None and name[:place] + (ending[4] or "") in known:
            return name[:place] + (ending[4] or "")
    return name


def _ledger(
    command: Command, launch: Launch | None, word: Word, file: str, inside: str
) -> tuple[Ledger, dict[str, Any]]:
    """The ledger of a command, and the dotted keys that it changes in the recipe."""
    values: dict[str, Any] = {"recipe": word.text}
    lines = {"recipe": word.line}
    for option, item in (launch.options if launch is not None else {}).items():
        values[option], lines[option] = item.text, item.line
    changed: dict[str, Any] = {}
    pairs = [(item.text, item) for item in command.words]
    pairs += [(text.strip(), word) for text in inside.split(",") if text.strip()]
    for text, item in pairs:
        match = re.fullmatch(r"\+*~?([A-Za-z_][\w.]*)\s*=\s*(.*)", text, re.DOTALL)
        if match is None or match[1] in ("factory", "recipe", "recipe_name"):
            continue
        bare = "." not in match[1] and match[1] != "mixed_precision"
        key = f"recipe.{match[1]}" if bare else match[1]
        value = resolve(match[2].strip("'\""))
        values[key], lines[key] = value, item.line
        if item.unknown:
            raise FormatError(f"{file}:{item.line}: {key} needs {item.unknown[0]}; set it in the file")  # fmt: skip
        changed[key] = value
    return Ledger(file, values, lines), changed


def _settings(
    recipe: Mapping[str, Any], changed: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Key and value of every setting: of the recipe, over what all recipes have, under what the command changes."""
    data = table(*_TABLE)
    values: dict[str, Any] = dict(data["usual"])
    values |= {
        data["words"][word]: value for word, value in recipe.items() if word in data["words"]
    }
    if recipe.get("ends"):
        ends = ("embedding", "loss")
        values |= {f"account-for-{end}-in-pipeline-split": True for end in ends}
    keys = dict.fromkeys(values, "recipe")
    rules = table("mpsim.formats.data", "megatron-yaml")
    for key, value in changed.items():
        word = key.rpartition(".")[2]
        for name, given in setting(_SPELLED.get(word, word), value, rules):
            keys[name], values[name] = key, given
    return keys, values


_SPELLED: Final = {
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "expert_parallelism": "expert_model_parallel_size",
    "sequence_parallelism": "sequence_parallel",
}
"""Arguments of NeMo's recipes, by the field that they fill."""


def _launch(launch: Launch | None, ledger: Ledger, recipe: Mapping[str, Any]) -> Launch:
    """Nodes and devices that the command says, its launcher, or the recipe."""

    def stated(words: Sequence[str]) -> Stated | None:
        key = next((key for key in ledger.values if key.rpartition(".")[2] in words), None)
        value = ledger.integer(key, least=1) if key is not None else None
        return None if key is None or value is None else Stated(value, key)

    nodes = stated(("num_nodes",)) or (launch.nodes if launch else None)
    each = stated(("devices", "num_gpus_per_node")) or (launch.per_node if launch else None)
    if nodes is None and launch is None and "nodes" in recipe:
        nodes = Stated(recipe["nodes"], "recipe")
    if each is None and nodes is not None and "nodes" in recipe:
        each = Stated(8, "recipe")
    return Launch(program="", arguments=(), line=0, nodes=nodes, per_node=each)


RECIPES: Final = Format(
    "nemo-recipe",
    "launch of a NeMo or Megatron-Bridge recipe",
    "scenario",
    _is_recipe,
    _read_recipe,
)
