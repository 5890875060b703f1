"""Builders of operators: the one place that counts FLOPs and bytes of a kernel.

`make_gemm`, `make_attention` and `make_elementwise` build one operator of one phase; `linear` and
`streaming` a forward kernel with the gradients that answer it.

Legend: A bytes of an activation, G of a gradient buffer's element, (m, n, k) a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypedDict, Unpack

from mpsim import structs
from mpsim.shipped import read_shipped
from mpsim.workload.expansion import Lowering, Step
from mpsim.workload.operators import Module, Operator, OperatorKind, Phase, Role, Split

MASK_BYTES: Final = 1  # torch.bool
STATISTIC_BYTES: Final = 4  # float32, whatever the activations are
LABEL_BYTES: Final = 8  # torch.int64

BACKWARD_ATTENTION: Final = 2.5
"""FLOPs of fused attention backward over forward, keys as wide as values (Dao 2023, 4.1)."""

_MULTIPLY_ADD: Final = 2
# Forward is two products, scores over the width of a key and context over that of a value; the
# fused backward runs five: the scores again, and the gradients of values, probabilities, queries
# and keys.
_BACKWARD_KEY_PRODUCTS: Final = 3
_BACKWARD_VALUE_PRODUCTS: Final = 2


def gemm_flops(m: float, n: float, k: float, batch: float = 1) -> float:
    """FLOPs of ``batch`` products (m, k) @ (k, n): a multiply and an add each [FLOP]."""
    return float(_MULTIPLY_ADD * batch * m * n * k)


def attention_flops(
    pairs: float, head_dim: int, head_dim_v: int, phase: Phase = Phase.FORWARD
) -> float:
    """FLOPs of attention over so many pairs of query and key, heads and sequences in [FLOP].

    `pairs`: ``sequences * heads * queries * keys``, or those that a mask leaves. `head_dim`,
    `head_dim_v`: width of a key, and of a value. `phase`: forward, or the fused backward.

    References
    ----------
    Dao, FlashAttention-2 (2023), section 4.1: backward has 2.5 times the FLOPs of forward.
    """
    features = head_dim + head_dim_v
    if phase is not Phase.FORWARD:
        features = _BACKWARD_KEY_PRODUCTS * head_dim + _BACKWARD_VALUE_PRODUCTS * head_dim_v
    return gemm_flops(pairs, 1, features)


def make_gemm(
    role: Role,
    phase: Phase,
    *,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    element_bytes: float = 2,
    result_bytes: float | None = None,
    accumulate_bytes: float = 0,
    kind: OperatorKind = OperatorKind.GEMM,
    module: Module = Module.NONE,
    name: str = "",
    split: Split = Split.NONE,
    sharded_dim: str = "",
    attends: str = "",
    weights: int = 1,
) -> Operator:
    """Build a matrix product, or a batch of them.

    `m`, `n`, `k`, `batch`: (batch x) (m, k) @ (k, n) of this phase's own product. `element_bytes`:
    of an element of both operands [B]. `result_bytes`: moved for an element of the result; as of an
    operand by default [B]. `accumulate_bytes`: of an element of the buffer that the result is added
    into, which is read and written; 0 where it is only written [B]. `kind`: GEMM or GROUPED_GEMM.
    `module`, `name`, `split`, `sharded_dim`, `attends`, `weights`: as of `Operator`; the name is
    the role's by default.
    """
    written = element_bytes if result_bytes is None else result_bytes
    if accumulate_bytes:
        written = 2 * accumulate_bytes
    return Operator(
        name=name or role.value,
        kind=kind,
        role=role,
        phase=phase,
        module=module,
        split=split,
        batch=batch,
        m=m,
        n=n,
        k=k,
        sharded_dim=sharded_dim,
        attends=attends,
        flops=gemm_flops(m, n, k, batch),
        bytes=float(batch * (element_bytes * (m * k + k * n) + written * m * n)),
        accumulate_bytes=float(accumulate_bytes),
        weights=weights,
    )


def make_attention(
    phase: Phase,
    *,
    sequences: int,
    queries: int,
    keys: int,
    heads: int,
    head_dim: int,
    head_dim_v: int = 0,
    kv_heads: int = 0,
    causal: bool = True,
    window: int = 0,
    element_bytes: float = 2,
    statistics: bool = True,
    module: Module = Module.ATTENTION,
    name: str = "",
    split: Split = Split.TENSOR,
) -> Operator:
    """Build fused attention of queries to keys: a sequence, a chunk of it, or a next token.

    `phase`: forward, or the fused backward (an input gradient). `sequences`, `queries`, `keys`:
    sequences, and queries and keys of each. `heads`, `head_dim`: query heads, and the width of a
    query and a key. `head_dim_v`, `kv_heads`: width of a value, and heads of keys and values; as of
    queries by default. `causal`, `window`: as of `Operator`; FLOPs count every pair either way.
    `element_bytes`: of an element of queries, keys, values and output [B]. `statistics`: whether a
    number for each query and head is written for the backward, or read there. `module`, `name`,
    `split`: as of `Operator`; the name is the role's by default.

    Notes
    -----
    Forward reads q, k, v and writes the output; backward reads them with the output and its
    gradient and writes the gradients of q, k and v.
    """
    width, kv = head_dim_v or head_dim, kv_heads or heads
    tokens, pairs = sequences * queries, sequences * heads * queries * keys
    query, output = (element_bytes * tokens * heads * each for each in (head_dim, width))
    key_value = element_bytes * sequences * keys * kv * (head_dim + width)
    logsumexp = float(STATISTIC_BYTES * tokens * heads) if statistics else 0.0
    forward = phase is Phase.FORWARD
    moved = query + output + key_value
    return Operator(
        name=name or Role.ATTENTION.value,
        kind=OperatorKind.ATTENTION,
        role=Role.ATTENTION,
        phase=phase,
        module=module,
        split=split,
        heads=heads,
        kv_heads=kv,
        head_dim=head_dim,
        head_dim_v=width,
        queries=queries,
        keys=keys,
        sequences=sequences,
        causal=causal,
        window=window,
        flops=attention_flops(pairs, head_dim, width, phase),
        bytes=(moved if forward else 2 * moved) + logsumexp,
        saved=logsumexp if forward else 0.0,
        saved_split=split if forward else Split.NONE,
    )


class Own(TypedDict, total=False):
    """Fields of an `Operator` that builders of memory-bound kernels pass on."""

    module: Module
    saved: float
    saved_for_weight: float
    saved_split: Split


def make_elementwise(
    role: Role,
    phase: Phase,
    *,
    moved: float,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    name: str = "",
    split: Split = Split.NONE,
    **own: Unpack[Own],
) -> Operator:
    """Build a memory-bound kernel: elementwise, a norm, a softmax, a loss or a cast, by its `kind`.

    `moved`: bytes read and written [B]. `kind`, `name`, `split`, `**own`: as of `Operator`; the
    name is the role's by default.
    """
    called, read = name or role.value, float(moved)
    return Operator(name=called, kind=kind, role=role, phase=phase, split=split, bytes=read, **own)


def orthogonal_products(weight: Operator) -> tuple[Operator, ...]:
    """Products of an iteration of Newton and Schulz (quintic, 16 bits) on matrices of `weight`.

    Notes
    -----
    With X of m x n, m <= n: ``A = X X^T``, ``A^2``, ``B X``: 4 m^2 n + 2 m^3 FLOP (optim/_muon.py).
    """
    rows, columns, count = weight.m // weight.weights, weight.n, weight.batch * weight.weights
    m, n = min(rows, columns), max(rows, columns)
    shapes = ((m, m, n), (m, m, m), (m, n, m))
    return tuple(
        make_gemm(Role.KERNEL, Phase.FORWARD, m=a, n=b, k=c, batch=count) for a, b, c in shapes
    )


# --- a forward kernel with its gradients ----------------------------------------------------------


_SHARDED: Final = {Split.COLUMN: ("n", "k", "m"), Split.ROW: ("k", "n", "n")}
_TOKENS: Final = ("m", "m", "k")
"""Dimension that tensor parallelism divides in a product and its gradients' ones."""


