"""Price of an iteration: how long one forward pass over decoding sequences and prompts takes on a rank.

All tokens pass the linear layers together; attention is apart for sequences that decode (bound by bandwidth) and for prompts (bound by compute). What depends on the number of
tokens alone is tabulated once; an iteration is then a few additions, and many iterations of the same batch are one array expression.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

from mpsim.serving.engines import EnginePreset
from mpsim.serving.rates import Rates, Reductions
from mpsim.serving.work import Attention, ExpertWork, Linear, RankWork

__all__ = ["IterationPrices"]

Floats = NDArray[np.float64]

_PASSES = 6  # over the routed rows: in and out of permute, of both products and of combine


class IterationPrices:
    """Seconds of iterations of one instance.

    Parameters
    ----------
    work : RankWork
    rates : Rates
    engine : EnginePreset
    reductions : Reductions
        All-reduces among the ranks of a stage.
    kv_bytes : float
        Of an element of cache [B].
    """

    def __init__(
        self,
        work: RankWork,
        rates: Rates,
        engine: EnginePreset,
        reductions: Reductions,
        kv_bytes: float,
    ) -> None:
        self.work = work
        self.rates = rates
        self.engine = engine
        self._reductions = reductions
        self._known: dict[int, float] = {}
        self._grid = [float(x) for x in _grid()]
        self._table: list[float | None] = [None] * len(self._grid)
        self._attention = [
            _Decode(shape, rates, kv_bytes, shared=engine.shared_reads) for shape in work.attention
        ]
        self._pairs = sum(
            one.layers * 2.0 * one.heads * (one.key_width + one.value_width)
            for one in work.attention
            if not one.window
        ) / (rates.prompt_share * rates.peaks["bf16"])
        self._windowed = [
            (
                one.window,
                one.layers
                * 2.0
                * one.heads
                * (one.key_width + one.value_width)
                / (rates.prompt_share * rates.peaks["bf16"]),
            )
            for one in work.attention
            if one.window
        ]

    # -- what depends on the number of tokens ------------------------------------------------------------

    def token_seconds(self, tokens: int) -> float:
        """Linear layers, experts, streaming kernels and reductions of one stage for so many tokens [s]."""
        if tokens <= 512:
            known = self._known.get(tokens)
            if known is None:
                known = self._known[tokens] = self._tokens(float(tokens))
            return known
        at = bisect.bisect_right(self._grid, tokens)
        if at >= len(self._grid):
            return self._at(-1) * tokens / self._grid[-1]
        low, high = self._grid[at - 1], self._grid[at]
        below, above = self._at(at - 1), self._at(at)
        return below + (above - below) * (tokens - low) / (high - low)

    def _at(self, place: int) -> float:
        value = self._table[place]
        if value is None:
            value = self._table[place] = self._tokens(self._grid[place])
        return value

    def _tokens(self, tokens: float) -> float:
        work, rates, engine = self.work, self.rates, self.engine
        seconds = sum(one.layers * self.linear_seconds(one, tokens) for one in work.linears)
        seconds += sum(one.layers * self._expert_seconds(one, tokens) for one in work.experts)
        own = tokens / work.attention_dp
        moved = engine.stream_elements * own * work.hidden * 2.0
        seconds += work.layers * (
            engine.stream_kernels * rates.stream_latency
            + moved / (rates.stream_bandwidth * rates.bandwidth)
            + engine.layer_time
        )
        seconds += self.reduction_seconds(tokens)
        return seconds

    def reduction_seconds(self, tokens: float) -> float:
        """All-reduces after attention and after the MLP of every layer of a stage."""
        work = self.work
        if work.tp == 1:
            return 0.0
        size = tokens * work.hidden * 2.0
        each = self._reductions.seconds(size)
        reductions = 2.0 * work.layers
        if work.attention_dp > 1:
            reductions = (
                2.0 * work.expert_layers + 2.0 * work.dense_layers
            )  # dispatch and combine: an all-gather and a reduce-scatter
            each *= 0.5 if work.attention_dp == work.tp else 1.0
        return reductions * each

    def linear_seconds(self, linear: Linear, tokens: float) -> float:
        rates, form = self.rates, linear.format
        m = tokens * linear.share
        moved = linear.weights * form.bytes + 2.0 * m * (linear.into + linear.out)
        stream = moved / (rates.gemm_bandwidth * rates.bandwidth)
        rate = rates.gemm_compute[form.compute] * rates.peaks[form.compute]
        compute = 2.0 * linear.weights * m / rate
        return rates.gemm_latency[form.compute] + (stream**4 + compute**4) ** 0.25

    def _expert_seconds(self, experts: ExpertWork, tokens: float) -> float:
        """Permute, two grouped products and combine of one layer for the tokens of the busiest rank."""
        rates, form = self.rates, experts.format
        rows = tokens * experts.top_k / experts.ep * experts.imbalance
        moved = experts.touched(tokens) * experts.elements * form.bytes
        moved += 2.0 * rows * self.work.hidden * _PASSES
        stream = moved / (rates.gemm_bandwidth * rates.bandwidth)
        rate = rates.expert_compute * rates.gemm_compute[form.compute] * rates.peaks[form.compute]
        compute = 2.0 * experts.elements * rows / rate
        fixed = rates.expert_latency + 2 * rates.gemm_latency[form.compute]
        return float(fixed + (stream**4 + compute**4) ** 0.25)

    # -- attention ------------------------------------------------------------------------------------------

    def decode_attention(self, sequences: float, context: float | Floats) -> float | Floats:
        """Of all layers of a stage: so many sequences with so many tokens of context together [s]."""
        if not sequences:
            return 0.0
        own = self.work.attention_dp
        return sum(one.seconds(sequences / own, context / own) for one in self._attention)

    def prompt_attention(self, tokens: float, pairs: float) -> float:
        """Of all layers of a stage: `pairs` of query and key of the prompts of this iteration [s]."""
        own = self.work.attention_dp
        seconds = self._pairs * pairs / own
        for window, each in self._windowed:
            seconds += each * min(pairs, tokens * window) / own
        return seconds

    def head_seconds(self, samples: float) -> float:
        """Logits and sampling of so many sequences [s]."""
        if not samples:
            return 0.0
        logits = self.linear_seconds(self.work.head, samples)
        passes = (
            3
            * samples
            * self.work.head.out
            * 4.0
            / (self.rates.stream_bandwidth * self.rates.bandwidth)
        )
        gather = (
            self._reductions.seconds(samples * self.work.head.out * 4.0) / 2
            if self.work.tp > 1
            else 0.0
        )
        return logits + passes + gather + self.engine.sampling_time

    # -- iterations -------------------------------------------------------------------------------------------

    def padded(self, decodes: int) -> int:
        sizes = self.engine.graph_sizes
        at = bisect.bisect_left(sizes, decodes)
        return sizes[at] if at < len(sizes) else decodes

    def seconds(
        self,
        decodes: int,
        context: float | Floats,
        prompt_tokens: int = 0,
        pairs: float = 0.0,
        prompts_done: int = 0,
    ) -> float | Floats:
        """One iteration: the time of a stage and, once, of the head [s]; an array for an array of contexts."""
        engine, work = self.engine, self.work
        tokens = prompt_tokens + decodes if prompt_tokens else self.padded(decodes)
        stage = self.token_seconds(tokens) + self.decode_attention(decodes, context)
        if prompt_tokens:
            stage = stage + self.prompt_attention(prompt_tokens, pairs)
        gpu = stage * work.pp + self.head_seconds(decodes + prompts_done)
        if engine.slowdown != 1.0:
            gpu = gpu * engine.slowdown
        host = engine.host_layer_time * work.layers * work.pp
        if host:
            gpu = np.maximum(gpu, host) if isinstance(gpu, np.ndarray) else max(gpu, host)
        beside = engine.step_time + engine.request_time * (decodes + prompts_done)
        if prompt_tokens:
            beside += engine.prompt_step_time
        return gpu + beside


class _Decode:
    """Decode attention of equal layers."""

    def __init__(self, shape: Attention, rates: Rates, kv_bytes: float, *, shared: bool) -> None:
        self.layers = shape.layers
        self.window = shape.window
        reads = 1.0 if shared or shape.latent else shape.heads / shape.kv_heads
        self.read = (
            reads * shape.read_width * kv_bytes / (rates.attention_bandwidth * rates.bandwidth)
        )
        self.work = (
            2.0 * shape.heads * shape.decode_width / (rates.attention_compute * rates.peaks["bf16"])
        )
        self.latency = rates.attention_latency

    def seconds(self, sequences: float, context: float | Floats) -> float | Floats:
        if self.window:
            context = np.minimum(context, sequences * self.window)
        return self.layers * (self.latency + max(self.read, self.work) * context)


def _grid() -> list[int]:
    """Numbers of tokens at which iterations are tabulated, 4 % apart."""
    points, at = [], 512.0
    while at < 300_000:
        points.append(round(at))
        at *= 1.04
    return points
