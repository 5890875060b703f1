"""Casts of a narrow training precision: what the linear layers read is converted first, by kernels of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator

from mpsim.workload.expansion import Expansion
from mpsim.workload.operators import Operator, OperatorKind, Phase, Split

__all__ = ["Casting", "with_casts"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Casting:
    """How tensors become narrow.

    Parameters
    ----------
    element_bytes : float
        Of a narrow element, its share of the scales included [B].
    passes : float
        Times that the wide tensor is read, at least 1.
    copies : float
        Narrow tensors written: 2 where the products of the backward pass need a transposed one.
    """

    element_bytes: float
    passes: float
    copies: float

    def moved_bytes(self, elements: float, wide_bytes: float) -> float:
        """Traffic of casting so many elements of `wide_bytes` each [B]."""
        return elements * (self.passes * wide_bytes + self.copies * self.element_bytes)


def with_casts(
    expansion: Expansion,
    casting: Casting,
    *,
    wide_bytes: float,
    wide_operators: Collection[str] = (),
) -> Expansion:
    """Put casts before the linear layers, whose products then read narrow elements.

    Parameters
    ----------
    expansion : Expansion
        In a wide precision.
    casting : Casting
    wide_bytes : float
        Of an element before its cast [B].
    wide_operators : collection of str
        Linear layers that stay wide.

    Notes
    -----
    Forward casts the input of a layer, backward the gradient of its output, each once for the two products that read it. Weights change
    once a step and are cast then, not here. Batched products (unfused attention) stay wide.

    Examples
    --------
    >>> from mpsim.workload import Lowering, expand_layer, model
    >>> layer = expand_layer(model("gpt2-small"), Lowering(), sequences=1, sequence_length=1024)
    >>> cast = with_casts(layer, Casting(element_bytes=1, passes=1, copies=2), wide_bytes=2)
    >>> [one.name for one in cast.forward][:3]
    ['norm1', 'quantise qkv input', 'qkv']
    """

    def cast(operators: Iterable[Operator]) -> tuple[Operator, ...]:
        return tuple(_cast(operators, casting, wide_bytes, wide_operators))

    return dataclasses.replace(
        expansion, forward=cast(expansion.forward), backward=cast(expansion.backward)
    )


def _cast(
    operators: Iterable[Operator], casting: Casting, wide_bytes: float, wide: Collection[str]
) -> Iterator[Operator]:
    for one in operators:
        if not _is_linear(one) or one.name in wide:
            yield one
            continue
        if one.phase is not Phase.WEIGHT_GRADIENT:
            yield _quantise(one, casting, wide_bytes)
        operands = one.batch * (one.m * one.k + one.k * one.n)
        saved = (wide_bytes - casting.element_bytes) * operands
        yield dataclasses.replace(one, bytes=one.bytes - saved, operand_bytes=casting.element_bytes)


def _is_linear(one: Operator) -> bool:
    """Whether it multiplies by weights: projections, and experts with one kernel for all."""
    linear = one.kind is OperatorKind.GEMM and one.split is not Split.TENSOR
    return linear or one.kind is OperatorKind.GROUPED_GEMM


def _quantise(one: Operator, casting: Casting, wide_bytes: float) -> Operator:
    """Cast of what product `one` reads besides the weight: its left operand.

    Between a column and a row layer tensors are divided by tensor parallelism, elsewhere only with sequence parallelism; those of experts as
    experts are.
    """
    forward = one.phase is Phase.FORWARD
    row, column = one.split is Split.ROW, one.split is Split.COLUMN
    inside = Split.TENSOR if (row if forward else column) else Split.SEQUENCE
    return Operator(
        name=f"quantise {one.name} {'input' if forward else 'gradient'}",
        kind=OperatorKind.QUANTISE,
        phase=one.phase,
        split=Split.EXPERT if one.split is Split.EXPERT else inside,
        bytes=casting.moved_bytes(float(one.batch * one.m * one.k), wide_bytes),
    )
