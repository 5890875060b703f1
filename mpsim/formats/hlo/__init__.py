"""XLA's HLO text as a format: which files are it, and the program that a module is.

What a module states is in `mpsim.formats.hlo.facts`, what it costs on a cluster in `mpsim.formats.hlo.program`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mpsim.errors import FormatError
from mpsim.formats.hlo.facts import facts_of
from mpsim.formats.hlo.text import Module, parse_module
from mpsim.formats.imported import Recorded, recorded_program
from mpsim.formats.source import Format, Head, Options, read_text

__all__ = ["HLO", "read_module"]

LARGEST: Final = 200_000_000


def _is_module(head: Head) -> bool:
    return re.search(r"^HloModule\s", head.text, re.MULTILINE) is not None


def _is_other(text: str) -> str:
    return (
        "StableHLO or MLIR"
        if re.search(r"^[ \t]*(module @|func\.func|stablehlo\.)", text, re.MULTILINE)
        else ""
    )


def read_module(path: Path) -> Module:
    """Read the text of a compiled module.

    Parameters
    ----------
    path : Path
        Packed or not.

    Raises
    ------
    FormatError
        If it is cut, has no entry, or is a module from before partitioning.
    CalibrationError
        If it is no text.
    """
    text = read_text(path, needed="HLO text", largest=LARGEST)
    if other := _is_other(text[:10_000]):
        raise FormatError(
            f"{path}: is {other}, from before partitioning; needed compiled.as_text(), or *.after_optimizations.txt of --xla_dump_to"
        )
    start = re.search(r"^HloModule\s", text, re.MULTILINE)
    return parse_module(text[start.start() :] if start else text, str(path))


def _read_facts(head: Head, options: Options) -> Recorded:
    """Read what a compiled module states, and the program it is where a cluster is named.

    Raises
    ------
    FormatError
        If it is cut, has no entry, or groups in no known spelling.
    """
    module = read_module(head.path)
    if options.cluster is None:
        return facts_of(module, head.path)
    from mpsim.formats.execution import sized_cluster
    from mpsim.formats.hlo.program import hlo_program  # engines and cost models

    program = hlo_program(module, sized_cluster(options.cluster, module.devices), head.path)
    return recorded_program(program)


HLO: Final = Format("hlo", "HLO text of XLA", "timeline", _is_module, _read_facts)
