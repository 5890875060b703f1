"""State mixers: layers that carry a state of fixed size instead of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, Literal

from mpsim import structs
from mpsim.workload import sizes
from mpsim.workload.parameters import Count

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
