"""Costs of a host beside kernels: of a whole layer over its kernels, and of a launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.calibrate.parts import Fit, score, unknown
from mpsim.calibrate.points import Point, hold_out
from mpsim.calibrate.robust import fit_robust
from mpsim.cost import KernelModel
from mpsim.framework import Framework, framework
from mpsim.hardware import Accelerator
from mpsim.measured.records import Measurement
from mpsim.units import Dimension, format_quantity
from mpsim.workload import Expansion, OperatorKind, Transformer, expand_layer

Floats = NDArray[np.float64]
_EAGER = (OperatorKind.NORM, OperatorKind.SOFTMAX, OperatorKind.ELEMENTWISE)
_PRESET = "torch-ddp"  # eager PyTorch: counts of launches of a layer
_FEWEST = 4
_MEMORY = "kernels.gemm.memory_fraction"
# times the largest share of the memory rate: what is left of the memory's time is nothing
_CACHE = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWork:
    """One measured pass of a layer, and what its kernels take by the fitted constants."""

    point: Point
    # streams, others: time of norm, softmax and elementwise kernels, and of all the rest [s]
    streams: float
    others: float
    launches: int  # kernels that the pass launches


def layer_works(measurements: Iterable[Measurement], chip: Accelerator) -> list[LayerWork]:
    """Every measured pass of a whole layer on one rank.

    A layer that is run again and again alone finds its weights in a cache, which in a training step
    hold other layers by then: its products are timed without the memory. One that is measured
    within a stack of layers is timed as in a step.
    """
    works = []
    cached = _cached(chip)
    for measurement in measurements:
        if measurement.op != "transformer_layer" or measurement.phase != "burst":
            continue
        precision, way = measurement.precision, measurement.variant.get("pass")
        if precision not in chip.peak_flops:
            continue
        software = framework(_PRESET).in_precision(precision)
        layer, host = _expanded(measurement, software), software.host
        operators, launches = layer.backward, host.layer_launches_backward
        if way == "forward":
            operators, launches = layer.forward, host.layer_launches_forward
        where = chip if measurement.shape.get("layers", 1) > 1 else cached
        times = KernelModel(where, precision, clocks="sustained").seconds(operators)
        eager = np.array([o.kind in _EAGER for o in operators])
        point = Point.of(measurement, f"layer/{way}", measurement.flops)
        streams, others = float(times[eager].sum()), float(times[~eager].sum())
        works.append(LayerWork(point, streams, others, launches))
    points = hold_out([work.point for work in works])
    return [
        dataclasses.replace(work, point=point) for work, point in zip(works, points, strict=True)
    ]


def _cached(chip: Accelerator) -> Accelerator:
    """The chip as if the operands of its products came from a cache."""
    known = chip.calibration
    if known is None or _MEMORY not in known.constants:
        return chip
    most = unknown("memory_fraction").high * _CACHE
    fast = dataclasses.replace(known.constants[_MEMORY], value=most)
    changed = dataclasses.replace(known, constants={**known.constants, _MEMORY: fast})
    return dataclasses.replace(chip, calibration=changed)


def _expanded(measurement: Measurement, software: Framework) -> Expansion:
    hidden, heads = measurement.shape["hidden"], measurement.shape["heads"]
    model = Transformer(
        name="layer",
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn_hidden=measurement.shape["ffn_hidden"],
        vocab=1,
    )
    return expand_layer(
        model,
        software.lowering,
        sequences=measurement.shape["micro_batch"],
        sequence_length=measurement.shape["sequence"],
    )


def fit_host(works: Sequence[LayerWork]) -> Fit:
    """Time of a call, and of memory-bound kernels over those measured alone, on a CPU.

    A layer's pass takes ``factor * streams + others + calls * cost``: kernels in a layer find their
    data in caches, or do not, and autograd and the interpreter add to each call.
    """
    if len(works) < _FEWEST:
        few = "too few layers were measured: what the host adds to kernels is taken as nothing"
        return Fit(warnings=(few,))
    train = [work for work in works if not work.point.held_out]
    call, factor = fit_robust(
        lambda x: _times(train, x),
        [unknown("host_call"), unknown("memory_kernel_factor")],
        np.array([work.point.seconds for work in train]),
    )
    predicted = _times(works, np.array([call.value, factor.value]))
    fields = {
        "launch_cost": format_quantity(call.value, Dimension.TIME, digits=4),
        "memory_kernel_factor": float(f"{factor.value:.4g}"),
    }
    named = {"the cost of a call": call, "the factor of memory-bound kernels": factor}
    warnings = tuple(
        f"{name} of a layer is at the bound of its fit ({estimate.value:.3g}): kernels alone do not"
        " explain a layer"
        for name, estimate in named.items()
        if estimate.at_bound and estimate.value > 1.0
    )
    scored = score("layers", "constants", [work.point for work in works], predicted)
    return Fit(framework=fields, scores=(scored,), warnings=warnings)


def _times(works: Sequence[LayerWork], values: Floats) -> Floats:
    call, factor = (float(x) for x in values)
    return np.array([factor * work.streams + work.others + call * work.launches for work in works])
