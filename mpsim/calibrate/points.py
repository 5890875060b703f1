"""Points: measurements as the operators of our cost models, some of them held out of every fit."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mpsim.measured.records import ELEMENT_BYTES, Measurement
from mpsim.workload import (
    Lowering,
    Operator,
    OperatorKind,
    Phase,
    Role,
    Split,
    make_attention,
    make_elementwise,
    make_gemm,
)
from mpsim.workload.builders import streaming

__all__ = ["Point", "hold_out", "kernel_points"]

_WIDE_RESULT = 2.0  # an 8-bit product is written in 16 bits
_PHASES = {
    "forward": Phase.FORWARD,
    "dgrad": Phase.INPUT_GRADIENT,
    "wgrad": Phase.WEIGHT_GRADIENT,
    "backward": Phase.INPUT_GRADIENT,
}
_ROWS: Mapping[str, str] = MappingProxyType(
    {
        "layer_norm": "norm",
        "gelu": "activation",
        "add": "residual_add",
        "dropout": "dropout",
        "softmax": "softmax",
    }
)
_HOLD_ONE_OF = 5
_FEWEST = 4  # points of a series before one is held out


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One time, and what it is of.

    Parameters
    ----------
    series : str
        Points that differ in size alone.
    operator : Operator or None
        As our models time it; None for an optimizer step, a copy or a collective.
    size : float
        What the series is ordered by.
    seconds : float
        Lower quartile of the samples [s]: what else runs on a machine only ever makes it slower.
    noise : float
        Relative spread of the samples.
    phase : str
        ``burst`` or ``sustained``.
    ranks, domains : int
        Of a collective's group.
    held_out : bool
        Kept from every fit, to say how good it is.
    samples : int
        Count of them, over all ranks.
    backend : str
        Of attention: whose kernel it was.
    """

    id: str
    series: str
    operator: Operator | None
    size: float
    seconds: float
    noise: float
    precision: str
    phase: str
    ranks: int = 1
    domains: int = 1
    held_out: bool = False
    samples: int = 1
    backend: str = ""

    @classmethod
    def of(cls, measurement: Measurement, series: str, size: float, **more: Any) -> Point:
        """The point of a measurement; `more` are fields that it has beside, or otherwise."""
        fields: dict[str, Any] = {
            "operator": None,
            "seconds": measurement.time,
            "noise": measurement.noise,
            "precision": measurement.precision,
            "phase": measurement.phase,
            "samples": len(measurement.samples),
        }
        return cls(measurement.id, series, size=size, **{**fields, **more})


def kernel_points(measurements: Iterable[Measurement]) -> list[Point]:
    """Every kernel that has a place in our cost models, with some held out."""
    points = []
    for measurement in measurements:
        operator = _operator(measurement)
        if operator is None and measurement.op not in ("adam", "copy", "launch"):
            continue
        words = ",".join(f"{key}={value}" for key, value in sorted(measurement.variant.items()))
        size = operator.flops or operator.bytes if operator else measurement.bytes
        series = f"{measurement.op}/{words}/{measurement.dtype}/{measurement.phase}"
        backend = _backend(measurement) if measurement.op == "attention" else ""
        points.append(Point.of(measurement, series, size, operator=operator, backend=backend))
    return hold_out(points)


def hold_out(points: Sequence[Point]) -> list[Point]:
    """Mark one in five of every series, never its ends; which ones depends on their names alone."""
    series: dict[str, list[Point]] = {}
    for point in points:
        series.setdefault(point.series, []).append(point)
    held = set()
    for name, group in series.items():
        inner = sorted(group, key=lambda point: (point.size, point.id))[1:-1]
        if len(group) >= _FEWEST:
            first = zlib.crc32(name.encode()) % min(_HOLD_ONE_OF, len(inner))
            held |= {point.id for point in inner[first::_HOLD_ONE_OF]}
    return [dataclasses.replace(point, held_out=point.id in held) for point in points]


def _operator(measurement: Measurement) -> Operator | None:
    make = _MAKERS.get(measurement.op)
    return make(measurement) if make else None


