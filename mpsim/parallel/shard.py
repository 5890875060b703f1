"""One rank's share of an operator, and the collectives that go with it."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterable, Iterator

from mpsim.workload import Expansion, Operator, OperatorKind, Phase, Split

__all__ = [
    "Communication",
    "Compute",
    "Item",
    "Sharding",
    "Waits",
    "block_backward",
    "block_forward",
    "shard",
]


_STATISTIC_BYTES = 4  # float32


class Waits(enum.Enum):
    """Which of the following compute kernels wait for a collective."""

    ALL = "all"  # it blocks
    INPUT_GRADIENT = "input gradient"  # all but the weight gradients that follow at once
    WEIGHT_GRADIENT = "weight gradient"  # only the next weight gradient


@dataclasses.dataclass(frozen=True, slots=True)
class Communication:
    """A collective inside a layer.

    Parameters
    ----------
    name : str
    axis : str
        ``tp`` or ``cp``.
    kind : str
        As the collective cost model names it: ``all_reduce``, ``all_gather``, ``reduce_scatter``.
    size : float
        Whole tensor for an all-reduce, gathered size otherwise [B].
    waits : Waits
    phase : Phase
        Of the computation it belongs to.
    recompute : bool
        Whether it repeats one of the forward pass.
    """

    name: str
    axis: str
    kind: str
    size: float
    waits: Waits
    phase: Phase
    recompute: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Compute:
    """A sharded operator in a block; `recompute` where it repeats one of the forward pass."""

    operator: Operator
    recompute: bool = False


Item = Communication | Compute


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How layers are divided inside one stage.

    Parameters
    ----------
    tp, cp : int
        Degrees.
    tokens, hidden : int
        Of the microbatch on one context-parallel rank; they size what is not a GEMM's output.
    sequence_parallel : bool
        Whether what lies between row and column GEMMs is divided too.
    hide_input_gradient : bool
        Whether the reduction of an input gradient runs beside the weight gradient.
    activation_bytes : int
        Of an activation element.
    loss_reductions : int
        All-reduces of one float32 a token in the vocabulary-parallel loss.
    """

    tp: int = 1
    cp: int = 1
    tokens: int = 0
    hidden: int = 0
    sequence_parallel: bool = False
    hide_input_gradient: bool = False
    activation_bytes: int = 2
    loss_reductions: int = 3

    def divisor(self, split: Split) -> int:
        """By how much tensor parallelism divides what has this split."""
        if split is Split.NONE or (split is Split.SEQUENCE and not self.sequence_parallel):
            return 1
        return self.tp


@functools.lru_cache(maxsize=4096)
def shard(operator: Operator, sharding: Sharding) -> Operator:
    """One tensor-parallel rank's share of an operator.

    Parameters
    ----------
    operator : Operator
        Of the undivided model.
    sharding : Sharding

    Returns
    -------
    Operator
        With GEMM dimension, heads, FLOPs, bytes and saved bytes of one rank.

    Notes
    -----
    A GEMM's bytes are counted again from its divided shape, because the operand that is not divided is read whole by every
    rank: with T the token count, a column GEMM reads T x in whatever t is.
    """
    t = sharding.divisor(operator.split)
    saved = sharding.divisor(operator.saved_split)
    kept = dataclasses.replace(
        operator,
        flops=operator.flops / t,
        saved=operator.saved / saved,
        saved_for_weight=operator.saved_for_weight / saved,
    )
    if operator.kind is OperatorKind.GEMM and operator.sharded_dim:
        return _shard_gemm(kept, t)
    if operator.kind is OperatorKind.ATTENTION:
        kept = dataclasses.replace(
            kept, heads=operator.heads // t, kv_heads=max(operator.kv_heads // t, 1)
        )
    return dataclasses.replace(kept, bytes=operator.bytes / t)


def _shard_gemm(operator: Operator, t: int) -> Operator:
    batch, m, n, k = (
        getattr(operator, dim) // (t if dim == operator.sharded_dim else 1)
        for dim in ("batch", "m", "n", "k")
    )
    whole = _operands(operator.batch, operator.m, operator.n, operator.k)
    mine = _operands(batch, m, n, k)
    if operator.accumulate_bytes:
        element = (operator.bytes - 2 * operator.accumulate_bytes * whole[2]) / (
            whole[0] + whole[1]
        )
        moved = element * (mine[0] + mine[1]) + 2 * operator.accumulate_bytes * mine[2]
    elif operator.operand_bytes:
        written = operator.bytes - operator.operand_bytes * (whole[0] + whole[1])
        moved = operator.operand_bytes * (mine[0] + mine[1]) + written * mine[2] / whole[2]
    else:
        moved = operator.bytes * sum(mine) / sum(whole)
    return dataclasses.replace(operator, bytes=moved, batch=batch, m=m, n=n, k=k)


