"""Context parallelism: how the attention core sees keys and values that other ranks hold.

Every rank keeps 1/cp of each sequence; with a causal mask it is one chunk from the front and one
from the back (zig-zag), so that all ranks have equal work. *All-gather* and *Ulysses* communicate
before and after the core, *ring* cuts the core in cp steps and sends the next block of keys and
values beside the step at hand, *gathered ring* sends all blocks by one gather beside the first
step, *hierarchical* is Ulysses inside a scale-up domain and a ring across.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpsim import structs
from mpsim.errors import Problem, ScenarioError
from mpsim.framework import ContextExchange
from mpsim.parallel.shard import Communication, Compute, Sharding, Waits, shard
from mpsim.shipped import say
from mpsim.workload import Operator, OperatorKind, Phase, Role, make_elementwise

_ADD_TRAFFIC = 3  # two tensors in, one out

# What torch's experimental context parallelism moves to put steps together, counted from its
# operations on float32 (torch 2.6, distributed/tensor/experimental/_attention.py) [B an element of
# queries, or of keys and values].
_WIDE_BYTES = 4
_EAGER_ENDS = 12  # outputs of the first step cast, the sum cast back: 2 + 4 B each
_EAGER_STEP = (
    38  # cast (2 + 4), minus the sum (4 + 4 + 4), times a weight (4 + 4), off the sum (4 + 4 + 4)
)
_EAGER_QUERY_ENDS, _EAGER_QUERY_STEP = (
    10,
    10,
)  # zeroed and cast back; the gradient of a step added (2 + 4 + 4)
_EAGER_KEY_ENDS, _EAGER_KEY_STEP = (
    10,
    21,
)  # half of it added (5), joined with the rest (8), laid out to be sent (8)


def core_items(
    core: Sequence[Operator], sharding: Sharding, *, backward: bool
) -> Iterator[Communication | Compute]:
    """Forward or backward of an attention core, fused or not, with its context exchange.

    In backward keys and values travel again, and what answers them goes back to the owners.

    """
    exchange = sharding.tensor.context_exchange
    if sharding.cp == 1:
        yield from (Compute(shard(kernel, sharding)) for kernel in core)
    elif exchange is ContextExchange.ALL_GATHER:
        yield from _gathered(core, sharding, backward=backward)
    elif exchange in (ContextExchange.RING, ContextExchange.GATHERED_RING):
        yield from _ring(_fused(core), sharding, "cp", sharding.cp, backward=backward)
    else:
        yield from _ulysses(core, sharding, backward=backward)


def _gathered(
    core: Sequence[Operator], sharding: Sharding, *, backward: bool
) -> Iterator[Communication | Compute]:
    """Gather keys and values before the core, and in backward; reduce gradients after it."""
    yield _exchange(core[0], "cp", "all_gather", _key_value_bytes(core[0], sharding), "key-value")
    yield from (Compute(shard(kernel, sharding)) for kernel in core)
    if backward:
        size = _key_value_bytes(core[-1], sharding)
        yield _exchange(core[-1], "cp", "reduce_scatter", size, core[-1].phase.of("key-value"))


def _ulysses(
    core: Sequence[Operator], sharding: Sharding, *, backward: bool
) -> Iterator[Communication | Compute]:
    """Trade tokens for heads: four all-to-alls around the core, each with one tensor."""
    everywhere = sharding.tensor.context_exchange is ContextExchange.ULYSSES
    inside = sharding.cp if everywhere else sharding.context_inside
    axis = "cp" if everywhere else "cp-inside"
    sizes = _tensor_bytes(core, sharding, inside)
    projected, result = ("q", "k", "v"), ("output",)
    before, after = (result, projected) if backward else (projected, result)
    if inside > 1:
        yield from (_all_to_all(core[0], axis, name, sizes[name]) for name in before)
    mine = [_heads_for_tokens(kernel, inside, sharding.tp) for kernel in core]
    across = sharding.cp // inside
    if across > 1:
        yield from _ring(_fused(mine), sharding, "cp-across", across, backward=backward)
    else:
        yield from (Compute(shard(kernel, sharding)) for kernel in mine)
    if inside > 1:
        yield from (_all_to_all(core[-1], axis, name, sizes[name]) for name in after)


def _ring(
    whole: Operator, sharding: Sharding, axis: str, ranks: int, *, backward: bool
) -> Iterator[Communication | Compute]:
    """Attend to one block of keys a step; in backward its answer follows one step behind it."""
    block = _key_value_bytes(whole, sharding) / ranks
    at_once = sharding.tensor.context_exchange is ContextExchange.GATHERED_RING
    wide = _WIDE_BYTES / sharding.activation_bytes if sharding.tensor.eager_context_sums else 1.0
    if at_once:
        gathered = _exchange(whole, axis, "all_gather", block * ranks, "key-value")
        yield structs.replace(gathered, waits=Waits.TAGGED, tag="blocks")
    for step in range(ranks):
        values = step < ranks - 1 and not at_once  # the next block is needed
        answers = backward and step > 0  # those to the blocks before go on to their owners
        if values or answers:
            name = f"{whole.phase.of('key-value and')} send" if answers else "key-value send"
            sent = _exchange(whole, axis, "send", block * (values + wide * answers), name)
            yield structs.replace(sent, waits=Waits.TAGGED, tag=f"block {step + 1}")
        needs = frozenset[str]()
        if step:
            here = {f"block {step}"} if not at_once or (backward and step > 1) else set()
            needs = frozenset(here | ({"blocks"} if at_once else set()))
        yield Compute(shard(_step(whole, ranks, first=step == 0), sharding), needs=needs)
    last = frozenset({f"block {ranks}"}) if backward else frozenset()
    yield Compute(_correction(whole, sharding, ranks, block, backward=backward), needs=last)


def _step(whole: Operator, ranks: int, *, first: bool) -> Operator:
    """Attention to one block: the rank's own is masked, others half visible when causal.

    FLOPs are counted in full, an equal part a step.
    """
    halved = whole.causal and not first
    kv = whole.sequences * whole.keys * whole.kv_heads * (whole.head_dim + whole.head_dim_v)
    passes = 1 if whole.phase is Phase.FORWARD else 2  # in backward what answers them too
    elsewhere = passes * kv * (1.0 - 1.0 / ranks)
    element = whole.bytes / _elements(whole)
    return structs.replace(
        whole,
        keys=whole.keys // ranks // (2 if halved else 1),
        causal=whole.causal and first,
        flops=whole.flops / ranks,
        bytes=whole.bytes - element * elsewhere,
    )


def _elements(whole: Operator) -> float:
    """Elements of a fused kernel: queries, outputs, keys and values; as many again in backward."""
    passes = 1 if whole.phase is Phase.FORWARD else 2
    width = whole.head_dim + whole.head_dim_v
    queries = whole.sequences * whole.queries * whole.heads * width
    keys = whole.sequences * whole.keys * whole.kv_heads * width
    return float(passes * (queries + keys))


def _correction(
    whole: Operator, sharding: Sharding, ranks: int, block: float, *, backward: bool
) -> Operator:
    """Rescale and add up the steps' outputs; in backward, what answers to queries and keys."""
    width = whole.head_dim if backward else whole.head_dim_v
    tensor = whole.sequences * whole.queries * whole.heads * width / sharding.tp
    if sharding.tensor.eager_context_sums:
        keys = block / sharding.activation_bytes
        forward = tensor * (_EAGER_ENDS + _EAGER_STEP * (ranks - 1))
        queries = tensor * (_EAGER_QUERY_ENDS + _EAGER_QUERY_STEP * ranks)
        answered = queries + keys * (_EAGER_KEY_ENDS + _EAGER_KEY_STEP * ranks)
        moved = answered if backward else forward
    else:
        moved = _ADD_TRAFFIC * (ranks - 1) * tensor * sharding.activation_bytes
        moved += _ADD_TRAFFIC * ranks * block if backward else 0.0
    return make_elementwise(
        Role.SUM,
        whole.phase,
        moved=moved,
        name=f"{whole.phase.of('attention')} sum" if backward else "softmax correction",
    )