def linear(
    role: Role,
    split: Split,
    *,
    tokens: int,
    features_out: int,
    features_in: int,
    lowering: Lowering,
    module: Module = Module.NONE,
    name: str = "",
    weights: int = 1,
    saved: float = 0.0,
    saved_for_weight: float = 0.0,
) -> Step:
    """Build a linear projection: its product and the two products of its gradients.

    `split`: COLUMN or ROW; or SEQUENCE where every tensor-parallel rank has the weight and, with
    sequence parallelism, its share of the tokens. `tokens`, `features_out`, `features_in`: the
    product is (tokens, features_in) @ (features_in, features_out). `module`, `name`, `weights`: as
    of `Operator`. `saved`, `saved_for_weight`: bytes kept, divided as TENSOR, or as SEQUENCE where
    the product is [B].

    Returns: the product; its input gradient, then its weight gradient.
    """
    shapes = (
        (tokens, features_out, features_in),
        (tokens, features_in, features_out),
        (features_out, features_in, tokens),
    )

    def product(phase: Phase, place: int, accumulate: int) -> Operator:
        m, n, k = shapes[place]
        return make_gemm(
            role,
            phase,
            m=m,
            n=n,
            k=k,
            element_bytes=lowering.activation_bytes,
            accumulate_bytes=accumulate,
            module=module,
            name=name,
            split=split,
            sharded_dim=_SHARDED.get(split, _TOKENS)[place],
            weights=weights,
        )

    forward = structs.replace(
        product(Phase.FORWARD, 0, 0),
        saved=saved,
        saved_for_weight=saved_for_weight,
        saved_split=Split.SEQUENCE if split is Split.SEQUENCE else Split.TENSOR,
    )
    backward = (
        product(Phase.INPUT_GRADIENT, 1, 0),
        product(Phase.WEIGHT_GRADIENT, 2, lowering.weight_grad_bytes),
    )
    return Step(forward, backward)


