"""Device memory of a compiled module: its arguments, and the most it keeps besides.

Buffers live from the instruction that writes them to the last one that reads them, in the order of
the text. Tuples, bitcasts, loops and updates in place are other names of what they take. XLA packs
buffers into one arena, which loses little; what libraries allocate is not in the text.

References
----------
openxla/xla, ``buffer_assignment.cc``, ``hlo_dataflow_analysis.cc`` (which share a buffer).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mpsim.formats.hlo.text import Instruction, Module, device_bytes

_ALIASES: Final = frozenset(
    "bitcast tuple get-tuple-element while opt-barrier add-dependency dynamic-update-slice"
    " copy-done slice-done all-reduce-done all-gather-done collective-permute-done"
    " reduce-scatter-done all-to-all-done async-done async-update".split()
)
_DEEPEST: Final = 64


def device_memory(module: Module) -> dict[str, float]:
    """Bytes of arguments, results and temporaries of one device at a module's fullest moment.

    Returns dict of str to float: ``arguments``, ``results`` (those that take no argument's place),
    ``temporaries`` and their ``total`` [B].
    """
    arguments = sum(
        device_bytes(line.type) for line in module.lines(module.entry) if line.kind == "parameter"
    )
    root = module.root(module.entry)
    results = float(device_bytes(root.type)) if root is not None else 0.0
    temporaries = max(0.0, _peak(module, module.entry, {}, 0) - results)
    return {
        "arguments": float(arguments),
        "results": results,
        "temporaries": temporaries,
        "total": arguments + results + temporaries,
    }


def _peak(module: Module, computation: str, known: dict[str, float], depth: int) -> float:
    """Most bytes that a computation keeps at once, without its parameters."""
    if computation in known or depth > _DEEPEST:
        return known.get(computation, 0.0)
    known[computation] = 0.0  # of one that calls itself, which no module does
    lines = list(module.lines(computation))
    owners, last = _lives(module, computation, lines)
    freed: dict[int, float] = {}
    now = most = 0.0
    for number, line in enumerate(lines):
        if owners[line.name] == (line.name,) and line.kind not in ("parameter", "constant"):
            size = _own_bytes(module, computation, line)
            now += size
            freed[last[line.name]] = freed.get(last[line.name], 0.0) + size
        inside = (_inside(module, line, name, known, depth) for name in module.called(line))
        most = max(most, now + max(inside, default=0.0))
        now -= freed.pop(number, 0.0)
    known[computation] = most
    return most


def _lives(
    module: Module, computation: str, lines: Sequence[Instruction]
) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """Buffers of each result, and the last line that reads each; what is returned outlives all."""
    owners: dict[str, tuple[str, ...]] = {}
    last: dict[str, int] = {}
    for number, line in enumerate(lines):
        read = [owner for name, _ in line.operands for owner in owners.get(name, ())]
        owners[line.name] = _owners(module, line, owners)
        last.update(dict.fromkeys((*read, *owners[line.name]), number))
    if lines:
        root = module.roots.get(computation, lines[-1].name)
        last.update(dict.fromkeys(owners.get(root, ()), len(lines)))
    return owners, last


def _own_bytes(module: Module, computation: str, line: Instruction) -> float:
    """Bytes of a result of its own; a start's type lists what it reads too (not all-reduce's)."""
    size = device_bytes(line.type)
    if line.kind.endswith("-start") and line.kind not in ("all-reduce-start", "async-start"):
        size -= sum(module.device_operands(computation, line))
    return float(max(0, size))


def _inside(
    module: Module, line: Instruction, name: str, known: dict[str, float], depth: int
) -> float:
    """Bytes that a called computation keeps beyond its result; a fusion keeps nothing."""
    if line.kind in ("fusion", "custom-call", "async-start"):
        return 0.0
    peak = _peak(module, name, known, depth + 1)
    return peak if line.kind == "while" else max(0.0, peak - device_bytes(line.type))


def _owners(
    module: Module, line: Instruction, owners: dict[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Instructions whose buffers a result lies in: its own, or those of what it renames."""
    taken: list[str] = []
    if line.kind in _ALIASES:
        operands = line.operands if line.kind == "tuple" else line.operands[:1]
        for name, _ in operands:
            taken += owners.get(name, ())
        return tuple(dict.fromkeys(taken))
    if line.kind == "fusion" and (place := _updated(module, line)) is not None:
        return owners.get(line.operands[place][0], (line.name,))
    return (line.name,)


def _updated(module: Module, line: Instruction) -> int | None:
    """Which operand a fusion updates in place, if its result is such an update."""
    called = next(iter(module.called(line)), "")
    lines = module.computations.get(called, {})
    root = module.root(called)
    if root is None or root.kind != "dynamic-update-slice" or not root.operands:
        return None
    target = lines.get(root.operands[0][0])
    while target is not None and target.kind == "bitcast" and target.operands:
        target = lines.get(target.operands[0][0])
    place = None if target is None else target.number
    return place if place is not None and place < len(line.operands) else None
