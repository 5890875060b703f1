"""Points: measurements as the operators of our cost models, some of them held out of every fit."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

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
                backend=_backend(one) if one.op == "attention" else "",
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
    return make_gemm(
        Role.KERNEL,
        _PHASES[str(one.variant.get("pass", "forward"))],
        m=m,
        n=n,
        k=k,
        batch=batch,
        element_bytes=element,
        result_bytes=max(element, _WIDE_RESULT),
    )


def _attention(one: Measurement) -> Operator | None:
    if _backend(one) not in ("flash", "cudnn"):
        return None
    batch, heads, sequence, width = (
        one.shape[name] for name in ("batch", "heads", "sequence", "head_dim")
    )
    forward = make_attention(
        Phase.FORWARD,
        sequences=batch,
        queries=sequence,
        keys=sequence,
        heads=heads,
        kv_heads=one.shape.get("kv_heads", heads),
        head_dim=width,
        causal=bool(one.variant.get("causal", True)),
    )
    # points of both passes are compared by the FLOPs of forward
    return dataclasses.replace(forward, phase=_PHASES[str(one.variant.get("pass", "forward"))])


def _backend(one: Measurement) -> str:
    return str(one.variant.get("backend", "flash"))


def _lowering(one: Measurement) -> Lowering:
    element = int(ELEMENT_BYTES.get(one.precision, _WIDE_RESULT))
    return Lowering(activation_bytes=element, weight_grad_bytes=element)


def _row(one: Measurement) -> Operator:
    """A kernel over (tokens, features), counted as a layer counts it."""
    step = streaming(
        _ROWS[one.op],
        Split.NONE,
        elements=one.shape["tokens"] * one.shape["features"],
        lowering=_lowering(one),
    )
    return _of_pass(one, step.forward, step.backward[0])


def _gate(one: Measurement) -> Operator:
    """The two kernels of an unfused gated activation as one."""
    elements, lowering = one.shape["tokens"] * one.shape["features"], _lowering(one)
    parts = [
        streaming(name, Split.NONE, elements=elements, lowering=lowering)
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
    forward = make_elementwise(
        Role.EMBEDDING, Phase.FORWARD, moved=2 * moved, kind=OperatorKind.EMBEDDING
    )
    backward = dataclasses.replace(forward, phase=Phase.WEIGHT_GRADIENT, bytes=3 * moved)
    return _of_pass(one, forward, backward)


def _loss(one: Measurement) -> Operator:
    logits = float(one.shape["tokens"] * one.shape["vocabulary"])
    moved = Lowering().loss_bytes_per_logit / 2 * logits
    forward = make_elementwise(Role.LOSS, Phase.FORWARD, moved=moved, kind=OperatorKind.LOSS)
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