@structs.dataclass(frozen=True, slots=True)
class Passes:
    """Activation tensors that a memory-bound kernel reads and writes, forward and backward.

    A kernel with `mask` also writes a dropout mask forward and reads it backward.
    """

    role: Role
    forward: int
    backward: int
    mask: bool = False
    kind: OperatorKind = OperatorKind.ELEMENTWISE


# Counted per element of the tensor named first. "grad" is the gradient of the output.
def _passes(role: str, kind: str = "elementwise", **counts: Any) -> Passes:
    """A row of data/passes.yaml."""
    return Passes(Role(role), kind=OperatorKind(kind), **counts)


PASSES: Mapping[str, Passes] = MappingProxyType(
    {
        name: _passes(**row)
        for name, row in read_shipped("mpsim.workload.data", "passes.yaml").items()
    }
)


def streaming(
    passes: str,
    split: Split,
    *,
    elements: int,
    lowering: Lowering,
    role: Role | None = None,
    name: str = "",
    masked: bool = True,
    **own: Unpack[Own],
) -> Step:
    """Build a memory-bound kernel and its backward kernel.

    `passes`: row of `PASSES`. `split`: of its work and of what it saves. `elements`: of the tensor
    that `passes` counts. `role`: as `passes` has it by default. `name`: `passes` by default.
    `masked`: whether the mask of `passes` exists; false when dropout is 0. `**own`: as of
    `Operator`; what is saved is so besides the mask.
    """
    count = PASSES[passes]
    mask = float(MASK_BYTES * elements) if count.mask and masked else 0.0
    tensor = elements * lowering.activation_bytes
    moved = count.forward * tensor + mask, count.backward * tensor + mask
    own |= {"saved": own.get("saved", 0.0) + mask, "saved_split": split}
    return moving(role or count.role, split, moved, kind=count.kind, name=name or passes, **own)


def moving(
    role: Role,
    split: Split,
    moved: tuple[float, float],
    *,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    name: str = "",
    **own: Unpack[Own],
) -> Step:
    """Build a memory-bound kernel and its backward from the bytes of each; the forward keeps."""

    def kernel(phase: Phase, size: float, **own: Unpack[Own]) -> Operator:
        return make_elementwise(role, phase, moved=size, kind=kind, name=name, split=split, **own)

    module = own.get("module", Module.NONE)
    backward = kernel(Phase.INPUT_GRADIENT, moved[1], module=module)
    return Step(kernel(Phase.FORWARD, moved[0], **own), (backward,))
