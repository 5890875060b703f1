"""Expert parallelism: tokens travel to the ranks that hold their experts and back.

The ranks of a stage form groups of ``etp x ep`` that hold every expert once: each rank 1/etp of the
features of 1/ep of the experts. A rank brings its 1/tp of the tokens (sequence parallelism).
*Dispatch* is an all-to-all over ep of every token's copies, one for each of its experts, followed
by an all-gather over etp; *combine* is the way back, a reduce-scatter over etp and an all-to-all
over ep. The backward pass mirrors both. An all-to-all delivers rows by the rank that sent them: a
rank with several experts copies them once to lie by expert, and what its experts return once more
to lie by rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.framework import ExpertDispatch, ExpertOverlap, ExpertRegrouping
from mpsim.memo import remembered
from mpsim.parallel.shard import (
    Communication,
    Compute,
    Item,
    Routing,
    Sharding,
    Synchronization,
    Waits,
    shard,
)
from mpsim.workload import Operator, OperatorKind, Phase, Role, Split, make_elementwise

Beside = tuple[Sequence[Item], Sequence[Item]]

# HybridEP's kernel that sums rows reads for each 16 B of a token the 4 B entry of every expert of
# the rank (unpermute_kernel, DeepEP csrc/hybrid_ep/extension/permute.cu at 34152ae; no more from
# pull request 625 on), and takes as long for them as for as many bytes of rows (issue 590)
_MAP_READS = 4.0 / 16.0

# Passes over rows by kernels that gather or scatter them, over rows and over tokens by others, in
# MoEAllGatherTokenDispatcher of Megatron-LM core_v0.6.0 (token_dispatcher.py) and its autograd:
# rows of own experts taken and sorted; zeros, scattered back, weighed, zeros, added to tokens | the
# same backward, with the weights' gradient
_TORCH_PASSES = {
    ("rows_by_expert", Phase.FORWARD): (4.0, 0.0, 0.0),
    ("rows_by_token", Phase.FORWARD): (5.0, 5.0, 3.0),
    ("rows_by_expert", Phase.INPUT_GRADIENT): (4.0, 6.0, 0.0),
    ("rows_by_token", Phase.INPUT_GRADIENT): (6.0, 1.0, 1.0),
}


def expert_forward(
    operators: Sequence[Operator], sharding: Sharding, *, beside: Beside = ((), ())
) -> Iterator[Item]:
    """Dispatch, routed experts and combine of one forward.

    `operators`: those of the routed experts; without their second product among them nothing
    travels back (a forward that runs again and stops early). `beside`: what runs while tokens
    travel there, and back (the shared experts).
    """
    routing = _routing(sharding)
    yield from _bookkeeping(sharding, waits=routing.software.expert_synchronizations)
    whole = any(operator.role is Role.DOWN and operator.flops for operator in operators)
    back = _back("combine", Phase.FORWARD, sharding) if whole else []
    ways = _there("dispatch", Phase.FORWARD, sharding), back
    yield from _around(operators, sharding, ways, beside)


def expert_backward(
    operators: Sequence[Operator], sharding: Sharding, *, beside: Beside = ((), ())
) -> Iterator[Item]:
    """Backward of the routed experts: what answers combine travels there, what answers dispatch
    travels back.

    `operators`: backward operators of the routed experts; without one of `Phase.INPUT_GRADIENT`
    among them nothing travels. `beside`: as in `expert_forward`.
    """
    phase = Phase.INPUT_GRADIENT
    ways: tuple[list[Communication], list[Communication]] = ([], [])
    if any(operator.phase is phase for operator in operators):
        yield from _bookkeeping(sharding, waits=0)
        ways = (
            _there(phase.of("combine"), phase, sharding),
            _back(phase.of("dispatch"), phase, sharding),
        )
    yield from _around(operators, sharding, ways, beside)


def _bookkeeping(sharding: Sharding, *, waits: int) -> Iterator[Synchronization]:
    """Small kernels of router, counts and permutations, and the host's waits for counts."""
    launches = _routing(sharding).software.expert_launches
    waits = waits if sharding.ep > 1 else 0
    if waits or launches:
        yield Synchronization(waits, launches)


def way_back(sharding: Sharding, *, backward: bool) -> frozenset[str]:
    """Tags of what travels back from experts: the kernel that places tokens waits for it."""
    name = Phase.INPUT_GRADIENT.of("dispatch") if backward else "combine"
    return _tags(_back(name, Phase.FORWARD, sharding))


