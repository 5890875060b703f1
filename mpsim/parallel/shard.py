"""Items of a block on one rank: its shares of operators, collectives, waits of the host."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from mpsim import structs
from mpsim.framework import ExpertBehaviour, ExpertDispatch, TensorBehaviour, TensorOverlap
from mpsim.memo import remembered
from mpsim.workload import Operator, OperatorKind, Phase, Split
from mpsim.workload.operators import operands_of

_BLOCKING = TensorBehaviour(tensor_overlap=TensorOverlap.NONE)
_NO_WAITS = ExpertBehaviour(expert_synchronizations=0)


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How tokens find their experts."""

    # experts, top_k: routed experts of a layer, and how many of them a token goes through
    experts: int
    top_k: int
    # tokens of the busiest rank over the mean: what everybody waits for. 1 where experts have a
    # capacity, which all of them fill
    load: float = 1.0
    # places of an expert over its even share of tokens, which its operators count already
    capacity: float = 1.0
    software: ExpertBehaviour = _NO_WAITS  # how tokens travel and their experts are launched
    # whether rows are copied to counts that products of a narrow format take, and back
    pads: bool = False
    # domains that an expert-parallel group spans evenly; 1 where it does unevenly
    domains: int = 1

    @property
    def fused(self) -> bool:
        """Whether one kernel permutes and sends."""
        return self.software.expert_dispatch is ExpertDispatch.FUSED


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How layers are divided inside one stage."""

    tp: int = 1  # tp, cp, ep, etp: degrees; `etp` is the tensor parallelism of experts
    cp: int = 1
    ep: int = 1
    etp: int = 1
    # tokens, hidden: tokens that pass at once through one context-parallel rank, and their width;
    # they size what is not a GEMM's output
    tokens: int = 0
    hidden: int = 0
    sequence_parallel: bool = False  # whether what lies between row and column GEMMs is divided too
    # what overlaps, is narrow, is copied, and how keys and values travel
    tensor: TensorBehaviour = _BLOCKING
    # context-parallel ranks in one scale-up domain; only hierarchical exchange asks
    context_inside: int = 1
    routing: Routing | None = None  # of a mixture of experts
    activation_bytes: int = 2  # of an activation element

    def divisor(self, split: Split) -> int:
        """Number of ranks of a layer that share what has this split.

        Notes
        -----
        Experts: each of ``ep etp`` ranks brings 1/tp of its tokens and holds ``1 / (ep etp)`` of
        the experts, so its share of the work is 1/tp whatever ep and etp are.
        """
        if split is Split.NONE or (split is Split.SEQUENCE and not self.sequence_parallel):
            return 1
        return self.tp


@remembered(4096)
def shard(operator: Operator, sharding: Sharding) -> Operator:
    """One rank's share of an operator of the undivided model.

    Returns Operator: with GEMM dimension, heads, FLOPs, bytes and saved bytes of one rank.

    Notes
    -----
    A GEMM's bytes are counted again from its divided shape, because the operand that is not divided
    is read whole by every rank: with T the token count, a column GEMM reads T x in whatever t is.
    """
    if operator.kind is OperatorKind.LOSS and not sharding.tensor.loss_reductions:
        return operator  # every rank has all logits
    t = sharding.divisor(operator.split)
    saved = sharding.divisor(operator.saved_split)
    mine: dict[str, Any] = {
        "flops": operator.flops / t,
        "saved": operator.saved / saved,
        "saved_for_weight": operator.saved_for_weight / saved,
    }
    if operator.kind is OperatorKind.GROUPED_GEMM:
        return _shard_experts(structs.replace(operator, **mine), sharding)
    if operator.kind is OperatorKind.GEMM and operator.sharded_dim:
        return resized(structs.replace(operator, **mine), operator.sharded_dim, t)
    mine["bytes"] = operator.bytes / t
    if operator.split is Split.EXPERT:
        mine["bytes"] *= _load(sharding)
    elif operator.kind is OperatorKind.ATTENTION:
        mine |= {"heads": operator.heads // t, "kv_heads": max(operator.kv_heads // t, 1)}
    return structs.replace(operator, **mine)


def resized(operator: Operator, dim: str, parts: int) -> Operator:
    """A product with one dimension divided by `parts` and its bytes; FLOPs are left alone."""
    return reshaped(operator, {dim: getattr(operator, dim) // parts})


def _shard_experts(operator: Operator, sharding: Sharding) -> Operator:
    """The experts of one rank, with the tokens that all ranks of the group send to them."""
    tokens = "k" if operator.phase is Phase.WEIGHT_GRADIENT else "m"
    each = getattr(operator, tokens) * sharding.ep * sharding.etp / sharding.tp * _load(sharding)
    shape = {"batch": operator.batch // sharding.ep, tokens: max(1, round(each))}
    if operator.sharded_dim:
        features = getattr(operator, operator.sharded_dim)
        shape[operator.sharded_dim] = features // sharding.etp
    return reshaped(operator, shape)


def _load(sharding: Sharding) -> float:
    return sharding.routing.load if sharding.routing else 1.0


def reshaped(operator: Operator, shape: Mapping[str, int]) -> Operator:
    """Another shape, with bytes counted again."""
    mine = {dim: shape.get(dim, getattr(operator, dim)) for dim in ("batch", "m", "n", "k")}
    moved = _moved(operator, operands_of(**mine))
    return structs.replace(operator, bytes=moved, **mine)


def _moved(operator: Operator, part: tuple[int, int, int]) -> float:
    """Bytes of a product of other operands, where `operator` moves ``operator.bytes``."""
    whole = operator.operands
    if operator.accumulate_bytes:
        buffer = 2 * operator.accumulate_bytes
        element = (operator.bytes - buffer * whole[2]) / (whole[0] + whole[1])
        return element * (part[0] + part[1]) + buffer * part[2]
    if operator.operand_bytes:
        written = operator.bytes - operator.operand_bytes * (whole[0] + whole[1])
        return operator.operand_bytes * (part[0] + part[1]) + written * part[2] / whole[2]
    return operator.bytes * sum(part) / sum(whole)


class Waits(enum.Enum):
    """Which of the following compute kernels wait for a collective."""

    ALL = "all"  # it blocks
    # all but the kernels that follow at once in `Phase.WEIGHT_GRADIENT`
    NOT_WEIGHTS = "all but weights"
    NEXT_WEIGHT = "next weight"  # only the next kernel in that phase
    TAGGED = "tagged"  # only those that need its tag


@structs.dataclass(frozen=True, slots=True)
class Communication:
    """A collective inside a layer, or one step of a ring."""

    name: str
    axis: str  # name of its communicator (`mpsim.parallel.axes.Communicator`)
    # as the collective cost model names it: ``all_reduce``, ``all_gather``, ``reduce_scatter``,
    # ``all_to_all``; or ``send``, from every member to the next of a ring
    kind: str
    # whole tensor for an all-reduce, gathered size for all-gather and reduce-scatter, what one rank
    # sends otherwise (in an all-to-all with its own part) [B]
    size: float
    waits: Waits
    phase: Phase  # of the computation it belongs to
    repeated: bool = False  # whether it does again what the forward pass has done
    tag: str = ""  # what kernels that wait for it name in `Compute.needs`
    # tags of collectives that must have ended before it starts, beyond those of its own axis
    needs: frozenset[str] = frozenset()
    # of an all-to-all that enters every scale-up domain once and is passed on inside (else 0): what
    # a rank sends to peers in other domains, with its own part; `size` is what it sends inside [B]
    across: float = 0.0
    copies: Operator | None = None  # kernel on the same stream that puts what travels in order

    def holds(self, kernel: Compute | None) -> bool:
        """Whether the next kernel waits for it; None: one launched once the device is idle."""
        if self.waits is Waits.ALL or (kernel is not None and self.tag in kernel.needs):
            return True
        weights = kernel is not None and kernel.operator.phase is Phase.WEIGHT_GRADIENT
        return self.waits is not Waits.TAGGED and (self.waits is Waits.NEXT_WEIGHT) == weights


@structs.dataclass(frozen=True, slots=True)
class Compute:
    """A sharded operator in a block."""

    operator: Operator
    repeated: bool = False  # whether it does again what the forward pass has done
    # tags of collectives it waits for, besides those that all kernels of its phase wait for
    needs: frozenset[str] = frozenset()


@structs.dataclass(frozen=True, slots=True)
class Synchronization:
    """The host waits for the device, `count` times, and launches nothing until it has."""

    count: int
    launches: int = 0  # kernels shorter than their launch that the host issues before it waits


Item = Communication | Compute | Synchronization
