"""A scenario as settings of Megatron: what `mpsim.formats` reads from flags and dataclasses, the other way round.

The flags of one version are written: a flag that the version lacks loses its value. Where the version of the scenario's framework lacks one that decides the layout,
the newest version is taken and the framework is told as lost.
"""

from __future__ import annotations

from typing import Final

from mpsim.formats.megatron_flags import newest_tag, preset_of
from mpsim.formats.out_megatron_habits import put_habits
from mpsim.formats.out_megatron_layout import put_layout, put_training
from mpsim.formats.out_megatron_model import put_model
from mpsim.formats.out_megatron_settings import Settings
from mpsim.formats.words import table
from mpsim.framework import framework, framework_aliases
from mpsim.scenario import Scenario

__all__ = ["settings_for", "settings_of"]

NEWEST: Final = "core_v0.19.0"


def settings_of(scenario: Scenario) -> Settings:
    """Flags of the version that the scenario's framework stands for, or of the newest where that lacks what the layout needs.

    Raises
    ------
    FormatError
        If it is no decoder, or serves.
    """
    chosen = framework_aliases().get(scenario.framework.preset, scenario.framework.preset)
    own = NEWEST if chosen == "megatron-fsdp" else newest_tag(chosen)
    eras = [newest_tag(preset) for _, preset in table("mpsim.formats.data", "megatron")["eras"]]
    later = eras[eras.index(own) :] if own in eras else [NEWEST]
    tried = [
        _filled(Settings(scenario, tag, preset_of(tag), is_dataclass=False))
        for tag in dict.fromkeys((*later, NEWEST))
        if tag is not None
    ]
    return min(tried, key=_structural)


def settings_for(scenario: Scenario, preset: str, tag: str = NEWEST) -> Settings:
    """Fields of the dataclasses of Megatron-Core of a version, for a tool with this framework preset."""
    return _filled(Settings(scenario, tag, preset, is_dataclass=True))


def _structural(settings: Settings) -> int:
    """Losses that change the layout or the model; the framework's preset is none."""
    return sum(not key.startswith("framework") for key in settings.out.losses)


def _filled(s: Settings) -> Settings:
    """The settings with everything that the scenario says."""
    put_model(s)
    put_layout(s)
    put_training(s)
    fsdp = s.given.get("use-megatron-fsdp") and s.since("core_v0.14.0")
    if fsdp and s.value("parallelism.zero") == 3:
        s.preset = "megatron-fsdp"
    usual = framework(s.preset, {}).fields()
    put_habits(s, {key: getattr(value, "value", value) for key, value in usual.items()})
    s.out.behave(s.preset, s.changes, tool=f"Megatron-LM {s.tag}")
    return s
