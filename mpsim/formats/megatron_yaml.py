"""YAML of Megatron: files for ``--yaml-cfg``, saved configurations of Megatron-Bridge, and configurations of NeMo 1 and 2.

All fill the dataclasses of Megatron-Core, so a key's last word names a setting whatever block it stands in; what a block calls otherwise stands in
``data/megatron-yaml.yaml``. Class paths (``_target_``) are read as text and never imported.

References
----------
NVIDIA/Megatron-Bridge 067f987d, ``training/config.py``; NVIDIA/Megatron-LM, ``training/yaml_arguments.py``; NVIDIA/NeMo,
``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml`` (recalled).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mpsim.errors import nearest
from mpsim.formats.configs import yaml_config
from mpsim.formats.imported import Imported
from mpsim.formats.launch import Launch, Stated
from mpsim.formats.ledger import Ledger, flat, shortened
from mpsim.formats.megatron_flags import flags, reviewed, tags
from mpsim.formats.megatron_scenario import put_scenario
from mpsim.formats.megatron_settings import Settings
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import table

__all__ = ["MEGATRON_BRIDGE", "MEGATRON_YAML", "NEMO", "put_precision", "setting"]

_PACKAGE, _NAME = "mpsim.formats.data", "megatron-yaml"
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
DEEPEST: Final = 8  # references to references


def _is_megatron(head: Head) -> bool:
    return re.search(r"^(language_model|model_parallel):", head.text, re.MULTILINE) is not None


def _is_bridge(head: Head) -> bool:
    blocks = len(
        re.findall(
            r"^(train|model|ddp|dataset|optimizer|mixed_precision|comm_overlap|checkpoint|dist):",
            head.text,
            re.MULTILINE,
        )
    )
    return (
        blocks >= 3
        and re.search(r"^[ \t]+tensor_model_parallel_size:", head.text, re.MULTILINE) is not None
        and not _is_nemo(head)
    )


def _is_nemo(head: Head) -> bool:
    return (
        re.search(r"^trainer:", head.text, re.MULTILINE) is not None
        and re.search(
            r"^\s+(tensor_model_parallel_size|activations_checkpoint_\w+|encoder_seq_length|num_layers):",
            head.text,
            re.MULTILINE,
        )
        is not None
    )


def _read_megatron(head: Head, options: Options) -> Imported:
    """Read a file for ``--yaml-cfg``."""
    return _read(
        head, options, "megatron-yaml", "Megatron-LM, --yaml-cfg", "megatron-core", "core_v0.6.0"
    )


def _read_bridge(head: Head, options: Options) -> Imported:
    """Read a configuration that Megatron-Bridge saved."""
    return _read(
        head, options, "megatron-bridge", "Megatron-Bridge", "megatron-bridge", "core_v0.14.0"
    )


def _read_nemo(head: Head, options: Options) -> Imported:
    """Read a configuration of NeMo; the second version has its strategy inside the trainer."""
    second = "strategy:" in head.text and "_target_" in head.text
    tool, preset, tag = (
        ("NeMo 2", "nemo-2", "core_v0.9.0") if second else ("NeMo 1", "nemo-1", "core_v0.6.0")
    )
    return _read(head, options, "nemo", tool, preset, tag)


def _read(head: Head, options: Options, name: str, tool: str, preset: str, tag: str) -> Imported:
    data, lines = yaml_config(head)
    values = _resolved(flat(data))
    ledger = Ledger(str(head.path), values, lines)
    settings = Settings(
        ledger, *_settings(ledger), preset=preset, since=tags().index(tag), is_dataclass=True
    )
    put_scenario(settings, _launch(ledger), options)
    _ignore(ledger)
    return ledger.close(name, tool=tool, version="" if name == "nemo" else f"{tag} or later")


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with references to other keys (``${model.hidden_size}``) filled in; those to anything else stay as they are."""

    def value(text: str, key: str, depth: int) -> Any:
        match = _REFERENCE.fullmatch(text)
        if match is None or depth > DEEPEST:
            return text
        dots = len(match[1]) - len(match[1].lstrip("."))
        above = key.split(".")[:-dots] if dots else []
        to = ".".join([*above, match[1].lstrip(".")])
        if to not in values:
            return text
        found = values[to]
        return value(found, to, depth + 1) if isinstance(found, str) else found

    return {
        key: value(item, key, 0) if isinstance(item, str) else item for key, item in values.items()
    }


