"""The model: one frozen description from which every operator and parameter count follows."""

from __future__ import annotations

import dataclasses

__all__ = ["Lowering", "Transformer"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder-only transformer (dense).

    Parameters
    ----------
    layers, hidden, heads, kv_heads, head_dim, ffn_hidden, vocab : int
    gated_mlp : bool
        SwiGLU-like: two input projections.
    tied_embeddings : bool
        Whether the output projection is the embedding transposed.
    norm : str
        ``layernorm`` or ``rmsnorm``.
    bias, qkv_bias : bool
        Biases on every projection; on the query/key/value projection alone.
    dropout : float
        Hidden and attention dropout probability in training; 0 removes the kernels.
    attention : str
        ``causal``, ``full`` or ``sliding``.
    window : int
        Sliding window [tokens].
    positions : str
        ``learned``, ``rotary``, ``alibi`` or ``none``; learned ones add `max_positions` x hidden parameters.
    parallel_block : bool
        Attention and MLP read the same norm and are summed (PaLM, GPT-J).
    embedding_norm : bool
        A norm after the embedding (BLOOM).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool = False
    tied_embeddings: bool = True
    norm: str = "layernorm"
    bias: bool = True
    qkv_bias: bool = True
    dropout: float = 0.0
    attention: str = "causal"
    window: int = 0
    positions: str = "learned"
    max_positions: int = 0
    parallel_block: bool = False
    embedding_norm: bool = False
    source: str = ""

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
    activation_bytes : int
        Bytes of an activation element (2 for bf16/fp16, 4 for fp32).
    weight_grad_bytes : int
        Bytes of an element of the gradient that weight gradients are added into.
    loss_bytes_per_logit : float
        Memory traffic of the loss, forward and backward together [B per logit].
    """

    fused_attention: bool = True
    fused_softmax: bool = True
    fused_bias_activation: bool = True
    fused_bias_dropout_add: bool = True
    activation_bytes: int = 2
    weight_grad_bytes: int = 4
    loss_bytes_per_logit: float = 30.0
