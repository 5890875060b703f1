"""YAML of Megatron-Bridge and NeMo 2: fields of Megatron-Core's dataclasses in the blocks of their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpsim.formats.out_megatron_flags import settings_for
from mpsim.formats.out_megatron_settings import Settings
from mpsim.formats.outgoing import Exported, header
from mpsim.formats.words import table
from mpsim.formats.written import yaml_text
from mpsim.scenario import Scenario

__all__ = ["export_bridge", "export_nemo"]

_TABLE = ("mpsim.formats.data", "megatron-yaml")


def export_bridge(scenario: Scenario) -> Exported:
    """Write the configuration of a scenario for Megatron-Bridge.

    Raises
    ------
    FormatError
        If it has an encoder, or serves.
    """
    settings = settings_for(scenario, "megatron-bridge")
    settings.out.notes.append(
        "the number of accelerators is the launcher's: import it with --ranks"
    )
    return _exported(settings, "megatron-bridge", "Megatron-Bridge", {})


def export_nemo(scenario: Scenario) -> Exported:
    """Write the configuration of a scenario for NeMo 2.

    Raises
    ------
    FormatError
        If it has an encoder, or serves.
    """
    cluster = scenario.hardware
    launch = {"devices": cluster.node.accelerators, "num_nodes": cluster.nodes}
    strategy = {"_target_": "nemo.lightning.pytorch.strategies.MegatronStrategy"}
    start = {"trainer": {"_target_": "nemo.lightning.Trainer", **launch, "strategy": strategy}}
    return _exported(settings_for(scenario, "nemo-2", "core_v0.9.0"), "nemo", "NeMo 2", start)


def _exported(settings: Settings, name: str, tool: str, start: Mapping[str, Any]) -> Exported:
    data: dict[str, Any] = dict(start)
    rules = table(*_TABLE)
    blocks = {
        setting: block for block, names in rules["written"][name].items() for setting in names
    }
    rest = "model.config" if "model.config" in rules["written"][name] else "model"
    for setting, value in settings.given.items():
        field, written = _field(setting, value, rules)
        place = data
        for part in blocks.get(setting, rest).split("."):
            place = place.setdefault(part, {})
        place[field] = written
    text = "".join(f"# {line}\n" for line in header(settings.scenario, tool)) + yaml_text(data)
    return settings.out.close(name, tool=tool, text=text)


def _field(setting: str, value: object, rules: Mapping[str, Any]) -> tuple[str, object]:
    """Field of a dataclass and its value: some are the opposite of their flag."""
    opposite = next((field for field, name in rules["negated"].items() if name == setting), None)
    if opposite is not None:
        return opposite, not value
    return rules["fields"].get(setting, setting.replace("-", "_")), value
