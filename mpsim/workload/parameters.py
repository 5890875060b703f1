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
        Token table (sharded), learned positions and embedding norm (replicated).
    layers : mapping of str to Count
        One transformer layer of each kind.
    kinds : tuple of str
        Kind of every layer.
    final_norm : Count
        The norm before the output head.
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
    positions = model.max_positions * model.hidden if model.positions == "learned" else 0
    table = vocab * model.hidden
    return Parameters(
        embedding=Count(table, positions + (norm if model.embedding_norm else 0)),
        layers={kind: _layer(model) for kind in dict.fromkeys(model.layer_kinds)},
        kinds=model.layer_kinds,
        final_norm=Count(0, norm),
        output_head=Count(0 if model.tied_embeddings else table),
    )


def _norm(model: Transformer) -> int:
    has_bias = model.norm == "layernorm" and model.bias
    return model.hidden * (2 if has_bias else 1)


def _layer(model: Transformer) -> Count:
    return Count(_layer_sharded(model), _layer_replicated(model))


def _layer_sharded(model: Transformer) -> int:
    columns = model.qkv_features + model.fc1_features
    rows = model.query_features + model.ffn_hidden
    biases = (model.qkv_features if model.has_qkv_bias else 0) + (
        model.fc1_features if model.bias else 0
    )
    return model.hidden * (columns + rows) + biases


def _layer_replicated(model: Transformer) -> int:
    norms = _norm(model) * (1 if model.parallel_block else 2)
    row_gemms = 1 if model.parallel_block else 2
    return norms + (row_gemms * model.hidden if model.bias else 0)
