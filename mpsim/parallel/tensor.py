"""Tensor parallelism: the collectives around each operator, and products that run beside theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mpsim import structs
from mpsim.framework import NarrowChunks, TensorOverlap
from mpsim.parallel.shard import Communication, Compute, Item, Sharding, Waits, resized, shard
from mpsim.workload import Operator, OperatorKind, Phase, Role, Split, make_elementwise

_STATISTIC_BYTES: Final = 4  # float32
_BESIDE: Final = (TensorOverlap.WEIGHT_GRADIENT, TensorOverlap.DECOMPOSED)
_CUT: Final = (TensorOverlap.DECOMPOSED, TensorOverlap.MICRO_PIPELINE)


def forward_items(whole: Operator, sharding: Sharding) -> Iterator[Item]:
    """One forward operator of the undivided model with its tensor-parallel collectives."""
    mine = shard(whole, sharding)
    yield from _scales(whole, sharding)
    gathers = whole.split is Split.COLUMN and _scatters(sharding)
    reduces = (whole.split is Split.ROW or whole.role is Role.EMBEDDING) and sharding.tp > 1
    if gathers and _is_cut(whole, sharding, NarrowChunks.GATHERS):
        yield from _gather_beside(mine, whole.m * whole.k, sharding)
        return
    if reduces and _is_cut(whole, sharding, NarrowChunks.SCATTERS):
        yield from _scatter_beside(mine, whole.m * whole.n, sharding)
        return
    if gathers:
        yield from _gather(whole.m * whole.k, whole, sharding)
    yield Compute(mine)
    if whole.role is Role.LOGITS and sharding.tp > 1 and not sharding.tensor.loss_reductions:
        yield from _gather(whole.m * whole.n, whole, sharding)
        yield _copy("logit parts", whole.phase, whole.m * whole.n * sharding.activation_bytes)
    if whole.kind is OperatorKind.LOSS and sharding.tp > 1:
        yield from _loss(whole, sharding)
    elif reduces:
        yield from _reduce(_output_elements(whole, sharding), whole, sharding)


def backward_items(whole: Operator, sharding: Sharding, *, together: bool) -> Iterator[Item]:
    """One backward operator with its collectives; `together`: both phases in one action."""
    is_input = whole.phase is Phase.INPUT_GRADIENT
    column_input = is_input and whole.split is Split.COLUMN and sharding.tp > 1
    beside = together and sharding.tensor.tensor_overlap in _BESIDE
    if is_input:
        yield from _scales(whole, sharding)
    again = _scatters(sharding) and not sharding.tensor.keeps_gathered
    if is_input and whole.split is Split.ROW and _scatters(sharding):
        if _is_cut(whole, sharding, NarrowChunks.GATHERS):
            mine = shard(whole, sharding)
            yield from _gather_beside(mine, whole.m * whole.k, sharding)
            return
        yield from _gather(whole.m * whole.k, whole, sharding)
    if column_input and beside and again:  # beside this product
        yield from _gather(whole.m * whole.n, whole, sharding, waits=Waits.NEXT_WEIGHT)
    if whole.split is Split.COLUMN and again and not is_input and not beside:
        yield from _gather(whole.k * whole.n, whole, sharding)
    yield Compute(shard(whole, sharding))
    if is_input and whole.weights > 1:
        yield Compute(_sum_of_weights(whole, sharding))
    if column_input:
        waits = Waits.NOT_WEIGHTS if beside else Waits.ALL
        # each module that copies its input reduces its gradient; tokens are gathered once for all
        for _ in range(1 if sharding.sequence_parallel else whole.weights):
            yield from _reduce(whole.m * whole.n, whole, sharding, waits=waits)


def norm_items(whole: Operator, sharding: Sharding) -> Iterator[Communication]:
    """All-reduces of norm weights in a layer's forward, which keep them equal in some stacks."""
    if sharding.tp > 1:
        for _ in range(sharding.tensor.norm_reductions):
            yield structs.replace(
                _collective("all_reduce", sharding.hidden, whole, sharding),
                name="norm weight all-reduce",
            )


def _scatters(sharding: Sharding) -> bool:
    return sharding.tp > 1 and sharding.sequence_parallel


def _is_cut(operator: Operator, sharding: Sharding, what: NarrowChunks) -> bool:
    """Whether a product is cut in chunks beside its ring's steps; `what` is on the way there.

    The output projection never is: it is no user-buffer module, nor compiled with a layer.
    """
    narrow = (
        operator.operand_bytes and sharding.tensor.tensor_overlap is TensorOverlap.MICRO_PIPELINE
    )
    return (
        sharding.tensor.tensor_overlap in _CUT
        and sharding.sequence_parallel
        and operator.kind is OperatorKind.GEMM
        and operator.role is not Role.LOGITS
        and (not narrow or sharding.tensor.narrow_chunks in (NarrowChunks.ALL, what))
    )


def _output_elements(operator: Operator, sharding: Sharding) -> float:
    if operator.kind is OperatorKind.GEMM:
        return operator.m * operator.n
    return operator.sequences * operator.queries * sharding.hidden


