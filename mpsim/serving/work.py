"""Work of a rank: the weights it multiplies, the keys and values it reads, in one iteration of a served model.

An instance is ``tp x pp`` accelerators (with attention data parallelism the ``tp`` ranks keep whole heads and requests of their own, and meet in the experts). Everything here is
per rank and per iteration, and linear in the tokens that take part, so that an iteration is priced from a handful of numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.errors import WorkloadError
from mpsim.workload import Transformer
from mpsim.workload.transformer import LayerKind

__all__ = ["FORMATS", "Attention", "ExpertWork", "Format", "Linear", "RankWork"]


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored and multiplied.

    Parameters
    ----------
    bytes : float
        Of a weight with its share of the scales [B].
    compute : str
        Precision whose matrix units do the product.
    """

    name: str
    bytes: float
    compute: str


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """Matrices of one shape that all tokens of an iteration pass.

    Parameters
    ----------
    out, into : float
        Features on this rank: (tokens, into) @ (into, out).
    layers : int
        How many such matrices.
    share : float
        Tokens that pass it over those of the instance's iteration: below 1 with attention data parallelism.
    """

    role: str
    out: float
    into: float
    layers: int
    format: Format
    share: float = 1.0

    @property
    def weights(self) -> float:
        """Elements of one matrix."""
        return self.out * self.into


