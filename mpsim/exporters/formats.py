"""Formats that scenarios and measured points are written in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from mpsim.errors import FormatError, nearest
from mpsim.exporters.deepspeed import export_deepspeed
from mpsim.exporters.megatron import export_megatron
from mpsim.exporters.megatron_yaml import export_bridge, export_nemo
from mpsim.exporters.outgoing import Exported
from mpsim.exporters.torchtitan import export_torchtitan
from mpsim.scenario import Scenario

__all__ = ["WRITERS", "Writer", "export", "writer"]


@dataclasses.dataclass(frozen=True, slots=True)
class Writer:
    """A format that is written.

    Parameters
    ----------
    name : str
        As commands take it; an importer of the same name reads the file.
    title : str
        In words.
    write : callable
        The scenario in that format.
    ending : str
        Usual ending of its files.
    """

    name: str
    title: str
    write: Callable[[Scenario], Exported]
    ending: str


WRITERS: Final = (
    Writer("megatron", "launch script of Megatron-LM", export_megatron, ".sh"),
    Writer("megatron-bridge", "configuration of Megatron-Bridge", export_bridge, ".yaml"),
    Writer("nemo", "configuration of NeMo 2", export_nemo, ".yaml"),
    Writer("torchtitan", "configuration of torchtitan", export_torchtitan, ".toml"),
    Writer("deepspeed", "ds_config of DeepSpeed", export_deepspeed, ".json"),
)
ALIASES: Final[Mapping[str, str]] = {
    "bridge": "megatron-bridge",
    "ds_config": "deepspeed",
}
"""Further names of formats, as for importing."""


def writer(name: str) -> Writer:
    """The format that a name means.

    Raises
    ------
    FormatError
        If there is none.
    """
    word = ALIASES.get(name.lower(), name.lower())
    found = next((item for item in WRITERS if item.name == word), None)
    if found is None:
        names = [*(item.name for item in WRITERS), *ALIASES, "chakra"]
        raise FormatError(f"no format {name[:60]!r} is written; {nearest(name, names)}")
    return found


def export(scenario: Scenario, format: str) -> Exported:  # noqa: A002 - the word of the command line
    """Write a scenario in the words of another tool.

    Parameters
    ----------
    scenario : Scenario
        Of a training step.
    format : str
        Name of the format (see 'mpsim show formats').

    Returns
    -------
    Exported
        The text, and every value that the format cannot hold.

    Raises
    ------
    FormatError
        If the format is unknown, or cannot hold such a model or a service.

    Examples
    --------
    >>> import mpsim
    >>> scenario = mpsim.Scenario.from_mapping({
    ...     "schema": 1, "model": "llama3-8b", "cluster": {"preset": "dgx-h100", "nodes": 1},
    ...     "training": {"global_batch": 8, "sequence_length": 8192}})
    >>> [loss.key for loss in export(scenario, "deepspeed").lost if "." not in loss.key]
    ['model', 'cluster', 'schedule']
    """
    return writer(format).write(scenario)
