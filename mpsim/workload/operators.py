"""Operators: what one layer asks of the hardware, before anybody divides it.

An `Operator` is one kernel of the model for one microbatch on one data- and context-parallel rank, not divided by tensor
parallelism; ``split`` says which of its dimensions tensor parallelism divides, so that `mpsim.parallel` can shard it without
knowing what it is.

Backward operators keep the ``split`` of their forward operator: the input gradient of a COLUMN GEMM is the one whose result
has to be reduced, that of a ROW GEMM the one whose incoming gradient is whole (or gathered).

Only forward operators report saved bytes. Every kept tensor is reported once, by an operator placed so that dropping the
``saved`` of all operators flagged ``recomputed_selectively`` is exactly what recomputing them saves: what goes into the
attention core (q, k, v) is reported before it, what comes out of it by ``proj``.
"""

from __future__ import annotations

import dataclasses
import enum

__all__ = ["Operator", "OperatorKind", "Phase", "Split"]


class OperatorKind(enum.StrEnum):
    """Which cost form applies."""

    GEMM = "gemm"  # batch x (m, k) @ (k, n)
    GROUPED_GEMM = "grouped_gemm"  # batch experts, each (m, k) @ (k, n); m is the mean of tokens an expert gets
    ATTENTION = "attention"  # one fused kernel
    NORM = "norm"  # memory bound, fused row reduction
    SOFTMAX = "softmax"  # memory bound
    ELEMENTWISE = "elementwise"  # memory bound
    EMBEDDING = "embedding"  # memory bound gather or scatter-add
    LOSS = "loss"  # memory bound, over the vocabulary
    QUANTISE = "quantise"  # memory bound, cast to a narrow format


class Phase(enum.StrEnum):
    """When it runs: forward, input gradient (I) or weight gradient (W)."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


class Split(enum.StrEnum):
    """What tensor parallelism of degree t does to the operator."""

    COLUMN = "column"  # GEMM with sharded output features: input replicated (or gathered), n / t
    ROW = "row"  # GEMM with sharded input features: k / t, output to be reduced
    TENSOR = "tensor"  # work divided by t (heads, or activations between column and row)
    SEQUENCE = "sequence"  # divided by t only with sequence parallelism
    EXPERT = "expert"  # experts divided by expert parallelism, their features by expert-tensor parallelism
    NONE = "none"  # never divided


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One kernel of one phase of one microbatch.

    Parameters
    ----------
    name : str
        What the field calls it: ``qkv``, ``attention``, ``proj``, ``fc1``, ``norm1``, ``dropout_add`` ...
    kind : OperatorKind
    phase : Phase
    split : Split
    m, n, k, batch : int
        GEMM shape in *this* phase's own product, (batch x) (m, k) @ (k, n); 0 for other kinds. For a column GEMM in FORWARD
        (tokens, out, in): COLUMN divides n; its dgrad is (tokens, in, out): COLUMN divides k; its wgrad is (out, in, tokens): divides m.
        Which one is divided is `sharded_dim`.
    sharded_dim : str
        ``"m"``, ``"n"``, ``"k"``, ``"batch"`` or ``""``: the GEMM dimension that tensor parallelism divides.
    heads, kv_heads, head_dim, head_dim_v, queries, keys, sequences : int
        Shape of a fused attention kernel; `queries` and `keys` are sequence lengths, `sequences` the batch. A lookup in a table has
        the last and `queries` too.
    causal : bool
        Whether the kernel skips the masked half (time); FLOPs are counted in full either way.
    window : int
        Sliding window [tokens], 0 for none; like `causal` it shortens the time, not `flops`.
    flops : float
        Matrix products only, a multiply-add is 2; every query against every key, masked or not [FLOP]. Memory-bound kernels
        count 0.
    bytes : float
        Moved to and from device memory, every operand once [B].
    saved : float
        Activation bytes kept from forward until the input gradient ran, and freed then [B].
    saved_for_weight : float
        Activation bytes kept longer, until the weight gradient ran [B]; not part of `saved`. A tensor that both gradients
        need is here, since the weight gradient never runs before the input gradient of its layer.
    saved_split : Split
        How tensor parallelism divides `saved` and `saved_for_weight`: TENSOR by t, SEQUENCE by t with sequence parallelism
        only, NONE never.
    recomputed_selectively : bool
        Whether it belongs to the attention core that selective recomputation runs again instead of saving (forward only).
    accumulate_bytes : float
        Bytes of an element of the buffer a weight gradient adds into, 0 for other operators; reading and writing that buffer
        is counted in `bytes` instead of writing the product.
    operand_bytes : float
        Bytes of an element of both inputs of a product where they were cast to a narrow format, 0 where they were not.
    weights : int
        Products with weights of their own that it stands for: their tokens are read, and the gradients of those written, once for each.
    """

    name: str
    kind: OperatorKind
    phase: Phase
    split: Split = Split.NONE
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    sharded_dim: str = ""
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    head_dim_v: int = 0
    queries: int = 0
    keys: int = 0
    sequences: int = 0
    causal: bool = True
    window: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    saved: float = 0.0
    saved_for_weight: float = 0.0
    saved_split: Split = Split.NONE
    recomputed_selectively: bool = False
    accumulate_bytes: float = 0.0
    operand_bytes: float = 0.0
    weights: int = 1

    @property
    def repeated_bytes(self) -> float:
        """Moved beyond `bytes` because several weights share what is multiplied: what they read or write anew [B]."""
        if self.weights == 1:
            return 0.0
        ins = self.batch * (self.m * self.k + self.k * self.n)
        out = self.batch * self.m * self.n
        element = self.operand_bytes
        if self.accumulate_bytes:
            element = (self.bytes - 2 * self.accumulate_bytes * out) / ins
        element = element or self.bytes / (ins + out)
        if self.phase is Phase.INPUT_GRADIENT:
            written = (self.bytes - element * ins) / out
            return (self.weights - 1) * written * out
        shared = self.m * self.k if self.phase is Phase.FORWARD else self.k * self.n
        return (self.weights - 1) * element * self.batch * shared