@dataclasses.dataclass(frozen=True, slots=True)
class ExpertWork:
    """Routed experts of equal layers.

    Parameters
    ----------
    elements : float
        Of one expert on this rank: all its matrices, divided by the tensor parallelism inside experts.
    ep : int
        Ranks that divide the experts among them.
    imbalance : float
        Tokens of the busiest rank over the mean.
    """

    layers: int
    experts: int
    top_k: int
    elements: float
    ep: int
    format: Format
    imbalance: float = 1.0

    def touched(self, tokens: float) -> float:
        """Experts of one rank that at least one of so many tokens is routed to, in the mean."""
        missed = float((1.0 - self.top_k / self.experts) ** tokens)
        return self.experts / self.ep * (1.0 - missed)


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    """Attention of equal layers on one rank.

    Parameters
    ----------
    heads, kv_heads : float
        Query heads, and key-value heads whose cache is read.
    key_width, value_width : int
        Elements of a key and a value that a query head multiplies; of latent attention those of the prompt's, not absorbed.
    read_width : float
        Elements of cache a token that one decode reads: all key-value heads of the rank.
    decode_width : float
        Elements multiplied a query head and cached token in decoding (two FLOP each): absorbed for latent attention.
    window : int
        Tokens a query sees, 0 for all.
    """

    layers: int
    heads: float
    kv_heads: float
    key_width: int
    value_width: int
    read_width: float
    decode_width: float
    window: int = 0
    latent: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RankWork:
    """All that one rank of the fullest stage does in an iteration."""

    hidden: int
    layers: int
    linears: tuple[Linear, ...]
    experts: tuple[ExpertWork, ...]
    attention: tuple[Attention, ...]
    head: Linear
    tp: int
    pp: int
    ep: int
    attention_dp: int
    dense_layers: int
    expert_layers: int
    weight_bytes: float
    """Of one rank of the fullest stage [B]."""
    cache_elements: float
    """Elements of cache that a token takes on one rank of the fullest stage, windows apart."""

    @classmethod
    def of(
        cls,
        model: Transformer,
        *,
        tp: int,
        pp: int = 1,
        ep: int = 1,
        attention_dp: int = 1,
        weights: Format,
        wide: Format,
        attention_weights: Format | None = None,
        imbalance: float = 1.0,
    ) -> RankWork:
        """Divide a model among the ranks of an instance.

        Parameters
        ----------
        tp, pp, ep, attention_dp : int
            Tensor parallel ranks of a stage, stages, ranks that divide experts, ranks with requests of their own.
        weights, wide : Format
            Of the linear layers, and of what stays wide: output head, router, embedding.
        attention_weights : Format, optional
            Of the projections around attention where they differ from the rest.
        imbalance : float
            Tokens of the busiest expert rank over the mean.
        """
        around = attention_weights or weights
        attention_tp = max(1, tp // attention_dp)
        share = 1.0 / attention_dp
        kinds: dict[LayerKind, int] = {}
        for kind in model.kinds[: model.layers - model.mtp_layers]:
            kinds[kind] = kinds.get(kind, 0) + 1
        stage = {kind: -(-count // pp) if pp > 1 else count for kind, count in kinds.items()}
        layers = -(-sum(kinds.values()) // pp)
        linears: list[Linear] = []
        experts: list[ExpertWork] = []
        attention: list[Attention] = []
        expert_layers = 0
        for kind, count in stage.items():
            linears += _projections(model, attention_tp, count, around, share)
            attention.append(_attention(model, kind, attention_tp, count))
            if kind.experts and model.moe is not None:
                expert_layers += count
                more, routed = _experts(model, tp, ep, count, weights, wide, imbalance)
                linears += more
                experts.append(routed)
            else:
                linears += [
                    Linear("gate and up", model.fc1_features / tp, model.hidden, count, weights),
                    Linear("down", model.hidden, model.ffn_hidden / tp, count, weights),
                ]
        head = Linear("logits", model.vocab / tp, model.hidden, 1, wide)
        own = sum(linear.weights * linear.layers * linear.format.bytes for linear in linears)
        own += sum(
            expert.layers * expert.experts / expert.ep * expert.elements * expert.format.bytes
            for expert in experts
        )
        embedding = model.vocab * model.hidden / tp * wide.bytes
        ends = (head.weights * wide.bytes if not model.tied_embeddings else 0.0) + embedding
        return cls(
            hidden=model.hidden,
            layers=layers,
            linears=tuple(linears),
            experts=tuple(experts),
            attention=tuple(attention),
            head=head,
            tp=tp,
            pp=pp,
            ep=ep,
            attention_dp=attention_dp,
            dense_layers=layers - expert_layers,
            expert_layers=expert_layers,
            weight_bytes=own + (ends if pp == 1 else ends / 2),
            cache_elements=sum(block.layers * block.read_width for block in attention),
        )


def _projections(
    model: Transformer, tp: int, layers: int, weights: Format, share: float
) -> Iterator[Linear]:
    """Linear layers around the attention core."""
    h, mla = model.hidden, model.mla
    if mla is None:
        repeated = max(model.kv_heads, tp) / tp  # fewer key-value heads than ranks: each has one
        out = (model.query_features / tp) + 2 * repeated * model.head_dim
        yield Linear("qkv", out, h, layers, weights, share)
        yield Linear("projection", h, model.context_features / tp, layers, weights, share)
        return
    heads = model.heads / tp
    if mla.q_lora_rank:
        yield Linear("query down", mla.q_lora_rank, h, layers, weights, share)
        yield Linear("query up", heads * mla.qk_head_dim, mla.q_lora_rank, layers, weights, share)
    else:
        yield Linear("query", heads * mla.qk_head_dim, h, layers, weights, share)
    yield Linear("latent down", mla.kv_lora_rank + mla.qk_rope_head_dim, h, layers, weights, share)
    # absorbed into queries and context in decoding, keys and values of a prompt otherwise: the same weights are read
    both = mla.qk_nope_head_dim + mla.v_head_dim
    yield Linear("latent up", heads * both, mla.kv_lora_rank, layers, weights, share)
    yield Linear("projection", h, heads * mla.v_head_dim, layers, weights, share)


def _attention(model: Transformer, kind: LayerKind, tp: int, layers: int) -> Attention:
    heads, mla = model.heads / tp, model.mla
    if mla is not None:
        latent = mla.kv_lora_rank + mla.qk_rope_head_dim
        return Attention(
            layers=layers,
            heads=heads,
            kv_heads=1.0,
            key_width=mla.qk_head_dim,
            value_width=mla.v_head_dim,
            read_width=latent,
            decode_width=latent + mla.kv_lora_rank,
            window=kind.window,
            latent=True,
        )
    kv_heads = max(1.0, model.kv_heads / tp)
    return Attention(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        key_width=model.head_dim,
        value_width=model.head_dim,
        read_width=2 * kv_heads * model.head_dim,
        decode_width=2 * model.head_dim,
        window=kind.window,
    )


def _experts(
    model: Transformer,
    tp: int,
    ep: int,
    layers: int,
    weights: Format,
    wide: Format,
    imbalance: float,
) -> tuple[list[Linear], ExpertWork]:
    moe = model.moe
    if moe is None:
        raise WorkloadError(f"{model.name} has no experts")
    inside = max(1, tp // ep) if ep > 1 else tp
    matrices = 3 if model.gated_experts else 2
    dense = [Linear("router", moe.experts, model.hidden, layers, wide)]
    if moe.shared_features:
        wide_up = moe.shared_features * (2 if model.gated_mlp else 1)
        dense += [
            Linear("shared gate and up", wide_up / tp, model.hidden, layers, weights),
            Linear("shared down", model.hidden, moe.shared_features / tp, layers, weights),
        ]
    routed = ExpertWork(
        layers=layers,
        experts=moe.experts,
        top_k=moe.top_k,
        elements=matrices * model.hidden * moe.ffn_hidden / inside,
        ep=ep,
        format=weights,
        imbalance=imbalance if ep > 1 else 1.0,
    )
    return dense, routed


FORMATS = {
    "bf16": Format("bf16", 2.0, "bf16"),
    "fp16": Format("fp16", 2.0, "fp16"),
    "fp32": Format("fp32", 4.0, "fp32"),
    "fp8": Format("fp8", 1.0, "fp8"),
    "fp8_block": Format("fp8_block", 1.0 + 4.0 / 128**2, "fp8"),
    "int8": Format("int8", 1.0, "int8"),
    "w4a16": Format("w4a16", 0.5 + 2.0 / 128, "bf16"),
    "nvfp4": Format("nvfp4", 0.5 + 1.0 / 16, "fp4"),
    "mxfp4": Format("mxfp4", 0.5 + 1.0 / 32, "fp4"),
}
"""Number formats of served weights: elements and their scales (128x128 blocks, 128 per group, 16 and 32 per block)."""
