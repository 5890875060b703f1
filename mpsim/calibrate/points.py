"""Points: measurements as the operators of our cost models, some of them held out of every fit."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from mpsim.measured.records import ELEMENT_BYTES, Measurement
from mpsim.workload import Lowering, Operator, OperatorKind, Phase, Split
from mpsim.workload.kernels import streaming

__all__ = [
    "Point",
    "hold_out",
    "kernel_points",
]

_WIDE_RESULT = 2.0  # an 8-bit product is written in 16 bits
_PHASES = {
    "forward": Phase.FORWARD,
    "dgrad": Phase.INPUT_GRADIENT,
    "wgrad": Phase.WEIGHT_GRADIENT,
    "backward": Phase.INPUT_GRADIENT,
}
_ROWS: Mapping[str, tuple[str, OperatorKind]] = MappingProxyType(
    {
        "layer_norm": ("norm", OperatorKind.NORM),
        "gelu": ("activation", OperatorKind.ELEMENTWISE),
        "add": ("residual_add", OperatorKind.ELEMENTWISE),
        "dropout": ("dropout", OperatorKind.ELEMENTWISE),
        "softmax": ("softmax", OperatorKind.SOFTMAX),
    }
)
_HOLD_ONE_OF = 5
_FEWEST = 4  # points of a series before one is held out


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One time, and what it is of.

    Parameters
    ----------
    id : str
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
    precision : str
    phase : str
        ``burst`` or ``sustained``.
    ranks, domains : int
        Of a collective's group.
    held_out : bool
        Kept from every fit, to say how good it is.
    samples : int
        How many there are, over all ranks.
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


def kernel_points(measurements: Iterable[Measurement]) -> list[Point]:
    """Every kernel that has a place in our cost models, with some held out."""
    points = []
    for one in measurements:
        operator = _operator(one)
        if operator is None and one.op not in ("adam", "copy", "launch"):
            continue
        words = ",".join(f"{key}={value}" for key, value in sorted(one.variant.items()))
        size = operator.flops or operator.bytes if operator else one.bytes
        points.append(
            Point(
                id=one.id,
                series=f"{one.op}/{words}/{one.dtype}/{one.phase}",
                operator=operator,
                size=size,
                seconds=one.time,
                noise=one.noise,
                precision=one.precision,
                phase=one.phase,
                samples=len(one.samples),
            )
        )
    return hold_out(points)


def hold_out(points: Sequence[Point]) -> list[Point]:
    """Mark one in five of every series, never its ends; which ones depends on their names alone."""
    series: dict[str, list[Point]] = {}
    for one in points:
        series.setdefault(one.series, []).append(one)
    held = set()
    for name, group in series.items():
        inner = sorted(group, key=lambda one: (one.size, one.id))[1:-1]
        if len(group) >= _FEWEST:
            first = zlib.crc32(name.encode()) % min(_HOLD_ONE_OF, len(inner))
            held |= {one.id for one in inner[first::_HOLD_ONE_OF]}
    return [dataclasses.replace(one, held_out=one.id in held) for one in points]


def _operator(one: Measurement) -> Operator | None:
    make = _MAKERS.get(one.op)
    return make(one) if make else None


def _gemm(one: Measurement) -> Operator:
    m, n, k = (one.shape[name] for name in "mnk")
    batch = one.shape.get("batch", 1)
    element = ELEMENT_BYTES.get(one.precision, _WIDE_RESULT)
    written = max(element, _WIDE_RESULT)
    return Operator(
        name="gemm",
        kind=OperatorKind.GEMM,
        phase=_PHASES[str(one.variant.get("pass", "forward"))],
        m=m,
        n=n,
        k=k,
        batch=batch,
        flops=2.0 * batch * m * n * k,
        bytes=batch * (element * (m * k + k * n) + written * m * n),
    )


def _attention(one: Measurement) -> Operator | None:
    if one.variant.get("backend", "flash") not in ("flash", "cudnn"):
        return None
    batch, heads, sequence, width = (
        one.shape[name] for name in ("batch", "heads", "sequence", "head_dim")
    )
    return Operator(
        name=str(one.variant.get("backend", "flash")),
        kind=OperatorKind.ATTENTION,
        phase=_PHASES[str(one.variant.get("pass", "forward"))],
        heads=heads,
        kv_heads=one.shape.get("kv_heads", heads),
        head_dim=width,
        head_dim_v=width,
        queries=sequence,
        keys=sequence,
        sequences=batch,
        causal=bool(one.variant.get("causal", True)),
        flops=4.0 * batch * heads * math.pow(sequence, 2) * width,
    )


def _lowering(one: Measurement) -> Lowering:
    element = int(ELEMENT_BYTES.get(one.precision, _WIDE_RESULT))
    return Lowering(activation_bytes=element, weight_grad_bytes=element)


def _row(one: Measurement) -> Operator:
    """A kernel over (tokens, features), counted as a layer counts it."""
    name, kind = _ROWS[one.op]
    step = streaming(
        name,
        name,
        Split.NONE,
        elements=one.shape["tokens"] * one.shape["features"],
        lowering=_lowering(one),
        kind=kind,
    )
    return _of_pass(one, step.forward, step.backward[0])


def _gate(one: Measurement) -> Operator:
    """The two kernels of an unfused gated activation as one."""
    elements, lowering = one.shape["tokens"] * one.shape["features"], _lowering(one)
    parts = [
        streaming(name, name, Split.NONE, elements=elements, lowering=lowering)
        for name in ("gate", "gate_times_up")
    ]
    forward = dataclasses.replace(parts[0].forward, bytes=sum(p.forward.bytes for p in parts))
    backward = dataclasses.replace(
        parts[0].backward[0], bytes=sum(p.backward[0].bytes for p in parts)
    )
    return _of_pass(one, forward, backward)


def _embedding(one: Measurement) -> Operator:
    element = ELEMENT_BYTES.get(one.precision, _WIDE_RESULT)
    moved = element * one.shape["tokens"] * one.shape["features"]
    forward = Operator(
        name="embedding", kind=OperatorKind.EMBEDDING, phase=Phase.FORWARD, bytes=2 * moved
    )
    backward = dataclasses.replace(forward, phase=Phase.WEIGHT_GRADIENT, bytes=3 * moved)
    return _of_pass(one, forward, backward)


def _loss(one: Measurement) -> Operator:
    logits = float(one.shape["tokens"] * one.shape["vocabulary"])
    moved = Lowering().loss_bytes_per_logit / 2 * logits
    forward = Operator(name="loss", kind=OperatorKind.LOSS, phase=Phase.FORWARD, bytes=moved)
    return _of_pass(one, forward, dataclasses.replace(forward, phase=Phase.INPUT_GRADIENT))


def _of_pass(one: Measurement, forward: Operator, backward: Operator) -> Operator:
    return backward if one.variant.get("pass") == "backward" else forward


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
