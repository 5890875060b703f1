"""XLA's HLO text: FLOPs of the products of one device with the trips of its loops, and its collectives with their groups.

`mpsim.importers.hlo_text` takes the text apart, `mpsim.importers.hlo_groups` reads groups; here is what a module states. What it costs on a cluster is in
`mpsim.importers.hlo_program`.

References
----------
openxla/xla; text of jax 0.10.2 for CPU, H100 and TPU v5e, and of tensorflow 2.21.0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.importers.hlo_groups import groups_of
from mpsim.importers.hlo_text import Instruction, Module, parse_module, type_bytes
from mpsim.importers.hlo_work import product_of, work_of
from mpsim.importers.imported import Recorded
from mpsim.importers.source import Format, Head, Options, read_text

__all__ = ["COLLECTIVES", "HLO", "facts_of", "read_module"]

LARGEST: Final = 200_000_000
COLLECTIVES: Final = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
"""Opcodes of collectives, without ``-start`` and ``-done``."""


def _is_module(head: Head) -> bool:
    return re.search(r"^HloModule\s", head.text, re.MULTILINE) is not None


def _is_other(text: str) -> str:
    return (
        "StableHLO or MLIR"
        if re.search(r"^\s*(module @|func\.func|stablehlo\.)", text, re.MULTILINE)
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
    from mpsim.importers.execution import sized_cluster
    from mpsim.importers.hlo_program import hlo_program  # engines and cost models

    program = hlo_program(module, sized_cluster(options.cluster, module.devices), head.path)
    return program.recorded()


def facts_of(module: Module, path: Path) -> Recorded:
    """Facts of a compiled module: FLOPs of one device, collectives with bytes and groups.

    Raises
    ------
    FormatError
        If groups are in no known spelling.
    """
    flops, collectives, warnings = 0, [], []
    carried: dict[str, bool] = {}
    for computation, line, times in module.walk():
        product = product_of(module, computation, line)
        flops += product.flops * times if product is not None else 0
        kind = line.kind.removesuffix("-start")
        if kind in COLLECTIVES:
            if computation not in carried:  # long computations hold many collectives
                carried[computation] = module.carries_on(computation)
            if carried[computation]:
                continue
            collectives.append(_collective(module, computation, line, kind, times, str(path)))
        elif line.kind == "while" and not module.states_trips(line) and module.trips(line) == 1:
            warnings.append(f"loop {line.name}: how often it runs is not known; counted once")
        elif line.kind == "custom-call" and re.search(r'"(__cublas|__cudnn|__onednn)', line.rest):
            flops += work_of(module, computation, line).flops * times
    facts = {
        "module": module.name,
        "ranks": module.devices,
        "dot_flops": flops,
        "collectives": collectives,
        "is_scheduled": module.is_scheduled,
    }
    return Recorded(
        format="hlo",
        tool="XLA HLO text",
        files=(str(path),),
        facts=facts,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _collective(
    module: Module, computation: str, line: Instruction, kind: str, times: int, file: str
) -> dict[str, Any]:
    operation = re.search(r'op_name="([^"]{0,200})', line.rest)
    return {
        "kind": kind,
        "times": times,
        "operand_bytes": sum(
            type_bytes(module.operand_type(computation, operand)) for operand in line.operands
        ),
        "groups": groups_of(line.rest, module.devices, file),
        "op_name": operation[1] if operation else "",
    }


HLO: Final = Format("hlo", "HLO text of XLA", "timeline", _is_module, _read_facts)
