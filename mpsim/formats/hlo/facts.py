"""XLA's HLO text: FLOPs of the products of one device with the trips of its loops, and its collectives with their groups.

`mpsim.formats.hlo.text` takes the text apart, `mpsim.formats.hlo.groups` reads groups; here is what a module states. What it costs on a cluster is in
`mpsim.formats.hlo.program`.

References
----------
openxla/xla; text of jax 0.10.2 for CPU, H100 and TPU v5e, and of tensorflow 2.21.0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mpsim.formats.hlo.groups import groups_of
from mpsim.formats.hlo.text import Instruction, Module, type_bytes
from mpsim.formats.hlo.work import product_of, work_of
from mpsim.formats.imported import Recorded

__all__ = ["COLLECTIVES", "facts_of"]

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
