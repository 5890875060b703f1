"""Variants of a layer's halves: experts for the MLP, latent attention for plain."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim import structs
from mpsim.shipped import say
from mpsim.workload import sizes


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: tokens pass `top_k` routed experts and all shared ones."""

    experts: sizes.Many
    """Routed experts of a layer; needed where no preset gives them."""
    ffn_hidden: sizes.Many
    """Inner width of one expert; left out, the model's ffn_hidden."""
    top_k: sizes.Many = 1
    """Routed experts each token is sent to; left out, 1."""
    shared_experts: sizes.AnyMany = 0
    """Experts every token is sent to; left out, none."""
    shared_ffn_hidden: sizes.AnyWidth = 0
    """Inner width of one shared expert; left out, that of a routed one."""
    gated_mlp: bool | None = None
    """Whether routed experts have two input projections; left out, as the model's MLP."""
    dense_layers: sizes.AnyLayers = 0
    """Leading layers that keep a plain MLP; left out, none."""
    every: sizes.Layers = 1
    """After those, every n-th layer has experts (the last of each n); left out, all have."""
    capacity_factor: sizes.Times = 0.0
    """Places of an expert over its even share of tokens, all computed, padded or not; 0 or left
    out, as many as tokens come."""
    imbalance: sizes.Over = 1.0
    """Tokens of the busiest rank over the mean; left out, 1."""
    spread: sizes.Times = 0.0
    """Standard deviation of an expert's tokens over their mean; left out, 0."""

    @property
    def shared_features(self) -> int:
        """Inner width of all shared experts together; 0 without any."""
        return self.shared_experts * (self.shared_ffn_hidden or self.ffn_hidden)

    def rows(self, tokens: int) -> float:
        """Rows that all experts together compute for `tokens` tokens of a microbatch."""
        return tokens * self.top_k * (self.capacity_factor or 1.0)

    def replaces(self, layer: int) -> bool:
        """Whether layer number `layer` (from 0) has experts in place of the plain MLP."""
        place = layer - self.dense_layers
        return place >= 0 and (place + 1) % self.every == 0

    def mistakes(self) -> Iterator[str]:
        """Say what is out of range."""
        yield from sizes.unfit(self, "moe.")
        if self.top_k > self.experts:
            yield say("workload.top_k", s=self)
        if not self.imbalance >= 1:
            yield f"moe.imbalance is {self.imbalance!r}; the busiest rank has at least the mean, 1"
        if not self.spread >= 0:
            yield f"moe.spread is {self.spread!r}; needed 0 (all experts equally popular) or more"
        if not self.capacity_factor >= 0:
            yield f"moe.capacity_factor is {self.capacity_factor!r}; needed 0 (none) or more"


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: queries, keys and values out of a narrow vector a token.

    References
    ----------
    DeepSeek-AI, DeepSeek-V2 (2024), arXiv 2405.04434, section 2.1 and appendix C.
    """

    kv_lora_rank: sizes.Many
    """Width keys and values are compressed to; needed, as are a head's, without a preset's."""
    qk_nope_head_dim: sizes.Many
    """Part of a head's query and key without position."""
    qk_rope_head_dim: sizes.AnyWidth
    """Part of a head's query and key with rotary position."""
    v_head_dim: sizes.Many
    """Width of a head's value."""
    q_lora_rank: sizes.AnyWidth = 0
    """Width the queries are compressed to; 0 or left out, they are not."""

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def mistakes(self) -> Iterator[str]:
        """Say what is out of range."""
        yield from sizes.unfit(self, "mla.")
