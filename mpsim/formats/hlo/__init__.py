"""XLA's HLO text: which files are it, what a module states, and its program on a cluster.

A module states the FLOPs of the products of one device with the trips of its loops, and its
collectives with their bytes and groups. Parts: `text` takes the text apart, `groups` reads groups,
`work` and `memory` say what an instruction does and what the module keeps, `program` what it costs.

References
----------
openxla/xla; text of jax 0.10.2 for CPU, H100 and TPU v5e, and of tensorflow 2.21.0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mpsim.errors import FormatError
from mpsim.formats.hlo.text import Instruction, Module, groups_of, parse_module
from mpsim.formats.hlo.work import product_of, work_of
from mpsim.formats.imported import Recorded
from mpsim.formats.source import Format, Head, Options, read_text
from mpsim.shipped import say

__all__ = ["HLO", "facts_of", "read_module"]

LARGEST: Final = 200_000_000
_BEGINS: Final = re.compile(r"^HloModule\s", re.MULTILINE)


def read_module(path: Path) -> Module:
    """Read the text of a compiled module, packed or not. FormatError if it is cut, has no entry, or
    is a module from before partitioning; CalibrationError if it is no text.
    """
    text = read_text(path, needed="HLO text", largest=LARGEST)
    if re.search(r"^[ \t]*(module @|func\.func|stablehlo\.)", text[:10_000], re.MULTILINE):
        raise FormatError(say("formats.before_partitioning", path=path))
    start = _BEGINS.search(text)
    return parse_module(text[start.start() :] if start else text, str(path))


def _read_facts(head: Head, options: Options) -> Recorded:
    """Read what a compiled module states, and the program it is where a cluster is named.
    FormatError if it is cut, has no entry, or groups in no known spelling.
    """
    module = read_module(head.path)
    if options.cluster is None:
        return facts_of(module, head.path)
    from mpsim.formats.execution import sized_cluster
    from mpsim.formats.hlo.program import hlo_program  # engines and cost models

    return hlo_program(module, sized_cluster(options.cluster, module.devices), head.path)


def facts_of(module: Module, path: Path) -> Recorded:
    """Facts of a compiled module: FLOPs of a device, collectives. FormatError: unknown spelling."""
    flops, collectives, warnings = 0, [], dict[str, None]()
    carried: dict[str, bool] = {}  # long computations hold many collectives
    for computation, line, times in module.walk():
        product = product_of(module, computation, line)
        flops += product.flops * times if product is not None else 0
        if line.collective:
            if computation not in carried:
                carried[computation] = module.carries_on(computation)
            if not carried[computation]:
                collectives.append(_collective(module, computation, line, times, str(path)))
        elif line.kind == "while" and not module.states_trips(line) and module.trips(line) == 1:
            warnings[f"loop {line.name}: how often it runs is not known; counted once"] = None
        elif line.kind == "custom-call" and re.search(r'"(__cublas|__cudnn|__onednn)', line.rest):
            flops += work_of(module, computation, line).flops * times
    return Recorded(
        format="hlo",
        tool="XLA HLO text",
        files=(str(path),),
        facts={
            "module": module.name,
            "ranks": module.devices,
            "dot_flops": flops,
            "collectives": collectives,
            "is_scheduled": module.is_scheduled,
        },
        warnings=tuple(warnings),
    )


def _collective(
    module: Module, computation: str, line: Instruction, times: int, file: str
) -> dict[str, object]:
    return {
        "kind": line.collective,
        "times": times,
        "operand_bytes": module.operand_bytes(computation, line),
        "groups": groups_of(line.rest, module.devices, file),
        "op_name": line.operation[:200],
    }


HLO: Final = Format("hlo", lambda head: _BEGINS.search(head.text) is not None, _read_facts)
