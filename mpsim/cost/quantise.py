"""Casting to a narrow format: a memory-bound kernel of its own, and launches of the host.

Shapes: N kernels. Every array argument may be a float or an array of N.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from mpsim.arrays import Floats
from mpsim.cost.constants import ConstantGroup, choose_group, constant_groups
from mpsim.cost.formulas import memory_seconds
from mpsim.errors import HardwareError, nearest
from mpsim.hardware.components import SCALED_FORMATS, Accelerator
from mpsim.workload.casts import Casting

Use = Callable[[ConstantGroup, str], float]
FORMATS = {"fp8": "fp8", **SCALED_FORMATS}  # format: precision of its peak


def format_bytes(narrow: str) -> float:
    """Bytes of an element with scales (fp8 1, fp8_block 1 + 4/128, mxfp8 1 + 1/32, nvfp4 9/16)."""
    return constant_groups("kernels")[f"quantise.{_known(narrow)}"].value("element_bytes")


def quantise_seconds(
    elements: ArrayLike, narrow: str, bandwidth: float, *, from_bytes: float = 2.0
) -> Floats:
    """Time of casting a tensor to a narrow format.

    `elements`: of the tensor. `narrow`: one of `FORMATS`. `bandwidth`: device memory [B/s].
    `from_bytes`: bytes of an element before (bf16 2, fp32 4) [B].

    Returns: time [s].

    Notes
    -----
    Each pass is a kernel that reads the tensor; the last one writes it. A scale for the whole
    tensor (fp8 with dynamic scaling, nvfp4's second level) needs a pass for the largest magnitude
    first; blocks (fp8_block, mxfp8) find theirs on the way. `kernels` counts the passes and small
    kernels between them (fp8: parts of the maximum, the scale), which have to start.

    Examples
    --------
    >>> float(quantise_seconds(1e9, "fp8_block", 1e12)) < float(quantise_seconds(1e9, "fp8", 1e12))
    True
    """
    groups = constant_groups("kernels")
    group, rules = groups[f"quantise.{_known(narrow)}"], groups["memory_rules"]
    passes, element = group.value("passes"), group.value("element_bytes")
    moved = np.asarray(elements, float) * (passes * from_bytes + element)
    streaming = memory_seconds(moved, bandwidth=bandwidth, fraction=rules.value("quantise"))
    result: Floats = group.value("kernels") * rules.value("floor") + streaming
    return result


def casting(
    precision: str, accelerator: Accelerator, use: Use = ConstantGroup.value
) -> Casting | None:
    """Casts of a step in `precision` on this accelerator; None where nothing is cast. `use`: reads
    a constant of a group; the default does only that, a cost model also records it.

    Notes
    -----
    In training fp8 takes its scale from the steps before (delayed scaling), so one pass is enough.
    A second copy, transposed, is for the products of the backward pass: matrix units before
    Blackwell read fp8 along k only, and a block of elements shares its scale along k. With a scale
    a row what `Phase.WEIGHT_GRADIENT` reads has scales of its own and is cast a second time.
    """
    if precision not in FORMATS and precision != "fp4":
        return None
    narrow = "nvfp4" if precision == "fp4" else precision
    group = constant_groups("kernels")[f"quantise.{narrow}"]
    copies = choose_group("kernels", "transpose", accelerator.kind, accelerator.family)
    leaf = "copies_blocks" if narrow in SCALED_FORMATS else "copies_fp8"
    late = use(group, "late_passes") if "late_passes" in group else 0.0
    return Casting(
        element_bytes=use(group, "element_bytes"),
        passes=use(group, "training_passes"),
        copies=1.0 if late else use(copies, leaf),
        late_passes=late,
    )


def launch_seconds(kind: str = "eager", accelerator: Accelerator | None = None) -> float:
    """Time that one kernel costs beyond its work, by the way it is launched.

    `kind`: ``eager`` (host cost of a framework's operator), ``compiled`` (host cost of a compiled
    kernel), ``graph`` (the smallest kernel in the replay of a CUDA graph), ``synchronised`` (host
    clock around a call and a wait, as some benchmarks take). `accelerator`: sets the family of
    ``graph``.

    Notes
    -----
    Host costs overlap with earlier kernels: shorter kernels than these are bound by launches.
    """
    kinds = ("compiled", "eager", "graph", "synchronised")
    if kind not in kinds:
        raise HardwareError(f"launch {kind!r}: {nearest(kind, kinds)}")
    if kind != "graph":
        return constant_groups("kernels")["launch_host"].value(kind)
    name, family = (accelerator.kind, accelerator.family) if accelerator else ("*", "*")
    return choose_group("kernels", "launch_graph", name, family).value("graph")


def _known(narrow: str) -> str:
    if narrow not in FORMATS:
        raise HardwareError(f"format {narrow!r}: {nearest(narrow, FORMATS)}")
    return narrow