def _fused(core: Sequence[Operator]) -> Operator:
    """The one kernel of a fused core, which alone returns statistics to join steps by."""
    if len(core) == 1 and core[0].kind is OperatorKind.ATTENTION:
        return core[0]
    message = say("parallel.ring_scores")
    raise ScenarioError([Problem(message, key="framework.context_exchange")])


def _heads_for_tokens(kernel: Operator, inside: int, tp: int) -> Operator:
    """The core after the exchange: `inside` times the queries, 1/`inside` of the heads."""
    if kernel.kind is OperatorKind.ATTENTION:
        kv_heads = max(kernel.kv_heads // inside, tp)  # repeated where there are fewer
        return structs.replace(
            kernel, queries=kernel.queries * inside, heads=kernel.heads // inside, kv_heads=kv_heads
        )
    if kernel.kind is OperatorKind.GEMM:
        rows = kernel.dimension("q")
        shape = {"batch": kernel.batch // inside, rows: getattr(kernel, rows) * inside}
        return structs.replace(kernel, **shape)
    return kernel


def _tensor_bytes(core: Sequence[Operator], sharding: Sharding, inside: int) -> dict[str, float]:
    """Bytes of q, k, v and output of a rank; keys and values repeat for heads fewer than ranks."""
    first = core[0]
    if first.kind is OperatorKind.ATTENTION:
        tokens, heads, kv_heads = first.sequences * first.queries, first.heads, first.kv_heads
        width, width_v = first.head_dim, first.head_dim_v
    else:
        # the product that makes scores, or what answers context, has a batch of sequences x heads
        product = next(kernel for kernel in core if kernel.attends == "qkd")
        tokens, heads, kv_heads = product.m, product.batch, product.batch
        width = width_v = product.k
    each = tokens * sharding.activation_bytes / sharding.tp
    kv_heads = max(kv_heads, inside * sharding.tp)
    return {
        "q": each * heads * width,
        "k": each * kv_heads * width,
        "v": each * kv_heads * width_v,
        "output": each * heads * width_v,
    }


def _key_value_bytes(operator: Operator, sharding: Sharding) -> float:
    """Keys and values of the whole sequence on one tensor-parallel rank [B]."""
    if operator.kind is OperatorKind.ATTENTION:
        width = operator.kv_heads * (operator.head_dim + operator.head_dim_v)
        elements = float(operator.sequences * operator.keys * width)
    else:
        keys, width = (getattr(operator, operator.dimension(letter)) for letter in "kd")
        elements = float(2 * operator.batch * keys * width)
    return elements * sharding.activation_bytes / sharding.tp


def _all_to_all(operator: Operator, axis: str, name: str, size: float) -> Communication:
    return _exchange(operator, axis, "all_to_all", size, operator.phase.of(name))


def _exchange(operator: Operator, axis: str, kind: str, size: float, what: str) -> Communication:
    name = what if kind == "send" else f"{what} {kind.replace('_', '-')}"
    return Communication(
        name=name, axis=axis, kind=kind, size=float(size), waits=Waits.ALL, phase=operator.phase
    )
