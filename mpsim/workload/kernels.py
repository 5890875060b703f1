"""How single kernels are counted: GEMMs by their shape, memory-bound ones by tensors moved.

Legend: A bytes of an activation, G bytes of a gradient buffer element, (m, n, k) the product (m, k) @ (k, n).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from mpsim.workload.expansion import Step
from mpsim.workload.operators import Operator, OperatorKind, Phase, Split
from mpsim.workload.transformer import Lowering

__all__ = [
    "LABEL_BYTES",
    "MASK_BYTES",
    "PASSES",
    "STATISTIC_BYTES",
    "Passes",
    "batched_product",
    "gemm",
    "streaming",
]

MASK_BYTES = 1  # torch.bool
STATISTIC_BYTES = 4  # float32, whatever the activations are
LABEL_BYTES = 8  # torch.int64


@dataclasses.dataclass(frozen=True, slots=True)
class Passes:
    """Activation tensors that a memory-bound kernel reads and writes, forward and backward.

    A kernel with `mask` also writes a dropout mask forward and reads it backward.
    """

    forward: int
    backward: int
    mask: bool = False


# Counted per element of the tensor named first. "grad" is the gradient of the output.
PASSES: Mapping[str, Passes] = MappingProxyType(
    {
        # x in, y out | grad and x in, dx out, and a second reading for the weight's gradient
        "norm": Passes(2, 4),
        # q, k in and out | the same rotation backwards
        "rotary": Passes(2, 2),
        # x in, y out | grad, x in, dx out
        "activation": Passes(2, 3),
        # gate, up in, y out | grad, gate, up in, dgate, dup out
        "gated_activation": Passes(3, 5),
        # the two kernels of an unfused gated activation: silu(gate), then times up
        "gate": Passes(2, 3),
        "gate_times_up": Passes(3, 5),
        # x in, y out | grad in, summed over tokens into the bias gradient
        "bias": Passes(2, 1),
        # x in, y and mask out | grad and mask in, dx out
        "dropout": Passes(2, 2, mask=True),
        # x, residual in, y out | the gradients of both branches in, their sum out
        "residual_add": Passes(3, 3),
        # all three at once; the gradients of both branches in, their sum out
        "bias_dropout_add": Passes(3, 3, mask=True),
        # scores in, probabilities out | grad, probabilities in, dscores out
        "softmax": Passes(2, 3),
        # scores in and out | grad in and out
        "scale": Passes(2, 2),
        "mask": Passes(2, 2),
    }
)

_PRODUCT = 2  # a multiply and an add


def gemm(
    name: str,
    split: Split,
    *,
    tokens: int,
    features_out: int,
    features_in: int,
    lowering: Lowering,
    saved: float = 0.0,
    saved_for_weight: float = 0.0,
) -> Step:
    """Build a linear projection: its product and the two products of its gradients.

    Parameters
    ----------
    name : str
    split : Split
        COLUMN or ROW.
    tokens, features_out, features_in : int
        The product is (tokens, features_in) @ (features_in, features_out).
    lowering : Lowering
    saved, saved_for_weight : float
        Bytes kept, divided as TENSOR [B].

    Returns
    -------
    Step
        The product; its input gradient, then its weight gradient.
    """
    column = split is Split.COLUMN
    shapes = (
        (Phase.FORWARD, tokens, features_out, features_in, "n" if column else "k"),
        (Phase.INPUT_GRADIENT, tokens, features_in, features_out, "k" if column else "n"),
        (Phase.WEIGHT_GRADIENT, features_out, features_in, tokens, "m" if column else "n"),
    )
    forward, *backward = (
        _product(name, phase, split, (1, m, n, k), dim, lowering) for phase, m, n, k, dim in shapes
    )
    kept = dataclasses.replace(
        forward, saved=saved, saved_for_weight=saved_for_weight, saved_split=Split.TENSOR
    )
    return Step(kept, tuple(backward))


def batched_product(
    name: str, phase: Phase, shape: tuple[int, int, int, int], lowering: Lowering
) -> Operator:
    """Build one product of the attention core; `shape` is (batch, m, n, k), heads are divided."""
    return _product(name, phase, Split.TENSOR, shape, "batch", lowering)


def _product(
    name: str,
    phase: Phase,
    split: Split,
    shape: tuple[int, int, int, int],
    sharded_dim: str,
    lowering: Lowering,
) -> Operator:
    batch, m, n, k = shape
    accumulate = lowering.weight_grad_bytes if phase is Phase.WEIGHT_GRADIENT else 0
    written = 2 * accumulate if accumulate else lowering.activation_bytes
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        phase=phase,
        split=split,
        batch=batch,
        m=m,
        n=n,
        k=k,
        sharded_dim=sharded_dim,
        flops=float(_PRODUCT * batch * m * n * k),
        bytes=float(batch * (lowering.activation_bytes * (m * k + k * n) + written * m * n)),
        accumulate_bytes=float(accumulate),
    )


def streaming(
    name: str,
    passes: str,
    split: Split,
    *,
    elements: int,
    lowering: Lowering,
    masked: bool = True,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    saved: float = 0.0,
    saved_for_weight: float = 0.0,
) -> Step:
    """Build a memory-bound kernel and its backward kernel.

    Parameters
    ----------
    name : str
    passes : str
        Row of `PASSES`.
    split : Split
        Of its work and of what it saves.
    elements : int
        Of the tensor that `passes` counts.
    lowering : Lowering
    masked : bool
        Whether the mask of `passes` exists; false when dropout is 0.
    kind : OperatorKind
    saved, saved_for_weight : float
        Bytes kept besides the mask [B].

    Returns
    -------
    Step
    """
    count = PASSES[passes]
    mask = float(MASK_BYTES * elements) if count.mask and masked else 0.0
    moved = elements * lowering.activation_bytes
    forward = Operator(
        name=name,
        kind=kind,
        phase=Phase.FORWARD,
        split=split,
        bytes=count.forward * moved + mask,
        saved=saved + mask,
        saved_for_weight=saved_for_weight,
        saved_split=split,
    )
    backward = Operator(
        name=name,
        kind=kind,
        phase=Phase.INPUT_GRADIENT,
        split=split,
        bytes=count.backward * moved + mask,
    )
    return Step(forward, (backward,))