def overlaps_shared(sharding: Sharding) -> bool:
    """Whether shared experts run beside dispatch and combine."""
    routing = sharding.routing
    return (
        routing is not None
        and routing.software.expert_overlap is ExpertOverlap.SHARED_EXPERT
        and sharding.ep * sharding.etp > 1
    )


def is_fused_away(operator: Operator, sharding: Sharding) -> bool:
    """Whether the kernel that sends tokens does this operator's work too, or those behind it do."""
    if sharding.routing is None or operator.role not in (Role.PERMUTE, Role.UNPERMUTE):
        return False
    return (sharding.routing.fused and sharding.ep > 1) or _gathers(sharding)


def _gathers(sharding: Sharding) -> bool:
    return _routing(sharding).software.expert_dispatch is ExpertDispatch.ALL_GATHER


def split_shared(operators: Sequence[Operator]) -> tuple[list[Operator], list[Operator]]:
    """Shared-expert operators up to the second product, and from it: what hides each exchange."""
    backward = any(operator.phase is not Phase.FORWARD for operator in operators)
    second = Role.UP if backward else Role.DOWN
    places = (i for i, operator in enumerate(operators) if operator.role is second)
    cut = next(places, len(operators))
    return list(operators[:cut]), list(operators[cut:])


def sent_tokens(sharding: Sharding) -> float:
    """Copies of tokens that the busiest rank hands to an all-to-all, its own experts' too.

    One for each of a token's experts; a fused kernel sends one to each rank that has any of them.
    """
    routing = _routing(sharding)
    copies = _reached(routing, sharding.ep) if routing.fused else float(routing.top_k)
    return sharding.tokens / sharding.tp * copies * routing.capacity * routing.load


def _tokens_across(sharding: Sharding) -> float:
    """Copies that a fused kernel sends between domains: one to each that has a token's experts."""
    routing = _routing(sharding)
    if not routing.fused or routing.domains == 1:
        return 0.0
    copies = _reached(routing, routing.domains)
    return sharding.tokens / sharding.tp * copies * routing.capacity * routing.load


