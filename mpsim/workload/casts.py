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
    late_passes : float
        Times that the wide tensor is read once more for what the weight gradient multiplies, where that has scales of its own and is cast
        in the backward pass (one a column beside one a row); 0 where the first cast serves both.
    """

    element_bytes: float
    passes: float
    copies: float
    late_passes: float = 0.0

    def moved_bytes(self, elements: float, wide_bytes: float) -> float:
        """Traffic of casting so many elements of `wide_bytes` each, of both casts where there are two [B]."""
        return self.first_bytes(elements, wide_bytes) + self.late_bytes(elements, wide_bytes)

    def first_bytes(self, elements: float, wide_bytes: float, *, transposed: bool = True) -> float:
        """Traffic of the cast that the first product needs, with the `transposed` copy for the weight gradient or without [B]."""
        copies = self.copies if transposed else 1.0
        return elements * (self.passes * wide_bytes + copies * self.element_bytes)

    def late_bytes(self, elements: float, wide_bytes: float) -> float:
        """Traffic of the second cast, 0 where there is none [B]."""
        again = self.late_passes * wide_bytes + self.element_bytes
        return elements * again if self.late_passes else 0.0

    def transposing_bytes(self, elements: float) -> float:
        """Traffic of transposing narrow elements, 0 where nothing needs it [B]."""
        return 2.0 * (self.copies - 1.0) * elements * self.element_bytes


def with_casts(
    expansion: Expansion,
    casting: Casting,
    *,
    wide_bytes: float,
    wide_operators: Collection[str] = (),
    gathered: bool = False,
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
    gathered : bool
        Whether tensor-parallel ranks gather narrow elements: each casts its share and transposes the whole.

    Notes
    -----
    Forward casts the input of a layer, backward the gradient of its output, each once for the two products that read it; with
    `Casting.late_passes` once for each of them, and after the gather, because a scale belongs to a whole row or column. Weights change
    once a step and are cast then, not here. Batched products (unfused attention) stay wide.

    Examples
    --------
    >>> from mpsim.workload import Lowering, expand_layer, model
    >>> layer = expand_layer(model("gpt2-small"), Lowering(), sequences=1, sequence_length=1024)
    >>> cast = with_casts(layer, Casting(element_bytes=1, passes=1, copies=2), wide_bytes=2)
    >>> [one.name for one in cast.forward][:3]
    ['norm1', 'quantise qkv input', 'qkv']
    """
    rules = _Rules(casting, wide_bytes, frozenset(wide_operators), gathered)

    def cast(operators: Iterable[Operator]) -> tuple[Operator, ...]:
        return tuple(_cast(operators, rules))

    return dataclasses.replace(
        expansion, forward=cast(expansion.forward), backward=cast(expansion.backward)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Rules:
    """How linear layers are cast: as `with_casts` is told."""

    casting: Casting
    wide_bytes: float
    wide: frozenset[str]
    gathered: bool


def _cast(operators: Iterable[Operator], rules: _Rules) -> Iterator[Operator]:
    narrow = rules.casting.element_bytes
    for one in operators:
        if not _is_linear(one) or one.name in rules.wide:
            yield one
            continue
        if one.phase is Phase.WEIGHT_GRADIENT:
            yield from _late(one, rules)
        else:
            yield _quantise(one, rules)
        operands = one.batch * (one.m * one.k + one.k * one.n)
        saved = (rules.wide_bytes - narrow) * operands
        yield dataclasses.replace(one, bytes=one.bytes - saved, operand_bytes=narrow)


def _is_linear(one: Operator) -> bool:
    """Whether it multiplies by weights: projections, and experts with one kernel for all."""
    linear = one.kind is OperatorKind.GEMM and one.split is not Split.TENSOR
    return linear or one.kind is OperatorKind.GROUPED_GEMM


def _quantise(one: Operator, rules: _Rules) -> Operator:
    """Cast of what product `one` reads besides the weight: its left operand."""
    forward = one.phase is Phase.FORWARD
    split = _split(one, "input" if forward else "gradient", rules)
    elements = float(one.batch * one.m * one.k)
    whole = not (rules.gathered and split is Split.SEQUENCE)
    return Operator(
        name=f"quantise {one.name} {'input' if forward else 'gradient'}",
        kind=OperatorKind.QUANTISE,
        phase=one.phase,
        split=split,
        bytes=rules.casting.first_bytes(elements, rules.wide_bytes, transposed=whole),
    )


def _late(one: Operator, rules: _Rules) -> Iterator[Operator]:
    """What weight gradient `one` needs of its operands beyond their first casts: others, or transposed copies of what was gathered."""
    casting = rules.casting
    for what, elements in (("gradient", one.m * one.k), ("input", one.k * one.n)):
        split = _split(one, what, rules)
        moved = casting.late_bytes(float(one.batch * elements), rules.wide_bytes)
        if not moved and rules.gathered and split is Split.SEQUENCE:
            moved, split = casting.transposing_bytes(float(one.batch * elements)), Split.NONE
        if moved:
            yield Operator(
                name=f"quantise {one.name} {what} for the weight",
                kind=OperatorKind.QUANTISE,
                phase=one.phase,
                split=split,
                bytes=moved,
            )


def _split(one: Operator, what: str, rules: _Rules) -> Split:
    """How the input or the gradient of a layer is divided when it is cast.

    Between a column and a row layer tensors are divided by tensor parallelism, elsewhere only with sequence parallelism, and not at all once
    they are gathered; those of experts as experts are.
    """
    if one.split is Split.EXPERT:
        return Split.EXPERT
    inside = one.split is (Split.ROW if what == "input" else Split.COLUMN)
    if inside:
        return Split.TENSOR
    return Split.NONE if rules.casting.late_passes else Split.SEQUENCE
