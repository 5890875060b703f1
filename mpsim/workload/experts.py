"""Variants of a layer's halves: experts for the MLP, latent attention for plain."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim import structs


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: tokens pass `top_k` routed experts and all shared ones."""

    experts: int
    """Routed experts of a layer, at least 1."""
    ffn_hidden: int
    """Inner width of one routed expert."""
    top_k: int = 1
    """Routed experts each token is sent to, in [1, `experts`]."""
    shared_experts: int = 0
    """Experts that every token passes through, 0 for none; they run as one MLP."""
    shared_ffn_hidden: int = 0
    """Inner width of one shared expert; 0 for `ffn_hidden`."""
    gated_mlp: bool | None = None
    """Whether routed experts have two input projections; as the model's own MLP when left out (GLaM
    differs)."""
    dense_layers: int = 0
    """Leading layers that keep the plain MLP of the model's own `ffn_hidden`."""
    every: int = 1
    """After the leading ones every n-th layer has experts (the last of each n), the others the
    plain MLP."""
    capacity_factor: float = 0.0
    """Places of an expert over its even share of tokens: every expert computes on that many rows,
    padded or with tokens dropped. 0 for dropless routing: as many rows as tokens are sent."""
    imbalance: float = 1.0
    """Tokens of the busiest rank over the mean, at least 1."""
    spread: float = 0.0
    """Standard deviation of an expert's tokens over their mean, at least 0: how busy the busiest
    rank is then follows from how many experts it has, on top of `imbalance`."""

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
        yield from small("moe", self, experts=1, top_k=1, ffn_hidden=1, every=1)
        yield from small("moe", self, shared_experts=0, shared_ffn_hidden=0, dense_layers=0)
        if self.top_k > self.experts:
            yield (
                f"moe.top_k is {self.top_k} of {self.experts} experts; needed no more than"
                " there are"
            )
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

    kv_lora_rank: int
    """Width keys and values are compressed to."""
    # qk_nope_head_dim, qk_rope_head_dim: Parts of a head's query and key without and with rotary
    # position; the rotary part of the key is one for all heads.
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    """Width of a head's value."""
    q_lora_rank: int = 0
    """Width queries are compressed to; 0 projects them from the residual stream at once."""

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def mistakes(self) -> Iterator[str]:
        """Say what is out of range."""
        yield from small("mla", self, kv_lora_rank=1, qk_nope_head_dim=1, v_head_dim=1)
        yield from small("mla", self, qk_rope_head_dim=0, q_lora_rank=0)


def small(section: str, owner: object, **least: int) -> Iterator[str]:
    """Say which fields of a part of a model are no whole numbers, or too small."""
    for field, lowest in least.items():
        value = getattr(owner, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
            yield f"{section}.{field} is {value!r}; it must be a whole number of at least {lowest}"
