"""Fused attention on one accelerator: rates by kernel, pass, mask, head_dim and sequence.

Shapes: N operators.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats
from mpsim.cost.constants import ConstantGroup, calibrated_groups, choose_group
from mpsim.cost.formulas import attention_pairs, attention_seconds
from mpsim.framework.framework import ATTENTION_KERNELS
from mpsim.hardware.components import Accelerator

ATTENTION_CHARTS = (*dict.fromkeys((*ATTENTION_KERNELS, "trtllm", "te")),)
"""Kernels with rates of their own: those of the frameworks, and two that only benchmarks name."""
_HALF = ("bf16", "fp16")
_MEASURED = (6.0, 7.0)  # log2 of the head_dims between which a rate is interpolated

Use = Callable[[ConstantGroup, str], float]


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """Shapes of N attention kernels, as `mpsim.workload.Operator` names them."""

    queries: Floats
    keys: Floats
    heads: Floats
    sequences: Floats
    head_dim: Floats
    head_dim_v: Floats
    window: Floats
    causal: Flags
    forward: Flags

    def forward_flops(self) -> Floats:
        """FLOPs of the forward pass, only of the pairs that are worked on [FLOP]."""
        pairs = attention_pairs(self.queries, self.keys, causal=self.causal, window=self.window)
        width = self.head_dim + self.head_dim_v
        result: Floats = 2.0 * self.sequences * self.heads * pairs * width
        return result

    def keys_seen(self) -> Floats:
        """Keys that a query sees in the mean: half of a causal sequence, or a window."""
        pairs = attention_pairs(self.queries, self.keys, causal=self.causal, window=self.window)
        result: Floats = pairs / np.maximum(self.queries, 1.0)
        return result

    def tiles(self, rows: float) -> Floats:
        """Work that the processors share out: `rows` queries of one head of one sequence."""
        result: Floats = self.sequences * self.heads * np.maximum(self.queries / rows, 1.0)
        return result


def waiting(tiles: Floats, processors: float, wait: float, bend: float = 1.0) -> Floats:
    """Time over that of endless work: ``(1 + (wait * processors / tiles)^bend)^(1 / bend)``.

    Notes
    -----
    When the tiles run out, processors wait for the longest one. With a causal mask that is twice
    the mean, so `wait` is 2 for tiles of 128 rows, 4 for tiles of 256 (in tiles of 128), and below
    1 where the long ones go first. A `bend` of 1 adds the longest tile to the shared work; a kernel
    that starts with the longest takes the larger of the two, a `bend` of infinity.
    """
    longest = wait * processors / np.maximum(tiles, np.finfo(float).tiny)
    larger, smaller = np.maximum(longest, 1.0), np.minimum(longest, 1.0)
    result: Floats = larger * (1.0 + (smaller / larger) ** bend) ** (1.0 / bend)
    return result


class AttentionModel:
    """Times of one fused kernel on one accelerator.

    `kernel`: one of `ATTENTION_CHARTS`. `precision`: of the products, where the kernel has none of
    its own. `hot`: whether clocks are those of training: forward and backward share one rate,
    reduced by what training keeps of the chart. `level`: share of the rate that the board's power
    limit leaves. `few_heads`: whether processors wait when heads and sequences are few (off: charts
    are taken as they are). `use`: reads a constant and records that it was used.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        kernel: str,
        precision: str,
        *,
        hot: bool,
        level: float,
        few_heads: bool,
        use: Use,
    ) -> None:
        measured = accelerator.calibration
        groups = calibrated_groups("kernels", measured)
        name, family = accelerator.kind, accelerator.family
        group = choose_group("kernels", f"attention_{kernel}", name, family, measured)
        if "as" in group.words:
            group = choose_group("kernels", group.words["as"][0], name, family, measured)
        forward = groups.get(f"forward_{kernel}.{name}")
        own = measured is not None and any(measured.under(f"kernels.attention_{kernel}"))
        (self.precision,) = group.words.get("precision", (precision,))
        if precision not in _HALF and not own:
            group = group.demoted(f"16-bit rates scaled to the peak of {precision}")
        alone = precision in _HALF and not own  # what was measured holds both passes
        self._group, self._forward_group, self._use = group, forward if alone else None, use
        self._rules, self._launch = groups["attention_rules"], groups["memory_rules"]
        self._burst = groups["attention_burst"]
        self._parted = group if "forward_share" in group else self._rules
        self._tiles = choose_group("kernels", "occupancy", name, family)
        self._hot, self._level, self._few_heads = hot, level, few_heads
        self._peak = accelerator.peak(self.precision)

    def seconds(self, work: AttentionWork) -> Floats:
        """Time of each kernel [s]."""
        charted = "head_dims" in self._group.words  # by a machine file, where the catalog has none
        if "rate_forward" in self._group and not charted:
            return self._counted(work)
        return self._hot_seconds(work) if self._hot else self._burst_seconds(work)

    def _hot_seconds(self, work: AttentionWork) -> Floats:
        level = self._level * self._use(self._group, "chart_share")
        part = self._total() * self._share(work)
        return self._evaluate(work, self._group, part, level)

    def _burst_seconds(self, work: AttentionWork) -> Floats:
        """A forward chart leaves backward to a ratio; one of both passes has forward taken off."""
        if self._group.words.get("passes") == ("forward",):
            backward = self._use(self._burst, "backward_time")
            return self._evaluate(work, self._group, np.where(work.forward, 1.0, backward), 1.0)
        both = self._evaluate(work, self._group, np.full_like(work.keys, self._total()), 1.0)
        if self._forward_group is None:
            return both * self._share(work)
        alone = self._evaluate(work, self._forward_group, np.ones_like(work.keys), 1.0)
        least = self._use(self._rules, "backward_flops") * work.forward_flops() / self._peak
        return np.where(work.forward, alone, np.maximum(both - alone, least))

    def _share(self, work: AttentionWork) -> Floats:
        """Share of each pass in the time of both."""
        share = self._use(self._parted, "forward_share")
        return np.where(work.forward, share, 1.0 - share)

    def _evaluate(
        self, work: AttentionWork, group: ConstantGroup, part: Floats, level: float
    ) -> Floats:
        scale = self._peak / self._use(group, "peak") * level
        width = np.maximum(work.head_dim, work.head_dim_v)
        return attention_seconds(
            work.forward_flops(),
            work.keys,
            rate=self._between(group, "rate", width, work.causal) * scale,
            half=self._between(group, "half", width, work.causal),
            share=part * self._few(work) if self._few_heads else part,
            launch=self._use(self._launch, "floor"),
        )

    def _counted(self, work: AttentionWork) -> Floats:
        """Kernels measured by heads: rate of each pass, waiting, and heads of unequal width."""
        group, latent = self._group, work.head_dim != work.head_dim_v
        scale = self._peak / self._use(group, "peak")
        scale *= self._level * self._use(group, "chart_share") if self._hot else 1.0
        # rates are of head_dim 128; exponentials bind at 64, where products are half as long
        width = np.log2(np.maximum(work.head_dim, 1.0))
        seen = np.maximum(work.keys_seen(), 1.0)
        times = [
            flops
            * work.forward_flops()
            / (self._use(group, f"rate_{way}") * scale)
            / np.interp(width, _MEASURED, (self._or(f"narrow_{way}", 1.0), 1.0))
            * (1.0 + self._or(f"keys_{way}", 0.0) / seen)
            / np.where(latent, self._use(group, f"latent_{way}"), 1.0)
            * self._waiting(work, way)
            for way, flops in (("forward", 1.0), ("backward", self._total() - 1.0))
        ]
        result: Floats = np.maximum(
            np.where(work.forward, *times), self._use(self._launch, "floor")
        )
        return result

    def _waiting(self, work: AttentionWork, way: str) -> Floats | float:
        """Time over that of endless work; nothing rests on tiles where none of them waits."""
        wait = self._use(self._group, f"wait_{way}")
        if not wait:
            return 1.0
        processors, bend = self._use(self._tiles, "processors"), self._use(self._group, "bend")
        return waiting(work.tiles(self._use(self._tiles, "tile")), processors, wait, bend)

    def _or(self, leaf: str, none: float) -> float:
        """A constant that not every kernel has."""
        return self._use(self._group, leaf) if leaf in self._group else none

    def _few(self, work: AttentionWork) -> Floats:
        """Waiting over that of the chart's own work, never below 1."""
        group = self._tiles
        processors, wait = self._use(group, "processors"), self._use(group, "wait_forward")
        here = waiting(work.tiles(self._use(group, "tile")), processors, wait)
        chart = waiting(np.array(self._use(group, "chart_tiles")), processors, wait)
        return np.maximum(here / chart, 1.0)

    def _total(self) -> float:
        return 1.0 + self._use(self._rules, "backward_flops")

    def _between(self, group: ConstantGroup, what: str, head_dim: Floats, causal: Flags) -> Floats:
        """A constant of the chart at any head_dim: interpolated in log2 between measured ones."""
        dims = [int(dim) for dim in group.words["head_dims"]]
        curves = {
            mask: np.interp(
                np.log2(np.maximum(head_dim, 1.0)),
                np.log2(dims),
                [self._use(group, f"{what}_{mask}_{dim}") for dim in dims],
            )
            for mask in ("causal", "full")
        }
        return np.where(causal, curves["causal"], curves["full"])
