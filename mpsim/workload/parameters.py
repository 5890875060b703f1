"""How many parameters a transformer has, part by part, sharded and replicated apart.

Tensor parallelism shards what belongs to a head or to a feature between a column and a row GEMM,
and the vocabulary. Norms, the biases of row GEMMs (added once, after the reduction) and learned
positions are replicated on every tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpsim import structs
from mpsim.errors import WorkloadError


@structs.dataclass(frozen=True, slots=True)
class Count:
    """Parameters of one part of the model."""

    sharded: int = 0
    """Divided among tensor-parallel ranks."""
    replicated: int = 0
    """Held whole by each of them."""
    experts: int = 0
    """Of all routed experts; divided among expert-parallel and expert-tensor-parallel ranks."""

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


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a model by part."""

    embedding: Count
    """Token table (sharded), learned or relative positions and embedding norm (replicated)."""
    layers: Mapping[str, Count]
    """One transformer layer of each kind."""
    kinds: tuple[str, ...]
    """Kind of every layer."""
    final_norm: Count
    """The norm before the output head, that after an encoder, and what joins the inputs of further
    predictions."""
    output_head: Count
    """The output projection; zero when it is the embedding (tied)."""

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
        return ends + sum(own.total * self.kinds.count(kind) for kind, own in self.layers.items())