def _gemm(measurement: Measurement) -> Operator:
    m, n, k = (measurement.shape[name] for name in "mnk")
    batch = measurement.shape.get("batch", 1)
    element = ELEMENT_BYTES.get(measurement.precision, _WIDE_RESULT)
    return make_gemm(
        Role.KERNEL,
        _PHASES[str(measurement.variant.get("pass", "forward"))],
        m=m,
        n=n,
        k=k,
        batch=batch,
        element_bytes=element,
        result_bytes=max(element, _WIDE_RESULT),
    )


def _attention(measurement: Measurement) -> Operator | None:
    if _backend(measurement) not in ("flash", "cudnn"):
        return None
    batch, heads, sequence, width = (
        measurement.shape[name] for name in ("batch", "heads", "sequence", "head_dim")
    )
    forward = make_attention(
        Phase.FORWARD,
        sequences=batch,
        queries=sequence,
        keys=sequence,
        heads=heads,
        kv_heads=measurement.shape.get("kv_heads", heads),
        head_dim=width,
        causal=bool(measurement.variant.get("causal", True)),
    )
    # points of both passes are compared by the FLOPs of forward
    return dataclasses.replace(
        forward, phase=_PHASES[str(measurement.variant.get("pass", "forward"))]
    )


def _backend(measurement: Measurement) -> str:
    return str(measurement.variant.get("backend", "flash"))


def _lowering(measurement: Measurement) -> Lowering:
    element = int(ELEMENT_BYTES.get(measurement.precision, _WIDE_RESULT))
    return Lowering(activation_bytes=element, weight_grad_bytes=element)


def _row(measurement: Measurement) -> Operator:
    """A kernel over (tokens, features), counted as a layer counts it."""
    step = streaming(
        _ROWS[measurement.op],
        Split.NONE,
        elements=measurement.shape["tokens"] * measurement.shape["features"],
        lowering=_lowering(measurement),
    )
    return _of_pass(measurement, step.forward, step.backward[0])


def _gate(measurement: Measurement) -> Operator:
    """The two kernels of an unfused gated activation as one."""
    elements, lowering = (
        measurement.shape["tokens"] * measurement.shape["features"],
        _lowering(measurement),
    )
    parts = [
        streaming(name, Split.NONE, elements=elements, lowering=lowering)
        for name in ("gate", "gate_times_up")
    ]
    forward = dataclasses.replace(parts[0].forward, bytes=sum(p.forward.bytes for p in parts))
    backward = dataclasses.replace(
        parts[0].backward[0], bytes=sum(p.backward[0].bytes for p in parts)
    )
    return _of_pass(measurement, forward, backward)


def _embedding(measurement: Measurement) -> Operator:
    element = ELEMENT_BYTES.get(measurement.precision, _WIDE_RESULT)
    moved = element * measurement.shape["tokens"] * measurement.shape["features"]
    forward = make_elementwise(
        Role.EMBEDDING, Phase.FORWARD, moved=2 * moved, kind=OperatorKind.EMBEDDING
    )
    backward = dataclasses.replace(forward, phase=Phase.WEIGHT_GRADIENT, bytes=3 * moved)
    return _of_pass(measurement, forward, backward)


def _loss(measurement: Measurement) -> Operator:
    logits = float(measurement.shape["tokens"] * measurement.shape["vocabulary"])
    moved = Lowering().loss_bytes_per_logit / 2 * logits
    forward = make_elementwise(Role.LOSS, Phase.FORWARD, moved=moved, kind=OperatorKind.LOSS)
    return _of_pass(measurement, forward, dataclasses.replace(forward, phase=Phase.INPUT_GRADIENT))


def _of_pass(measurement: Measurement, forward: Operator, backward: Operator) -> Operator:
    return backward if measurement.variant.get("pass") == "backward" else forward


_MAKERS: Mapping[str, Callable[[Measurement], Operator | None]] = MappingProxyType(
    {
        "gemm": _gemm,
        "attention": _attention,
        **dict.fromkeys(_ROWS, _row),
        "silu_mul": _gate,
        "embedding": _embedding,
        "cross_entropy": _loss,
    }
)
