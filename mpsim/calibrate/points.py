"""Points: measurements as the operators of our cost models, some of them held out of every fit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from mpsim import structs
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

_WIDE_RESULT = 2.0  # an 8-bit product is written in 16 bits
_PHASES = {
    "forward": Phase.FORWARD,
    "dgrad": Phase.INPUT_GRADIENT,
    "wgrad": Phase.WEIGHT_GRADIENT,
    "backward": Phase.INPUT_GRADIENT,
}
_ROWS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "layer_norm": ("norm",),
        "gelu": ("activation",),
        "add": ("residual_add",),
        "dropout": ("dropout",),
        "softmax": ("softmax",),
        "silu_mul": ("gate", "gate_times_up"),
    }
)
_HOLD_ONE_OF = 5
_FEWEST = 4  # points of a series before one is held out


@structs.dataclass(frozen=True, slots=True)
class Point:
    """One time, and what it is of."""

    id: str
    series: str  # points that differ in size alone
    # as our models time it; None for an optimizer step, a copy or a collective
    operator: Operator | None
    size: float  # what the series is ordered by
    # lower quartile of the samples [s]: what else runs on a machine only ever makes it slower
    seconds: float
    noise: float  # relative spread of the samples
    precision: str
    phase: str  # ``burst`` or ``sustained``
    ranks: int = 1  # ranks, domains: of a collective's group
    domains: int = 1
    held_out: bool = False  # kept from every fit, to say how good it is
    samples: int = 1  # count of them, over all ranks
    backend: str = ""  # of attention: whose kernel it was

    @classmethod
    def of(
        cls, measurement: Measurement, series: str, size: float, operator: Operator | None = None
    ) -> Point:
        """The point of a measurement."""
        return cls(
            id=measurement.id,
            series=series,
            operator=operator,
            size=size,
            seconds=measurement.time,
            noise=measurement.noise,
            precision=measurement.precision,
            phase=measurement.phase,
            samples=len(measurement.samples),
            backend=_backend(measurement) if measurement.op == "attention" else "",
        )


def kernel_points(measurements: Iterable[Measurement]) -> list[Point]:
    """Every kernel that has a place in our cost models, with some held out."""
    points = []
    for measurement in measurements:
        make = _MAKERS.get(measurement.op)
        operator = make(measurement) if make else None
        if operator is None and measurement.op not in ("adam", "copy", "launch"):
            continue
        words = ",".join(f"{key}={value}" for key, value in sorted(measurement.variant.items()))
        size = operator.flops or operator.bytes if operator else measurement.bytes
        series = f"{measurement.op}/{words}/{measurement.dtype}/{measurement.phase}"
        points.append(Point.of(measurement, series, size, operator))
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
    return [structs.replace(point, held_out=point.id in held) for point in points]


def _phase(measurement: Measurement) -> Phase:
    return _PHASES[str(measurement.variant.get("pass", "forward"))]


def _element(measurement: Measurement) -> float:
    return ELEMENT_BYTES.get(measurement.precision, _WIDE_RESULT)


def _gemm(measurement: Measurement) -> Operator:
    element, shape = _element(measurement), measurement.shape
    return make_gemm(
        Role.KERNEL,
        _phase(measurement),
        m=shape["m"],
        n=shape["n"],
        k=shape["k"],
        batch=shape.get("batch", 1),
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
    return structs.replace(forward, phase=_phase(measurement))


def _backend(measurement: Measurement) -> str:
    return str(measurement.variant.get("backend", "flash"))


def _rows(measurement: Measurement) -> Operator:
    """A kernel over (tokens, features) as layers count it; an unfused gated activation has two."""
    element = int(_element(measurement))
    kernels = [
        streaming(
            name,
            Split.NONE,
            elements=measurement.shape["tokens"] * measurement.shape["features"],
            lowering=Lowering(activation_bytes=element, weight_grad_bytes=element),
        )
        for name in _ROWS[measurement.op]
    ]
    passes = [_of_pass(measurement, kernel.forward, kernel.backward[0]) for kernel in kernels]
    return structs.replace(passes[0], bytes=sum(operator.bytes for operator in passes))


def _embedding(measurement: Measurement) -> Operator:
    moved = _element(measurement) * measurement.shape["tokens"] * measurement.shape["features"]
    forward = make_elementwise(
        Role.EMBEDDING, Phase.FORWARD, moved=2 * moved, kind=OperatorKind.EMBEDDING
    )
    backward = structs.replace(forward, phase=Phase.WEIGHT_GRADIENT, bytes=3 * moved)
    return _of_pass(measurement, forward, backward)


def _loss(measurement: Measurement) -> Operator:
    logits = float(measurement.shape["tokens"] * measurement.shape["vocabulary"])
    moved = Lowering().loss_bytes_per_logit / 2 * logits
    forward = make_elementwise(Role.LOSS, Phase.FORWARD, moved=moved, kind=OperatorKind.LOSS)
    return _of_pass(measurement, forward, structs.replace(forward, phase=Phase.INPUT_GRADIENT))


def _of_pass(measurement: Measurement, forward: Operator, backward: Operator) -> Operator:
    return backward if measurement.variant.get("pass") == "backward" else forward


_MAKERS: Mapping[str, Callable[[Measurement], Operator | None]] = MappingProxyType(
    {
        "gemm": _gemm,
        "attention": _attention,
        **dict.fromkeys(_ROWS, _rows),
        "embedding": _embedding,
        "cross_entropy": _loss,
    }
)