def _reached(routing: Routing, places: int) -> float:
    """How many of `places` with equal shares have any of a token's experts, on average.

    Of E experts a place has L, and none of a token's k with probability ``C(E - L, k) / C(E, k)``;
    k in a row are at ``k / L`` places, rounded up.
    """
    here = routing.experts // places
    if routing.software.consecutive_experts:
        return float(min(places, -(-routing.top_k // here)))
    elsewhere = routing.experts - here
    none = math.comb(elsewhere, routing.top_k) / math.comb(routing.experts, routing.top_k)
    return places * (1.0 - none)


def _routing(sharding: Sharding) -> Routing:
    assert sharding.routing is not None, "experts without routing"
    return sharding.routing


def _around(
    operators: Sequence[Operator],
    sharding: Sharding,
    ways: tuple[list[Communication], list[Communication]],
    beside: Beside,
) -> Iterator[Item]:
    """The experts between the way there and back, each blocking or hidden behind others."""
    there, back = (
        [structs.replace(sent, waits=Waits.TAGGED if hides else Waits.ALL) for sent in way]
        for way, hides in zip(ways, beside, strict=True)
    )
    needs = _tags(there) if beside[0] else frozenset[str]()
    yield from there
    yield from beside[0]
    travels = bool(there), bool(back)
    for kernel in _between(operators, sharding, travels=travels):
        yield Compute(kernel, needs=needs)
    yield from back
    yield from beside[1]


def _between(
    operators: Sequence[Operator], sharding: Sharding, *, travels: tuple[bool, bool]
) -> Iterator[Operator]:
    """Kernels between the way there and the way back, as far as tokens travel both."""
    pads = _pads(operators, sharding)
    there, back = (way and _arrives_by_rank(sharding) for way in travels)
    phase = min(operator.phase for operator in operators)  # forward, or the first of a backward
    if there:
        yield _regrouping("rows_by_expert", phase, sharding)
    whole = _gathers(sharding) and phase is not Phase.WEIGHT_GRADIENT
    if whole:
        yield from _torch_rows("rows_by_expert", phase, sharding)
    if pads:
        yield _padding("padding", phase, sharding)
    yield from _kernels(operators, sharding)
    if pads:
        yield _padding("unpadding", phase, sharding)
    if back:
        yield _regrouping("rows_by_rank", phase, sharding)
    if whole and any(operator.role is Role.DOWN and operator.flops for operator in operators):
        yield from _torch_rows("rows_by_token", phase, sharding)


def _torch_rows(name: str, phase: Phase, sharding: Sharding) -> Iterator[Operator]:
    """Rows of this rank's experts out of every token of the group, or back into them."""
    ways = _TORCH_PASSES[name, phase]
    token = sharding.hidden * sharding.activation_bytes
    gathered, streamed, whole = (passes * token for passes in ways)
    rows = _worked_rows(sharding)
    tokens = sharding.tokens / sharding.tp * sharding.ep * sharding.etp
    moved = streamed * rows + whole * tokens
    split, gather = Split.EXPERT, OperatorKind.GATHER
    yield make_elementwise(
        Role.COPY, phase, moved=gathered * rows, kind=gather, name=name, split=split
    )
    if moved:
        yield make_elementwise(Role.COPY, phase, moved=moved, name=f"{name} apart", split=split)


def _pads(operators: Sequence[Operator], sharding: Sharding) -> bool:
    """Whether products take counts of rows of their own; a fused dispatch leaves them so."""
    routing = _routing(sharding)
    weights = all(operator.phase is Phase.WEIGHT_GRADIENT for operator in operators)
    if not routing.pads or routing.fused or weights:
        return False
    return any(0 < operator.operand_bytes < sharding.activation_bytes for operator in operators)


def _padding(name: str, phase: Phase, sharding: Sharding) -> Operator:
    """A copy of every row that the rank's experts work on: read and written once."""
    moved = 2.0 * _worked_rows(sharding) * sharding.hidden * sharding.activation_bytes
    return make_elementwise(Role.COPY, phase, moved=moved, name=name, split=Split.EXPERT)


def _worked_rows(sharding: Sharding) -> float:
    """Rows that the busiest rank's experts work on: one for each of a token's experts."""
    routing = _routing(sharding)
    rows = sharding.tokens / sharding.tp * routing.top_k * routing.capacity * routing.load
    return rows * sharding.etp


def _arrives_by_rank(sharding: Sharding) -> bool:
    """Whether a kernel puts rows that arrive otherwise in the order of this rank's experts."""
    routing = _routing(sharding)
    if sharding.ep == 1 or _gathers(sharding):
        return False
    if routing.fused:
        return routing.software.expert_regrouping is ExpertRegrouping.KERNEL
    return routing.experts > sharding.ep


def _regrouping(name: str, phase: Phase, sharding: Sharding, reads: float = 0.0) -> Operator:
    """A copy of what travelled into the rows of the rank's experts, or back.

    A fused kernel brings a token once for all experts of a rank; the kernel behind it writes a row
    for each of them, or sums those (DeepEP csrc/hybrid_ep/executor/executor.cu, standalone permute;
    Megatron-Core, _DeepepManager.get_permuted_hidden_states_by_experts). `reads`: bytes beside a
    byte that travelled.
    """
    rows = sent_tokens(sharding) * sharding.etp * (1.0 + reads) + _worked_rows(sharding)
    moved = rows * sharding.hidden * sharding.activation_bytes
    kind = OperatorKind.GATHER
    return make_elementwise(Role.COPY, phase, moved=moved, kind=kind, name=name, split=Split.EXPERT)


def _kernels(operators: Sequence[Operator], sharding: Sharding) -> Iterator[Operator]:
    for whole in operators:
        mine, alone = shard(whole, sharding), 1
        if mine.kind is OperatorKind.GROUPED_GEMM and not _routing(sharding).software.grouped_gemm:
            alone = mine.batch
            flops, moved = mine.flops / alone, mine.bytes / alone
            mine = structs.replace(mine, kind=OperatorKind.GEMM, batch=1, flops=flops, bytes=moved)
        yield from [mine] * alone


def _there(name: str, phase: Phase, sharding: Sharding) -> list[Communication]:
    """Tokens, or what answers their outputs, on their way to the experts."""
    if _gathers(sharding):
        return _whole_tokens(name, "all_gather", phase, sharding)
    exchanged, gathered = _exchange(name, phase, sharding), _over_etp(name, phase, sharding)
    after = _tags(exchanged)
    return [*exchanged, *(structs.replace(gather, needs=after) for gather in gathered)]


def _back(name: str, phase: Phase, sharding: Sharding) -> list[Communication]:
    """Outputs, or what answers the tokens, on their way to the ranks that tokens belong to."""
    if _gathers(sharding):
        return _whole_tokens(name, "reduce_scatter", phase, sharding)
    exchanged = _exchange(name, phase, sharding, _MAP_READS)
    summed = _over_etp(name, phase, sharding, kind="reduce_scatter")
    after = _tags(summed)
    return [*summed, *(structs.replace(sent, needs=after) for sent in exchanged)]


def _exchange(
    name: str, phase: Phase, sharding: Sharding, reads: float = 0.0
) -> list[Communication]:
    """The all-to-all between ranks with different experts. `reads`: of an entry of the map of a
    token's experts, bytes a byte of a token, where a kernel beside it sums rows.
    """
    if sharding.ep == 1:
        return []
    token = sharding.hidden * sharding.activation_bytes
    sent = _tagged(f"{name} all-to-all", "ep", "all_to_all", sent_tokens(sharding) * token, phase)
    routing = _routing(sharding)
    beside = routing.fused and routing.software.expert_regrouping is ExpertRegrouping.BESIDE
    reads *= routing.experts / sharding.ep
    copies = _regrouping("rows", phase, sharding, reads) if beside else None
    return [structs.replace(sent, across=_tokens_across(sharding) * token, copies=copies)]


def _over_etp(
    name: str, phase: Phase, sharding: Sharding, *, kind: str = "all_gather"
) -> list[Communication]:
    """Gather (or sum) of the tokens that the ranks sharing experts' features received together."""
    if sharding.etp == 1:
        return []
    size = _worked_rows(sharding) * sharding.hidden * sharding.activation_bytes
    return [_tagged(f"{name} over etp", "etp", kind, size, phase)]


def _whole_tokens(name: str, kind: str, phase: Phase, sharding: Sharding) -> list[Communication]:
    """Every token to every rank of the group, or its outputs summed back."""
    group = sharding.ep * sharding.etp
    if group == 1:
        return []
    each = sharding.tokens / sharding.tp * sharding.hidden * sharding.activation_bytes
    return [_tagged(f"{name} {kind.replace('_', '-')}", "etp-ep", kind, each * group, phase)]


def _tagged(name: str, axis: str, kind: str, size: float, phase: Phase) -> Communication:
    """A collective that blocks, with its name as tag."""
    return Communication(name, axis, kind, float(size), Waits.ALL, phase, tag=name)


def _tags(ways: Sequence[Communication]) -> frozenset[str]:
    return frozenset(sent.tag for sent in ways)


_REACH = 9.0  # standard deviations; nothing lies beyond in double precision
_POINTS = 20_001


def rank_load(experts: int, ranks: int, spread: float) -> float:
    """Tokens of the busiest rank over the mean, expected for experts of unequal popularity.

    `experts`: routed experts of a layer, evenly divided among `ranks`. `ranks`: expert-parallel
    ranks, at least 1. `spread`: standard deviation of the tokens of an expert over their mean, in
    [0, inf).

    Returns
    -------
    float
        In [1, ranks].

    Notes
    -----
    Experts get independent, normally distributed shares: a rank of ``L = experts / ranks`` deviates
    by ``spread / sqrt(L)``, and the busiest of r by that times the expected maximum of r normal
    numbers. That all tokens go somewhere takes the mean of the r from each, nothing on average.

    Examples
    --------
    >>> rank_load(64, 1, 0.5)
    1.0
    >>> round(rank_load(64, 8, 0.5), 3)
    1.252
    """
    deviation = spread * math.sqrt(ranks / experts)
    return min(1.0 + deviation * expected_maximum(ranks), float(ranks))


def busiest_rank(popular: float, ranks: int, rows: ArrayLike) -> Floats:
    """Tokens of the busiest rank over the mean, by popularity of its experts and by chance.

    `popular`: by popularity alone, at least 1. `rows`: choices of all tokens together, which are
    drawn: the counts of ranks are independent but for their sum, with their mean as variance.

    Examples
    --------
    >>> round(float(busiest_rank(1.0, 8, 8 * 4096 * 8)), 4)
    1.0079
    """
    chance = expected_maximum(ranks) ** 2 * ranks / np.asarray(rows, float)
    result: Floats = 1.0 + np.sqrt((popular - 1.0) ** 2 + chance)
    return result


@remembered(4096)
def expected_maximum(count: int) -> float:
    """Expected largest of `count` normal numbers: ``integral of x n phi(x) Phi(x)^(n-1)``."""
    x = np.linspace(-_REACH, _REACH, _POINTS)
    density = np.exp(-(x**2) / 2.0) / math.sqrt(2.0 * math.pi)
    below = np.array([0.5 * math.erfc(-bound / math.sqrt(2.0)) for bound in x.tolist()])
    step = x[1] - x[0]
    return float((x * count * density * below ** (count - 1)).sum() * step)
