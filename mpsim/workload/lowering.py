"""Lowering: how software turns a model into kernels."""

from __future__ import annotations

import dataclasses

from mpsim.errors import WorkloadError

__all__ = ["Lowering"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """How software turns the model into kernels (chosen by the framework preset).

    Parameters
    ----------
    fused_attention : bool
        One FlashAttention-like kernel, or scores materialised (two batched GEMMs, softmax, dropout).
    fused_softmax : bool
        With materialised scores: scale, mask and softmax in one kernel, or three.
    fused_bias_activation, fused_bias_dropout_add : bool
        One kernel each, or one kernel an operation.
    merged_qkv : bool
        Whether queries, keys and values are one tensor, all of which is kept because the values are a view of it, also
        where queries and keys are changed afterwards; else each is a tensor.
    separate_projections : bool
        Whether queries, keys and values, and gate and up, are products of their own, each of which reads the tokens, and whose input
        gradients are added up by a kernel; else they are one product.
    repeated_keys : bool
        Whether keys and values of grouped heads are copied out to all heads before attention (``repeat_kv``), so that the copies are kept, and travel
        with context parallelism; else the kernel reads the few.
    weighted_activation : bool
        Whether the weights of routed experts enter in their activation, so that their output need not be kept, or after the experts.
    fused_grouped_mlp : bool
        Whether biases, activation and casts between the products of experts ride in the epilogues of those (Transformer Engine's fused
        grouped MLP), or are kernels of their own; biases are then weighed and added one expert after the other, and a gate beside them is
        scaled and clamped, one kernel each.
    compiled_experts : bool
        Without `fused_grouped_mlp`: whether a clamped gate is one compiled kernel and biases are added to all rows at once (AutoModel), or each
        step and each expert is a kernel of its own (Megatron-Core).
    wide_routing : bool
        Whether weights of routed experts are float32, which every kernel that they enter is then, or as wide as activations.
    embedding_product : bool
        Whether tokens are looked up by a product of the table with one-hot rows, as on TPUs, instead of a gather.
    wide_norms : bool
        Whether an RMS norm is a chain of float32 kernels, which keeps its input in float32 and what it has normalised, before the weight; else it is one kernel, which
        keeps its input as it came.
    activation_bytes : int
        Bytes of an activation element (2 for bf16/fp16, 4 for fp32).
    weight_grad_bytes : int
        Bytes of an element of the gradient that weight gradients are added into.
    loss_bytes_per_logit : float
        Memory traffic of the loss, forward and backward together [B per logit].
    loss_kept_bytes : float
        Kept from the loss's forward to its backward [B per logit]; 0 for logits as activations and their softmax in float32.
    loss_peak_bytes : float
        Alive at the fullest moment of the loss's backward, what was kept included [B per logit]; 0 for no more than the output
        projection's gradients need after it.

    Raises
    ------
    WorkloadError
        If a size is not positive.
    """

    fused_attention: bool = True
    fused_softmax: bool = True
    fused_bias_activation: bool = True
    fused_bias_dropout_add: bool = True
    merged_qkv: bool = False
    separate_projections: bool = False
    repeated_keys: bool = False
    embedding_product: bool = False
    fused_grouped_mlp: bool = False
    compiled_experts: bool = False
    wide_routing: bool = True
    weighted_activation: bool = False
    wide_norms: bool = False
    activation_bytes: int = 2
    weight_grad_bytes: int = 4
    loss_bytes_per_logit: float = 30.0
    loss_kept_bytes: float = 0.0
    loss_peak_bytes: float = 0.0

    def __post_init__(self) -> None:
        mistakes = [
            f"lowering: {field} is {getattr(self, field)!r}; it must be a positive number of bytes"
            for field in ("activation_bytes", "weight_grad_bytes", "loss_bytes_per_logit")
            if not getattr(self, field) > 0
        ]
        if mistakes:
            raise WorkloadError("\n".join(mistakes))
