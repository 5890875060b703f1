"""Vision towers: transformers over patches of images, which stand in place of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim import structs
from mpsim.workload import sizes
from mpsim.workload.parameters import Count

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
