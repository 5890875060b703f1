"""Casting to a narrow format: a memory-bound kernel of its own, and launches of kernels from the host.

Shapes: N kernels. Every array argument may be a float or an array of N.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mpsim.cost.constants import choose_group, constant_groups
from mpsim.cost.formulas import Floats, memory_seconds
from mpsim.errors import HardwareError, nearest
from mpsim.hardware.components import Accelerator

__all__ = ["FORMATS", "format_bytes", "launch_seconds", "quantise_seconds"]

FORMATS = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}  # format: precision of its peak


def format_bytes(narrow: str) -> float:
    """Bytes of an element in a format, scales included (fp8 1, fp8_block 1 + 4/128, nvfp4 1/2 + 1/16)."""
    return constant_groups("kernels")[f"quantise.{_known(narrow)}"].value("element_bytes")


def quantise_seconds(
    elements: ArrayLike, narrow: str, bandwidth: float, *, from_bytes: float = 2.0
) -> Floats:
    """Time of casting a tensor to a narrow format.

    Parameters
    ----------
    elements : float or array
        Of the tensor.
    narrow : str
        One of `FORMATS`.
    bandwidth : float
        Device memory [B/s].
    from_bytes : float
        Bytes of an element before (bf16 2, fp32 4) [B].

    Returns
    -------
    array
        Time [s].

    Notes
    -----
    Each pass is a kernel that starts and reads the tensor; the last one writes it. A scale for the whole tensor (fp8 with dynamic scaling,
    nvfp4's second level) needs a pass for the largest magnitude first; blocks (fp8_block) find theirs on the way.

    Examples
    --------
    >>> float(quantise_seconds(1e9, "fp8_block", 1e12)) < float(quantise_seconds(1e9, "fp8", 1e12))
    True
    """
    groups = constant_groups("kernels")
    group, rules = groups[f"quantise.{_known(narrow)}"], groups["memory_rules"]
    passes, element = group.value("passes"), group.value("element_bytes")
    moved = np.asarray(elements, float) * (passes * from_bytes + element)
    streaming = memory_seconds(moved, bandwidth=bandwidth, fraction=rules.value("norm"))
    result: Floats = passes * rules.value("floor") + streaming
    return result


def launch_seconds(kind: str = "eager", accelerator: Accelerator | None = None) -> float:
    """Time that one kernel costs beyond its work, by the way it is launched.

    Parameters
    ----------
    kind : str
        ``eager`` (host cost of a framework's operator), ``compiled`` (host cost of a compiled kernel), ``graph`` (the smallest kernel
        in the replay of a CUDA graph), ``synchronised`` (host clock around a call and a wait, as some benchmarks take).
    accelerator : Accelerator, optional
        Sets the family of ``graph``.

    Notes
    -----
    Host costs overlap with the work of earlier kernels: a sequence is launch-bound only where its kernels are shorter than them.
    """
    kinds = ("compiled", "eager", "graph", "synchronised")
    if kind not in kinds:
        raise HardwareError(f"launch {kind!r}: {nearest(kind, kinds)}")
    if kind != "graph":
        return constant_groups("kernels")["launch_host"].value(kind)
    name, family = (accelerator.name, accelerator.family) if accelerator else ("*", "*")
    return choose_group("kernels", "launch_graph", name, family).value("graph")


def _known(narrow: str) -> str:
    if narrow not in FORMATS:
        raise HardwareError(f"format {narrow!r}: {nearest(narrow, FORMATS)}")
    return narrow