def _settings(ledger: Ledger) -> tuple[dict[str, str], dict[str, Any]]:
    """Key and value of every setting, by the name of its flag."""
    rules = table(_PACKAGE, _NAME)
    keys: dict[str, str] = {}
    values: dict[str, Any] = {}
    for key, value in ledger.values.items():
        section, _, word = key.rpartition(".")
        if section and section not in rules["sections"]:
            continue
        for name, given in setting(word, value, rules):
            if given is None:
                continue
            if isinstance(given, str) and "${" in given:
                ledger.refuse(
                    f"{ledger.place(key)}: got {shortened(given)}, which another file or a resolver decides; write the value"
                )
            elif name in values and values[name] != given:
                ledger.note(ledger.place(key), f"{keys[name]} says otherwise, and counts")
                ledger.ignore(key, f"{keys[name]} decides")
            elif name not in values:
                keys[name], values[name] = key, given
    put_precision(ledger, keys, values, rules)
    return keys, values


def setting(word: str, value: Any, rules: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Options of the command line that a key stands for, with their values."""
    if word in rules["negated"]:
        if isinstance(value, bool):
            yield rules["negated"][word], not value
        return
    if word in rules["words"]:
        said = rules["words"][word].get(str(value))
        if said is not None:
            yield said, True
        return
    name = rules["renamed"].get(word, word.replace("_", "-"))
    if name in flags() and name not in reviewed():
        yield name, value


def put_precision(
    ledger: Ledger, keys: dict[str, str], values: dict[str, Any], rules: Mapping[str, Any]
) -> None:
    """Precisions by the name of a recipe, or as a trainer has them."""
    for key in (
        "mixed_precision",
        "trainer.precision",
        "trainer.plugins.precision",
        "trainer.plugins",
        "precision",
    ):
        if key not in ledger or isinstance(ledger.get(key), list) or ledger.get(key) is None:
            continue
        word = str(ledger.get(key)).strip().lower()
        if word not in rules["precisions"]:
            ledger.refuse(
                f"{ledger.place(key)}: precision recipe {shortened(word)} is unknown; {nearest(word, rules['precisions'])}"
            )
            return
        for name, value in rules["precisions"][word].items():
            if (
                name not in values or key == "mixed_precision"
            ):  # a recipe wins over the blocks it fills
                keys[name], values[name] = key, value
    narrow = values.get("fp8-format")
    if narrow is not None and str(narrow).lower() not in (
        "hybrid",
        "e4m3",
        "none",
        "true",
        "false",
    ):
        ledger.refuse(
            f"{ledger.place(keys['fp8-format'])}: got {shortened(narrow)}; needed hybrid or e4m3"
        )


def _launch(ledger: Ledger) -> Launch:
    """Nodes and devices of a trainer."""
    nodes, each = (
        ledger.integer(key, least=1) if isinstance(ledger.get(key), int | str) else None
        for key in ("trainer.num_nodes", "trainer.devices")
    )
    return Launch(
        program="",
        arguments=(),
        line=0,
        nodes=None if nodes is None else Stated(nodes, "trainer.num_nodes"),
        per_node=None if each is None else Stated(each, "trainer.devices"),
    )


def _ignore(ledger: Ledger) -> None:
    """Say why keys change nothing: as the flag of that name, or as all of their block."""
    rules = table(_PACKAGE, _NAME)
    for key, value in ledger.values.items():
        word = key.rpartition(".")[2]
        verdict, why = reviewed().get(rules["renamed"].get(word, word.replace("_", "-")), ("", ""))
        block = next(
            (name for name in rules["blocks"] if key == name or key.startswith(f"{name}.")), None
        )
        if word in ("_target_", "_call_", "_partial_", "_args_", "target"):
            ledger.ignore(key, "a class path, which is not imported")
        elif value is None:
            ledger.ignore(key, "null: the default")
        elif block is not None:
            ledger.ignore(key, rules["blocks"][block], matters=block == "peft")
        elif verdict == "refused" and value not in (False, 0):
            ledger.refuse(f"{ledger.place(key)}: {why}")
        elif verdict == "told":
            ledger.ignore(key, f"not simulated: {why}", matters=value not in (False, 0, [], {}))
        elif verdict or word in rules["still"]:
            ledger.ignore(key, why or "moves neither time nor memory")
        elif (
            word in flags()
            or word.replace("_", "-") in flags()
            or word in rules["negated"]
            or word in rules["words"]
        ):
            ledger.ignore(key, "off, or stated elsewhere")


MEGATRON_YAML: Final = Format(
    "megatron-yaml", "YAML for Megatron-LM's --yaml-cfg", "scenario", _is_megatron, _read_megatron
)
MEGATRON_BRIDGE: Final = Format(
    "megatron-bridge",
    "saved configuration of Megatron-Bridge",
    "scenario",
    _is_bridge,
    _read_bridge,
)
NEMO: Final = Format("nemo", "configuration of NeMo", "scenario", _is_nemo, _read_nemo)
