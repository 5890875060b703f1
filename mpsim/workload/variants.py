"""Parts of a model in place of plain ones: experts for the MLP, latent attention, state mixers,
whose state of fixed size stands for keys and values, and a tower over images for tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, Literal

from mpsim import structs
from mpsim.shipped import say
from mpsim.workload import sizes
from mpsim.workload.parameters import Count


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


PATTERN: Final = MappingProxyType(
    {
        "A": ("attention", True),
        "S": ("state", True),
        "*": ("attention", False),
        "M": ("state", False),
        "-": ("none", True),
    }
)
"""What a layer has, by its letter in `Transformer.layer_pattern`: mixer, MLP or experts."""
_FLOAT32 = 4


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class StateMixer:
    """A mixer with a state of ``heads * head_dim * state`` values a sequence.

    References
    ----------
    Dao and Gu, Transformers are SSMs, 2024, section 6; Yang et al., Gated Delta Networks, 2024.
    """

    kind: Literal["mamba2", "gated-delta"]
    """Mamba-2's SSD, or a gated delta net; needed without a preset's, as are the widths."""
    heads: sizes.Many
    """Heads of values."""
    head_dim: sizes.Many
    """Width of a head's value."""
    state: sizes.Many
    """Width of the keys that address a head's state."""
    groups: sizes.Many
    """Heads of those keys; divides heads."""
    conv: sizes.Many = 4
    """Taps of the convolution before the scan; left out, 4."""
    chunk: sizes.Many = 256
    """Tokens scanned as products at once; left out, 256."""

    @property
    def inner(self) -> int:
        """Width of all values of a token."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Features that are convolved: values, keys and queries."""
        return self.inner + 2 * self.groups * self.state

    @property
    def features(self) -> int:
        """Output width of the first projection: those, the gate, a decay a head (a rate beside)."""
        return self.channels + self.inner + self.heads * (1 if self.kind == "mamba2" else 2)

    def count(self, hidden: int) -> Count:
        """Parameters: projections, convolution, decays with offsets, the norm before the last."""
        own = self.inner * hidden + hidden * self.features
        if (
            self.kind == "mamba2"
        ):  # biases of the convolution, A, D and dt; a norm as wide as the values
            return Count(own + self.channels * (self.conv + 1) + 3 * self.heads + self.inner)
        return Count(own + self.channels * self.conv + 2 * self.heads, self.head_dim)

    def state_bytes(self, element_bytes: float = _FLOAT32, conv_bytes: float = 2.0) -> float:
        """State of a sequence between two tokens, with the last inputs of the convolution [B]."""
        held = element_bytes * self.inner * self.state
        return held + conv_bytes * self.channels * (self.conv - 1)

    def scan_flops(self, tokens: int, chunk: int) -> float:
        """Forward FLOPs of the scan of so many tokens in chunks of `chunk` [FLOP].

        Notes
        -----
        SSD, a token: scores ``2 Q G n``, values ``2 Q H P``, states in and out ``4 n H P``. A delta
        net, a token and head: scores of keys with keys and of queries with keys ``4 Q n``, the
        inverse of a triangle ``2 Q^2 / 3``, what it multiplies ``2 Q (n + P)``, values ``2 Q P``,
        three products with the state ``6 n P``.
        """
        q, n, p, h = chunk, self.state, self.head_dim, self.heads
        if self.kind == "mamba2":
            return float(tokens * (2 * q * self.groups * n + 2 * q * h * p + 4 * n * h * p))
        each = 4 * q * n + 2 * q * q / 3 + 2 * q * (n + p) + 2 * q * p + 6 * n * p
        return float(tokens * h * each)

    def mistakes(self) -> Iterator[str]:
        """Say what is out of range."""
        wrong = list(sizes.unfit(self, "state."))
        yield from wrong
        if not wrong and self.heads % self.groups:
            yield f"state.heads ({self.heads}) is not a multiple of state.groups ({self.groups})"


_CHANNELS = 3  # of a pixel


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """Encoder of images beside a language model, on its first stage and divided as that is; with
    biases, layer norms, and attention of every patch of an image to all.

    References
    ----------
    Dosovitskiy et al., An Image is Worth 16x16 Words (2021); Wang et al., Qwen2-VL (2024), section
    2.1 for the merger of 2 x 2 patches.
    """

    layers: sizes.Layers
    """Layers of the tower; needed without a preset's, as are hidden, heads, ffn_hidden, patches."""
    hidden: sizes.Many
    """Width of the tower."""
    heads: sizes.Many
    """Attention heads of the tower."""
    ffn_hidden: sizes.Many
    """Inner width of its MLPs."""
    patches: sizes.Many
    """Patches of an image."""
    patch: sizes.Many = 14
    """Side of a patch in pixels; left out, 14."""
    merge: sizes.Many = 1
    """Patches that become one token of the sequence; left out, 1."""
    images: sizes.Images = 1.0
    """Images of a sequence on average, whose tokens sequence_length counts; left out, 1."""

    @property
    def pixels(self) -> int:
        """Values of a patch."""
        return _CHANNELS * self.patch**2

    @property
    def joined(self) -> int:
        """Width of the patches that become one token."""
        return self.merge * self.hidden

    def count(self, out: int) -> Count:
        """Parameters: layers, first projection, a merger of two products to the width `out`."""
        width, inner = self.hidden, self.ffn_hidden
        matrices = 4 * width * width + 2 * width * inner + 3 * width + inner
        merger = self.joined * self.joined + self.joined * out + self.joined
        replicated = self.layers * 6 * width + self.pixels * width + out
        return Count(self.layers * matrices + merger, replicated)

    def mistakes(self) -> Iterator[str]:
        """Say what is out of range."""
        wrong = list(sizes.unfit(self, "vision."))
        yield from wrong
        if not wrong and self.hidden % self.heads:
            yield f"vision.hidden ({self.hidden}) does not divide among vision.heads ({self.heads})"
        if not wrong and self.patches % self.merge:
            yield (
                f"vision.patches ({self.patches}) is not a multiple of vision.merge ({self.merge})"
            )
        if not self.images > 0:
            yield f"vision.images is {self.images!r}; needed a number above 0"
