"""How many parameters a transformer has, part by part, sharded and replicated apart.

Tensor parallelism shards what belongs to a head or to a feature between a column and a row GEMM, and the
vocabulary. Norms, the biases of row GEMMs (added once, after the reduction) and learned positions are
replicated on every tensor-parallel rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpsim.errors import WorkloadError

if TYPE_CHECKING:
    from mpsim.workload.experts import Experts, LatentAttention
    from mpsim.workload.kinds import LayerKind
    from mpsim.workload.transformer import Transformer

__all__ = ["Count", "Parameters", "count_parameters"]


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """Parameters of one part of the model.

    Parameters
    ----------
    sharded : int
        Divided among tensor-parallel ranks.
    replicated : int
        Held whole by each of them.
    experts : int
        Of all routed experts; divided among expert-parallel and expert-tensor-parallel ranks.
    """

    sharded: int = 0
    replicated: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        """All together."""
        return self.sharded + self.replicated + self.experts

    def per_rank(self, tp: int, *, ep: int = 1, etp: int = 1) -> float:
        """Parameters on one of `tp` tensor-parallel ranks, with its share of the experts."""
        return self.sharded / tp + self.replicated + self.experts_per_rank(ep=ep, etp=etp)

    def experts_per_rank(self, *, ep: int = 1, etp: int = 1) -> float:
        """Parameters of routed experts on one rank."""
        return self.experts / (ep * etp)

    def __add__(self, other: Count) -> Count:
        return Count(
            self.sharded + other.sharded,
            self.replicated + other.replicated,
            self.experts + other.experts,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a model by part.

    Parameters
    ----------
    embedding : Count
        Token table (sharded), learned or relative positions and embedding norm (replicated).
    layers : mapping of str to Count
        One transformer layer of each kind.
    kinds : tuple of str
        Kind of every layer.
    final_norm : Count
        The norm before the output head, that after an encoder, and what joins the inputs of further predictions.
    output_head : Count
        The output projection; zero when it is the embedding (tied).
    """

    embedding: Count
    layers: Mapping[str, Count]
    kinds: tuple[str, ...]
    final_norm: Count
    output_head: Count

    @property
    def layer(self) -> Count:
        """One layer of a model whose layers are all of one kind."""
        if len(self.layers) > 1:
            raise WorkloadError(
                f"layers are of {len(self.layers)} kinds; ask for one of {[*self.layers]}"
            )
        return next(iter(self.layers.values()))

    @property
    def total(self) -> int:
        """All of the model, each parameter once."""
        ends = self.embedding.total + self.final_norm.total + self.output_head.total
        return ends + sum(self.layers[kind].total for kind in self.kinds)


def count_parameters(model: Transformer, vocab: int) -> Parameters:
    """Count the parameters of `model` with `vocab` rows in its embedding and head.

    Parameters
    ----------
    model : Transformer
    vocab : int
        Rows of the token table, padded or not.

    Returns
    -------
    `Parameters`
        Part by part.
    """
    norm = _norm(model)
    table = vocab * model.hidden
    stacks = 2 if model.encoder_layers else 1
    return Parameters(
        embedding=Count(table, _positions(model, stacks) + (norm if model.embedding_norm else 0)),
        layers={kind.name: _layer(model, kind) for kind in dict.fromkeys(model.kinds)},
        kinds=model.layer_kinds,
        final_norm=Count(0, stacks * norm + model.mtp_layers * _joining(model, norm)),
        output_head=Count(0 if model.tied_embeddings else table),
    )


def _positions(model: Transformer, stacks: int) -> int:
    """Learned positions are added to the embedding; a table of relative ones serves all layers of a stack."""
    width = {"learned": model.hidden, "relative": stacks * model.heads}
    return model.max_positions * width.get(model.positions, 0)


def _joining(model: Transformer, norm: int) -> int:
    """A module of multi-token prediction: two norms before a projection from twice the width, one after its layer."""
    return 2 * model.hidden**2 + 3 * norm


def _norm(model: Transformer) -> int:
    return model.hidden * _norm_tensors(model)


def _norm_tensors(model: Transformer) -> int:
    return 2 if model.norm == "layernorm" and model.bias else 1


def _layer(model: Transformer, kind: LayerKind) -> Count:
    attention = _latent(model, model.mla) if model.mla else _attention(model)
    mlp = _experts(model, model.moe) if kind.experts and model.moe else _mlp(model)
    blocks = 1 + kind.cross + (not model.parallel_block)
    row_gemms = blocks if not kind.experts else blocks - 1  # the experts count their own
    replicated = _norm(model) * blocks * (2 if model.post_norm else 1)
    replicated += row_gemms * model.hidden if model.bias else 0
    cross = _attention(model) if kind.cross else Count()
    return attention + cross + mlp + Count(0, replicated)


def _attention(model: Transformer) -> Count:
    """Projections of queries, keys, values and context; the bias of the last is counted with the row GEMMs."""
    matrices = model.hidden * (model.qkv_features + model.query_features)
    head_norms = 2 * model.head_dim * _norm_tensors(model) if model.qk_norm else 0
    return Count(matrices + (model.qkv_features if model.has_qkv_bias else 0), head_norms)


def _latent(model: Transformer, mla: LatentAttention) -> Count:
    key_value = model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    up = (mla.q_lora_rank or model.hidden) * model.query_features + mla.kv_lora_rank * key_value
    narrow = mla.kv_lora_rank + mla.qk_rope_head_dim + mla.q_lora_rank
    norms = mla.q_lora_rank + mla.kv_lora_rank
    return Count(up + model.context_features * model.hidden, model.hidden * narrow + norms)


def _mlp(model: Transformer) -> Count:
    matrices = model.hidden * (model.fc1_features + model.ffn_hidden)
    return Count(matrices + (model.fc1_features if model.bias else 0))


def _experts(model: Transformer, moe: Experts) -> Count:
    inner, shared = moe.ffn_hidden, moe.shared_features
    fc1 = inner * (2 if model.gated_experts else 1)
    one = model.hidden * (fc1 + inner) + ((fc1 + model.hidden) if model.bias else 0)
    router = (model.hidden + (1 if model.bias else 0)) * moe.experts
    shared_fc1 = shared * (2 if model.gated_mlp else 1)
    both = model.hidden * (shared_fc1 + shared) + (shared_fc1 if model.bias else 0)
    return Count(both, router + (model.hidden if model.bias and shared else 0), moe.experts * one)