def _scales(whole: Operator, sharding: Sharding) -> Iterator[Communication]:
    """Largest magnitudes over all ranks: input and weights; backward outputs' and weights'."""
    if not (sharding.tensor.scale_reductions and sharding.tp > 1 and whole.operand_bytes):
        return
    tensors = whole.weights + (1 if whole.phase is Phase.FORWARD else whole.weights)
    for _ in range(tensors):
        yield structs.replace(
            _collective("all_reduce", 1, whole, sharding),
            name=f"{whole.name} scale all-reduce",
            size=float(_STATISTIC_BYTES),
        )


def _gather(
    elements: float, operator: Operator, sharding: Sharding, *, waits: Waits = Waits.ALL
) -> Iterator[Item]:
    """Gather an operand of a product, as narrow as it is read where gathers are."""
    size = elements * _element(operator, sharding)
    whole = _collective("all_gather", elements, operator, sharding, waits=waits)
    yield structs.replace(whole, size=size)
    if sharding.tensor.copies_parts:
        yield _copy(f"{operator.name} gathered copy", operator.phase, size)


def _reduce(
    elements: float, operator: Operator, sharding: Sharding, *, waits: Waits = Waits.ALL
) -> Iterator[Item]:
    """Sum what the ranks have, each for its own tokens with sequence parallelism."""
    scatters = sharding.sequence_parallel
    if scatters and sharding.tensor.copies_parts:
        size = elements * sharding.activation_bytes
        yield _copy(f"{operator.name} copy to scatter", operator.phase, size)
    kind = "reduce_scatter" if scatters else "all_reduce"
    yield _collective(kind, elements, operator, sharding, waits=waits)


def _copy(name: str, phase: Phase, size: float) -> Compute:
    """Read and write so many bytes."""
    return Compute(make_elementwise(Role.COPY, phase, moved=2.0 * size, name=name))


def _sum_of_weights(product: Operator, sharding: Sharding) -> Operator:
    """Add up what the products with several weights return: all are read, their sum is written."""
    tensor = product.operands[2] * sharding.activation_bytes
    return make_elementwise(
        Role.SUM,
        product.phase,
        moved=(product.weights + 1) * tensor,
        name=f"{product.phase.of(product.name)} sum",
    )


def _element(operator: Operator, sharding: Sharding) -> float:
    """Bytes of an element of an operand on its way to a product."""
    narrow = operator.operand_bytes if sharding.tensor.narrow_gathers else 0.0
    return float(narrow or sharding.activation_bytes)


def _collective(
    kind: str, elements: float, operator: Operator, sharding: Sharding, *, waits: Waits = Waits.ALL
) -> Communication:
    return Communication(
        name=f"{operator.name} {kind.replace('_', '-')}",
        axis="tp",
        kind=kind,
        size=float(elements * sharding.activation_bytes),
        waits=waits,
        phase=operator.phase,
    )


def _gather_beside(mine: Operator, elements: float, sharding: Sharding) -> Iterator[Item]:
    """Multiply the chunk of tokens at hand while the next one arrives around the ring."""
    steps = sharding.tp
    chunk = _chunk(mine, steps)
    size = elements * _element(mine, sharding)
    if sharding.tensor.tensor_overlap is TensorOverlap.MICRO_PIPELINE:
        # into memory that the peers see
        yield _copy(f"{mine.name} copy to gather", mine.phase, size / steps)
    for step in range(steps):
        if step < steps - 1:
            yield _ring_step(mine, size, step + 1, "gather", sharding)
        yield Compute(chunk, needs=_tags(mine, "gather", step) if step else frozenset())


def _scatter_beside(mine: Operator, elements: float, sharding: Sharding) -> Iterator[Item]:
    """Send a chunk's partial sums around the ring beside the next product; add up at the end."""
    steps = sharding.tp
    chunk = _chunk(mine, steps)
    arrived = elements * sharding.activation_bytes  # tp chunks are read
    for step in range(steps):
        yield Compute(chunk)
        if step < steps - 1:
            yield _ring_step(mine, arrived, step + 1, "scatter", sharding)
    add = make_elementwise(
        Role.SUM, mine.phase, moved=arrived + arrived / steps, name=f"{mine.name} add chunks"
    )
    yield Compute(add, needs=_tags(mine, "scatter", steps - 1))


def _chunk(mine: Operator, parts: int) -> Operator:
    """One of `parts` products over the tokens: the same weights, part of the rows."""
    return structs.replace(resized(mine, "m", parts), flops=mine.flops / parts)


def _ring_step(
    mine: Operator, size: float, step: int, what: str, sharding: Sharding
) -> Communication:
    (tag,) = _tags(mine, what, step)
    return Communication(
        name=f"{mine.name} {what} step",
        axis="tp",
        kind="send",
        size=float(size / sharding.tp),
        waits=Waits.TAGGED,
        phase=mine.phase,
        tag=tag,
    )


def _tags(mine: Operator, what: str, step: int) -> frozenset[str]:
    return frozenset({f"{mine.name} {what} {step}"})


def _loss(operator: Operator, sharding: Sharding) -> Iterator[Communication]:
    size = float(_STATISTIC_BYTES * sharding.tokens)
    each = _collective("all_reduce", 0, operator, sharding)
    each = structs.replace(each, name="loss all-reduce", size=size)
    yield from [each] * sharding.tensor.loss_reductions
