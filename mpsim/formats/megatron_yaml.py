"""YAML of Megatron, read and written: files for ``--yaml-cfg``, saved configurations of
Megatron-Bridge, and configurations of NeMo 1 and 2.

All fill the dataclasses of Megatron-Core, so a key's last word names a setting whatever block it
stands in; what a block calls otherwise stands in ``data/megatron-yaml.yaml``. Class paths
(``_target_``) are read as text and never imported.

References
----------
NVIDIA/Megatron-Bridge 067f987d, ``training/config.py``; NVIDIA/Megatron-LM,
``training/yaml_arguments.py``; NVIDIA/NeMo,
``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml`` (recalled).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mpsim.errors import nearest
from mpsim.formats.configs import yaml_config, yaml_text
from mpsim.formats.imported import Imported
from mpsim.formats.launch import Launch, Stated
from mpsim.formats.ledger import Ledger, flat
from mpsim.formats.megatron import put_scenario, settings_for
from mpsim.formats.megatron_settings import Reading, Writing, flags, moves, refused
from mpsim.formats.outgoing import Exported, header, read_back
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import DATA, table
from mpsim.inputs import shown
from mpsim.scenario import Scenario

_NAME: Final = "megatron-yaml"
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_FP8_FORMATS: Final = ("hybrid", "e4m3", "none", "true", "false")
_PRECISIONS: Final = tuple(
    "mixed_precision trainer.precision trainer.plugins.precision trainer.plugins precision".split()
)
DEEPEST: Final = 8  # references to references


def _finds(head: Head, pattern: str) -> int:
    return len(re.findall(pattern, head.text, re.MULTILINE))


def _is_megatron(head: Head) -> bool:
    return _finds(head, r"^(language_model|model_parallel):") > 0


def _is_bridge(head: Head) -> bool:
    blocks = r"^(train|model|ddp|dataset|optimizer|mixed_precision|comm_overlap|checkpoint|dist):"
    return (
        _finds(head, blocks) >= 3
        and _finds(head, r"^[ \t]+tensor_model_parallel_size:") > 0
        and not _is_nemo(head)
    )


def _is_nemo(head: Head) -> bool:
    known = "tensor_model_parallel_size activations_checkpoint_\\w+ encoder_seq_length num_layers"
    words = rf"^\s+({known.replace(' ', '|')}):"
    return _finds(head, r"^trainer:") > 0 and _finds(head, words) > 0


def _read(head: Head, options: Options, *, name: str, line: str = "") -> Imported:
    """Read a file whose keys are settings in blocks, of a `line` of the tool where it has more."""
    tool = table(DATA, _NAME)["tools"][line or name]
    preset, tag = tool["preset"], tool["tag"]
    data, lines = yaml_config(head)
    ledger = Ledger(str(head.path), _resolved(flat(data)), lines)
    keys, values = _settings(ledger)
    given = Reading(ledger, keys, values, preset=preset, tag=tag, is_dataclass=True)
    put_scenario(given, _launch(ledger), options)
    for key, value in ledger.values.items():
        why = refused().get(_setting_name(key.rpartition(".")[2]))
        if why is not None and value not in (None, False, 0):
            ledger.refuse(f"{ledger.place(key)}: {why}")
    version = "" if line else f"{tag} or later"
    return ledger.close(name, tool=tool["title"], version=version, moves=_moves)


def _read_nemo(head: Head, options: Options) -> Imported:
    """Read a configuration of NeMo; the second version has its strategy inside the trainer."""
    second = "strategy:" in head.text and "_target_" in head.text
    return _read(head, options, name="nemo", line="nemo-2" if second else "nemo-1")


def _resolved(values: Mapping[str, object]) -> dict[str, object]:
    """Values with references to other keys (``${model.hidden_size}``) filled in; others stay."""

    def value(text: object, key: str, depth: int) -> object:
        match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
        if match is None or depth > DEEPEST:
            return text
        dots = len(match[1]) - len(match[1].lstrip("."))
        above = key.split(".")[:-dots] if dots else []
        to = ".".join([*above, match[1].lstrip(".")])
        return value(values[to], to, depth + 1) if to in values else text

    return {key: value(item, key, 0) for key, item in values.items()}


def _settings(ledger: Ledger) -> tuple[dict[str, str], dict[str, object]]:
    """Key and value of every setting, by the name of its flag."""
    sections = table(DATA, _NAME)["sections"]
    keys: dict[str, str] = {}
    values: dict[str, object] = {}
    for key, value in ledger.values.items():
        section, _, word = key.rpartition(".")
        if section and section not in sections:
            continue
        for name, given in _setting(word, value):
            if isinstance(given, str) and "${" in given:
                why = "which another file or a resolver decides; write the value"
                ledger.refuse(f"{ledger.place(key)}: got {shown(given)}, {why}")
            elif name in values and values[name] != given:
                ledger.note(ledger.place(key), f"{keys[name]} says otherwise, and counts")
            elif name not in values:
                keys[name], values[name] = key, given
    _put_precision(ledger, keys, values)
    return keys, values


def _setting_name(word: str) -> str:
    renamed: Mapping[str, str] = table(DATA, _NAME)["renamed"]
    return renamed.get(word, word.replace("_", "-"))


def _setting(word: str, value: object) -> Iterator[tuple[str, object]]:
    """The flag that a key stands for, with its value."""
    rules, name = table(DATA, _NAME), _setting_name(word)
    if value is None:
        return
    if word in rules["negated"]:
        if isinstance(value, bool):
            yield rules["negated"][word], not value
    elif word in rules["words"]:
        said = rules["words"][word].get(str(value))
        if said is not None:
            yield said, True
    elif name in flags() and name not in moves() and name not in refused():
        yield name, value


def _put_precision(ledger: Ledger, keys: dict[str, str], values: dict[str, object]) -> None:
    """Precisions by the name of a recipe, or as a trainer has them."""
    known = table(DATA, _NAME)["precisions"]
    for key in _PRECISIONS:
        if ledger.get(key) is None or isinstance(ledger.get(key), list):
            continue
        word = str(ledger.get(key)).strip().lower()
        if word not in known:
            why = f"precision recipe {shown(word)} is unknown; {nearest(word, known)}"
            ledger.refuse(f"{ledger.place(key)}: {why}")
            return
        for name, value in known[word].items():
            # a recipe wins over the blocks it fills
            if name not in values or key == _PRECISIONS[0]:
                keys[name], values[name] = key, value
    narrow = values.get("fp8-format")
    if narrow is not None and str(narrow).lower() not in _FP8_FORMATS:
        why = f"got {shown(narrow)}; needed hybrid or e4m3"
        ledger.refuse(f"{ledger.place(keys['fp8-format'])}: {why}")


def _launch(ledger: Ledger) -> Launch:
    """Nodes and devices of a trainer."""
    stated: list[Stated | None] = []
    for key in ("trainer.num_nodes", "trainer.devices"):
        value = ledger.integer(key, least=1) if isinstance(ledger.get(key), int | str) else None
        stated.append(None if value is None else Stated(value, key))
    return Launch(program="", arguments=(), line=0, nodes=stated[0], per_node=stated[1])


def _moves(key: str) -> bool:
    words, told = key.split("."), re.compile(table(DATA, _NAME)["moves"])
    return any(map(told.fullmatch, words)) or _setting_name(words[-1]) in moves()


def export_bridge(scenario: Scenario) -> Exported:
    """Write a configuration of Megatron-Bridge. FormatError with an encoder, or if it serves."""
    put = settings_for(scenario, "megatron-bridge")
    put.notes.append("the number of accelerators is the launcher's: import it with --ranks")
    return _exported(put, MEGATRON_BRIDGE, "Megatron-Bridge", {})


def export_nemo(scenario: Scenario) -> Exported:
    """Write a configuration of NeMo 2. FormatError with an encoder, or if it serves."""
    cluster = scenario.hardware
    launch = {"devices": cluster.node.accelerators, "num_nodes": cluster.nodes}
    strategy = {"_target_": "nemo.lightning.pytorch.strategies.MegatronStrategy"}
    start = {"trainer": {"_target_": "nemo.lightning.Trainer", **launch, "strategy": strategy}}
    return _exported(settings_for(scenario, "nemo-2", "core_v0.9.0"), NEMO, "NeMo 2", start)


def _exported(put: Writing, form: Format, tool: str, start: Mapping[str, object]) -> Exported:
    data: dict[str, Any] = dict(start)
    written = table(DATA, _NAME)["written"][form.name]
    blocks = {setting: block for block, names in written.items() for setting in names}
    rest = "model.config" if "model.config" in written else "model"
    for setting, value in put.given.items():
        place = data
        for part in blocks.get(setting, rest).split("."):
            place = place.setdefault(part, {})
        field, held = _field(setting, value)
        place[field] = held
    text = "".join(f"# {line}\n" for line in header(put.run, tool)) + yaml_text(data)
    habits = f"Megatron-LM {put.tag}"
    return read_back(put.run, form, text, tool=tool, habits=habits, notes=put.notes, why=put.why)


def _field(setting: str, value: object) -> tuple[str, object]:
    """Field of a dataclass and its value: some are the opposite of their flag."""
    rules = table(DATA, _NAME)
    opposite = next((field for field, name in rules["negated"].items() if name == setting), None)
    if opposite is not None:
        return opposite, not value
    return rules["fields"].get(setting, setting.replace("-", "_")), value


MEGATRON_YAML: Final = Format(_NAME, _is_megatron, functools.partial(_read, name=_NAME))
MEGATRON_BRIDGE: Final = Format(
    "megatron-bridge", _is_bridge, functools.partial(_read, name="megatron-bridge")
)
NEMO: Final = Format("nemo", _is_nemo, _read_nemo)