def _operands(batch: int, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Elements of the two inputs and of the output."""
    return batch * m * k, batch * k * n, batch * m * n


def block_forward(
    expansion: Expansion, sharding: Sharding, *, recompute: bool = False
) -> list[Item]:
    """Forward of one layer (or embedding, or head) on one rank, with its collectives.

    Parameters
    ----------
    expansion : Expansion
    sharding : Sharding
    recompute : bool
        Mark everything as run again.
    """
    return list(_forward_items(expansion.forward, sharding, recompute=recompute))


def _forward_items(
    operators: Iterable[Operator], sharding: Sharding, *, recompute: bool
) -> Iterator[Item]:
    in_core = False
    for whole in operators:
        mine = shard(whole, sharding)
        if whole.recomputed_selectively and not in_core and sharding.cp > 1:
            yield _context(whole, "all_gather", sharding, recompute=recompute)
        in_core = whole.recomputed_selectively
        if whole.split is Split.COLUMN and _gathers(sharding):
            yield _tensor("all_gather", whole.m * whole.k, whole, sharding, recompute=recompute)
        yield Compute(mine, recompute)
        if whole.kind is OperatorKind.LOSS and sharding.tp > 1:
            yield from _loss(whole, sharding, recompute=recompute)
        elif _reduces_forward(whole) and sharding.tp > 1:
            kind = "reduce_scatter" if sharding.sequence_parallel else "all_reduce"
            yield _tensor(
                kind, _output_elements(whole, sharding), whole, sharding, recompute=recompute
            )


def _gathers(sharding: Sharding) -> bool:
    return sharding.tp > 1 and sharding.sequence_parallel


def _reduces_forward(operator: Operator) -> bool:
    """Whether every rank holds a partial sum: row GEMMs, and the lookup in a divided table."""
    return operator.split is Split.ROW or operator.name == "embedding"


def _output_elements(operator: Operator, sharding: Sharding) -> float:
    if operator.kind is OperatorKind.GEMM:
        return operator.m * operator.n
    return sharding.tokens * sharding.hidden


def _tensor(
    kind: str,
    elements: float,
    operator: Operator,
    sharding: Sharding,
    *,
    waits: Waits = Waits.ALL,
    recompute: bool = False,
) -> Communication:
    return Communication(
        name=f"{operator.name} {kind.replace('_', '-')}",
        axis="tp",
        kind=kind,
        size=float(elements * sharding.activation_bytes),
        waits=waits,
        phase=operator.phase,
        recompute=recompute,
    )


def _context(
    operator: Operator, kind: str, sharding: Sharding, *, recompute: bool = False
) -> Communication:
    """Gather keys and values before the attention core, or reduce their gradients after it."""
    core = _key_value_elements(operator)
    return Communication(
        name=f"key-value {kind.replace('_', '-')}",
        axis="cp",
        kind=kind,
        size=float(core * sharding.activation_bytes / sharding.tp),
        waits=Waits.ALL,
        phase=operator.phase,
        recompute=recompute,
    )


def _key_value_elements(operator: Operator) -> float:
    if operator.kind is OperatorKind.ATTENTION:
        width = operator.kv_heads * (operator.head_dim + operator.head_dim_v)
        return float(operator.sequences * operator.keys * width)
    # scores = q k^T: (queries, head_dim) @ (head_dim, keys); its gradients carry the same three numbers
    keys, width = (
        (operator.n, operator.k) if operator.name == "scores" else (operator.m, operator.n)
    )
    return float(2 * operator.batch * keys * width)


def _loss(operator: Operator, sharding: Sharding, *, recompute: bool) -> Iterator[Communication]:
    for _ in range(sharding.loss_reductions):
        yield Communication(
            name="loss all-reduce",
            axis="tp",
            kind="all_reduce",
            size=float(_STATISTIC_BYTES * sharding.tokens),
            waits=Waits.ALL,
            phase=operator.phase,
            recompute=recompute,
        )


def block_backward(
    expansion: Expansion,
    sharding: Sharding,
    *,
    recompute: str = "none",
    phases: frozenset[Phase] = frozenset({Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT}),
) -> list[Item]:
    """Backward of one layer (or embedding, or head) on one rank, with its collectives.

    Parameters
    ----------
    expansion : Expansion
    sharding : Sharding
    recompute : str
        ``none``, ``selective`` (the attention core runs again) or ``full`` (the whole forward does).
    phases : set of Phase
        Both for a full backward; one of them where the schedule splits it.
    """
    items: list[Item] = []
    again = Phase.INPUT_GRADIENT in phases
    if recompute == "full" and again:
        items += block_forward(expansion, sharding, recompute=True)
    core = [one for one in expansion.forward if one.recomputed_selectively]
    pending = core if recompute == "selective" and again else []
    names = tuple(one.name for one in core)
    wanted = [one for one in expansion.backward if one.phase in phases]
    last_core = (
        max((i for i, one in enumerate(wanted) if one.name.startswith(names)), default=-1)
        if names
        else -1
    )
    for index, whole in enumerate(wanted):
        if pending and whole.name.startswith(names):
            items += _forward_items(pending, sharding, recompute=True)
            pending = []
        items += _backward_items(whole, sharding, together=len(phases) > 1)
        if index == last_core and sharding.cp > 1 and whole.phase is Phase.INPUT_GRADIENT:
            items.append(_context(whole, "reduce_scatter", sharding))
    return items


def _backward_items(whole: Operator, sharding: Sharding, *, together: bool) -> Iterator[Item]:
    """Yield one backward operator with its collectives; `together` where both gradients run in one action."""
    is_input = whole.phase is Phase.INPUT_GRADIENT
    column_input = is_input and whole.split is Split.COLUMN and sharding.tp > 1
    beside = together and sharding.hide_input_gradient
    if is_input and whole.split is Split.ROW and _gathers(sharding):
        yield _tensor("all_gather", whole.m * whole.k, whole, sharding)
    if column_input and beside and _gathers(sharding):
        # the gathered input was not kept: gather it again beside the input gradient
        yield _tensor("all_gather", whole.m * whole.n, whole, sharding, waits=Waits.WEIGHT_GRADIENT)
    if whole.split is Split.COLUMN and _gathers(sharding) and not is_input and not beside:
        yield _tensor("all_gather", whole.k * whole.n, whole, sharding)
    yield Compute(shard(whole, sharding))
    if column_input:
        kind = "reduce_scatter" if sharding.sequence_parallel else "all_reduce"
        waits = Waits.INPUT_GRADIENT if beside else Waits.ALL
        yield _tensor(kind, whole.m * whole.n, whole, sharding, waits=waits)
