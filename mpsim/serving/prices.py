"""Price of an iteration: how long one forward pass over decoding sequences and prompts takes on an instance.

All tokens pass the linear layers together; attention is apart for sequences that decode (bound by bandwidth) and for prompts (bound by compute). What depends on the number of
tokens alone is tabulated once; an iteration is then a few additions, and many iterations of the same batch are one array expression.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsim.serving.batching import Batch
from mpsim.serving.engines import EnginePreset
from mpsim.serving.exchange import Exchange
from mpsim.serving.rates import Rates, Reductions
from mpsim.serving.speculation import Draft
from mpsim.serving.work import Attention, ExpertWork, Linear, RankWork

__all__ = ["IterationPrices"]

Floats = NDArray[np.float64]
Seconds: TypeAlias = float | Floats
"""Of one iteration, or of many that differ in their contexts [s]."""
Count = TypeVar("Count", float, Floats)

_ACTIVATION = 2.0  # B: activations are 16 bits wide whatever the weights are
_LOGIT = 4.0  # B
_SAMPLING_PASSES = 3  # over the logits: scale, softmax, choice
_PASSES = 6  # over the routed rows: in and out of permute, of both products and of combine
_RAMP = 1.4  # few rows take narrow tiles, which lose no more than this
_NORM = 4  # power of the norm between bandwidth and compute
_EXACT = 512  # up to so many tokens an iteration is priced by itself, above between grid points
_GRID_STEP = 1.04
_LARGEST = 300_000


class IterationPrices:
    """Seconds of iterations of one instance.

    Parameters
    ----------
    reductions : Reductions
        All-reduces among the ranks of a stage.
    kv_bytes : float
        Of an element of cache [B].
    send : tuple of float
        Latency of a message to the next stage [s], and rate of such messages [B/s].
    draft : Draft, optional
        Tokens that each iteration drafts and verifies for every decoding sequence.
    exchange : Exchange, optional
        Dispatch and combine among ranks with requests of their own; without it they gather all tokens.

    Notes
    -----
    A product of m tokens with an (out, in) matrix takes ``t0 + ((bytes / (e BW))^4 + (FLOPs / (c F))^4)^(1/4)``; decode attention ``t0 + max(bytes / (e BW), FLOPs / (c F))``; causal attention of
    prompts its FLOPs at a share of the peak.
    """

    def __init__(
        self,
        work: RankWork,
        rates: Rates,
        engine: EnginePreset,
        reductions: Reductions,
        kv_bytes: float,
        *,
        send: tuple[float, float],
        draft: Draft | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.work = work
        self.rates = rates
        self.engine = engine
        self._reductions = reductions
        self._exchange = exchange
        self._send = send
        self.draft = draft
        self._queries = 1 if draft is None else 1 + draft.tokens  # of a decoding sequence
        self._drafting: IterationPrices | None = None
        if draft is not None and draft.work is not None:
            self._drafting = IterationPrices(
                draft.work,
                rates,
                engine,
                reductions,
                kv_bytes,
                send=send,
                exchange=exchange,
            )
        self._known: dict[int, float] = {}
        self._own_known: dict[float, float] = {}
        self._grid = _grid()
        self._table: list[float | None] = [None] * len(self._grid)
        shared = engine.shared_reads
        self._decode = [
            _Decode(shape, rates, kv_bytes, shared=shared, queries=self._queries)
            for shape in work.attention
        ]
        # decoding alone takes a fixed time for so many sequences, and so much for each token of their contexts
        self._fixed: dict[int, float] = {}
        slopes = [shape.slope for shape in self._decode]
        plain = self._drafting is None and not engine.host_layer_time and None not in slopes
        each = sum(slope for slope in slopes if slope is not None) / work.attention_dp
        self._slope = each * work.pp * engine.slowdown if plain else None
        self._heads: dict[float, float] = {}
        rate = rates.prompt_share * rates.peaks["bf16"]
        self._prompts = [
            (s.window, s.layers * 2.0 * s.heads * (s.key_width + s.value_width) / rate)
            for s in work.attention
        ]

    def seconds(self, batch: Batch, prompts: int = 0) -> Seconds:
        """Time of one iteration from its first stage to its last, of which so many prompts end and give a token."""
        if not batch.prompt_tokens and not prompts and self._slope is not None:
            return self._fixed_seconds(batch.decodes) + self._slope * batch.context
        return self._whole(batch, prompts)

    def decoding(self, decodes: int, context: float) -> tuple[float, float] | None:
        """Time of the next decoding iteration, and how much longer each later one is, whose contexts are longer by one [s]; None where it is no line."""
        if self._slope is None:
            return None
        return self._fixed_seconds(decodes) + self._slope * context, self._slope * decodes

    def _fixed_seconds(self, decodes: int) -> float:
        """Time that decoding so many sequences takes whatever their contexts [s]."""
        fixed = self._fixed.get(decodes)
        if fixed is None:
            fixed = self._fixed[decodes] = float(self._whole(Batch(decodes, 0.0), 0))
        return fixed

    def _whole(self, batch: Batch, prompts: int) -> Seconds:
        """The same, term by term."""
        sequences = (batch.decodes + prompts) / self.work.attention_dp
        return self._joined(self.stage_seconds(batch), batch, prompts, sequences)

    def apart_seconds(self, loads: Sequence[Batch], prompts: int) -> Seconds:
        """Time of one iteration of ranks that keep requests of their own and wait for the busiest in every layer.

        Parameters
        ----------
        loads : sequence of Batch
            Of each rank that has work.
        prompts : int
            Prompts that end with it on any rank.
        """
        own = self.work.attention_dp
        whole = Batch(
            sum(load.decodes for load in loads),
            sum((load.context for load in loads), 0.0),
            sum(load.prompt_tokens for load in loads),
            sum(load.pairs for load in loads),
        )
        tokens = self._passed(whole)
        most = max(self.tokens_of(load.decodes, load.prompt_tokens) for load in loads)
        stage: Seconds = self.token_seconds(tokens)
        if most * own > tokens:
            stage = stage + self._own_seconds(most) - self._own_seconds(tokens / own)
        attention: Seconds = 0.0
        for load in loads:
            if load.decodes:
                each: Seconds = 0.0
                for shape in self._decode:
                    each = each + shape.seconds(load.decodes, load.context)
                attention = np.maximum(attention, each)
        busiest = max(
            (self.pairs_seconds(*load[2:]) * own for load in loads if load.prompt_tokens),
            default=0.0,
        )
        sequences = max(load.decodes for load in loads) + -(-prompts // own)
        return self._joined(stage + attention + busiest, whole, prompts, sequences)

    def _own_seconds(self, tokens: float) -> float:
        """Products and streaming kernels of so many tokens of one rank that keeps requests of its own, on one stage [s]."""
        if tokens not in self._own_known:
            moved = self.engine.stream_elements * tokens * self.work.hidden * _ACTIVATION
            self._own_known[tokens] = self.work.layers * moved / self._streamed + sum(
                linear.layers * self.linear_seconds(linear, tokens / linear.share)
                for linear in self.work.linears
                if linear.share < 1.0
            )
        return self._own_known[tokens]

    def _joined(self, stage: Seconds, batch: Batch, prompts: int, sequences: float) -> Seconds:
        """Time of an iteration that takes so long on a stage: all stages, the head, drafts, messages and the host, which sees to so many sequences."""
        engine, work = self.engine, self.work
        device = stage * work.pp + self.head_seconds(batch.decodes * self._queries + prompts)
        if self._drafting is not None:
            device = device + self._draft_seconds(batch)
        if work.pp > 1:
            device = device + self.send_seconds(self.tokens_of(batch.decodes, batch.prompt_tokens))
        device = device * engine.slowdown
        if engine.host_layer_time:
            device = np.maximum(device, engine.host_layer_time * work.layers * work.pp)
        beside = engine.step_time + engine.request_time * sequences
        if batch.prompt_tokens:
            beside += engine.prompt_step_time
        return device + beside

    def exposed_seconds(self, tokens: float) -> tuple[float, float]:
        """Exposed time of one stage: its all-reduces, and the exchange of tokens between ranks of experts [s]."""
        return self._communication(tokens), self._exchanged(tokens)

    def tokens_of(self, decodes: Count, prompt_tokens: Count) -> Count:
        """Tokens that pass the layers: those of prompts, and each decoding sequence's own with its drafts."""
        return prompt_tokens + decodes * self._queries

    def _draft_seconds(self, batch: Batch) -> Seconds:
        """Time of the draft's passes: for each drafted token over the decoding sequences, and over prompts, whose keys and values it needs too."""
        drafting, draft = self._drafting, self.draft
        assert drafting is not None, "asked with a draft"
        assert draft is not None, "asked with a draft"
        seconds: Seconds = 0.0
        if batch.decodes:
            each = drafting.stage_seconds(Batch(batch.decodes, batch.context))
            seconds = draft.tokens * (each + drafting.head_seconds(batch.decodes))
        if batch.prompt_tokens:
            seconds = seconds + drafting.stage_seconds(batch._replace(decodes=0, context=0.0))
        return seconds

    def request_seconds(self, sequences: Count) -> Count:
        """Host time of so many sequences of an iteration [s]: ranks with requests of their own see to these side by side."""
        return self.engine.request_time * sequences / self.work.attention_dp

    def send_seconds(self, tokens: float) -> float:
        """Time of the messages from stage to stage for so many tokens [s]."""
        latency, rate = self._send
        return (self.work.pp - 1) * (latency + tokens * self.work.hidden * _ACTIVATION / rate)

    def stage_seconds(self, batch: Batch) -> Seconds:
        """Time of one stage without the head."""
        seconds: Seconds = self.token_seconds(self._passed(batch))
        if batch.decodes:
            own = self.work.attention_dp
            for shape in self._decode:
                seconds = seconds + shape.seconds(batch.decodes / own, batch.context / own)
        if batch.prompt_tokens:
            seconds = seconds + self.pairs_seconds(batch.prompt_tokens, batch.pairs)
        return seconds

    def _passed(self, batch: Batch) -> int:
        """Tokens that pass the layers, those of the graph that a batch without prompts runs in included."""
        verified = batch.decodes * self._queries
        if batch.prompt_tokens:
            return batch.prompt_tokens + verified
        sizes = self.engine.graph_sizes
        place = bisect.bisect_left(sizes, verified)
        return sizes[place] if place < len(sizes) else verified

    def token_seconds(self, tokens: int) -> float:
        """Linear layers, experts, streaming kernels and reductions of one stage for so many tokens [s]."""
        if tokens <= _EXACT:
            if tokens not in self._known:
                self._known[tokens] = self._evaluate(float(tokens))
            return self._known[tokens]
        place = min(bisect.bisect_right(self._grid, tokens), len(self._grid) - 1)
        low, high = self._grid[place - 1], self._grid[place]
        below, above = self._at(place - 1), self._at(place)
        return below + (above - below) * (tokens - low) / (high - low)

    def _at(self, place: int) -> float:
        value = self._table[place]
        if value is None:
            value = self._table[place] = self._evaluate(self._grid[place])
        return value

    def _evaluate(self, tokens: float) -> float:
        return sum(self.parts(tokens).values())

    def parts(self, tokens: float) -> dict[str, float]:
        """Seconds of one stage that depend on the number of tokens alone, by part."""
        work, rates, engine = self.work, self.rates, self.engine
        own = tokens / work.attention_dp
        moved = engine.stream_elements * own * work.hidden * _ACTIVATION
        streaming = engine.stream_kernels * rates.stream_latency + moved / self._streamed
        return {
            "linear": sum(
                linear.layers * self.linear_seconds(linear, tokens) for linear in work.linears
            ),
            "experts": sum(
                expert.layers * self._expert_seconds(expert, tokens) for expert in work.experts
            ),
            "streaming": work.layers * streaming,
            "host": work.layers * engine.layer_time + work.expert_layers * engine.expert_layer_time,
            "communication": self._communication(tokens),
            "exchange": self._exchanged(tokens),
        }

    @property
    def _streamed(self) -> float:
        """Rate of memory-bound kernels [B/s]."""
        return self.rates.stream_bandwidth * self.rates.bandwidth

    def _communication(self, tokens: float) -> float:
        """Two all-reduces a layer; where every rank has requests of its own, a gather before and a scatter after the layer without experts, half of one each."""
        work = self.work
        each = self._gathered(tokens)
        if work.attention_dp == work.tp:
            return work.dense_layers * each
        if work.attention_dp > 1:
            return (2 * work.layers - work.expert_layers) * each
        return 2.0 * work.layers * each

    def _exchanged(self, tokens: float) -> float:
        """Ranks with requests of their own meet in the experts: tokens are sent to the ranks of their experts, or all to all ranks, whichever is faster."""
        work = self.work
        if work.attention_dp == 1:
            return 0.0
        each = self._gathered(tokens)
        if self._exchange is not None:
            each = min(each, self._exchange.seconds(tokens / work.attention_dp))
        return work.expert_layers * each

    def _gathered(self, tokens: float) -> float:
        """Time of an all-reduce of the hidden state of so many tokens [s]."""
        return self._reductions.seconds(tokens * self.work.hidden * _ACTIVATION)

    def linear_seconds(self, linear: Linear, tokens: float) -> float:
        """Time of one product of so many tokens of an iteration [s]."""
        rates, form = self.rates, linear.format
        own = tokens * linear.share
        moved = linear.weights * form.bytes + _ACTIVATION * own * (linear.into + linear.out)
        rate = rates.gemm_compute[form.compute] * rates.peaks[form.compute]
        bandwidth = rates.gemm_bandwidth[form.compute] * rates.bandwidth
        return rates.gemm_latency[form.compute] + _norm(
            moved / bandwidth, 2.0 * linear.weights * own / rate
        )

    def _expert_seconds(self, experts: ExpertWork, tokens: float) -> float:
        """Permute, two grouped products and combine of one layer for the tokens of the busiest rank."""
        rates, form = self.rates, experts.format
        rows = tokens * experts.top_k / experts.ep * experts.imbalance
        touched = experts.touched(tokens)
        moved = touched * experts.elements * form.bytes
        moved += _ACTIVATION * rows * self.work.hidden * _PASSES
        rate = _of(rates.expert_compute, form.name) * rates.gemm_compute[form.compute]
        rate *= rates.peaks[form.compute] / (1.0 + min(_RAMP, rates.expert_rows * touched / rows))
        bandwidth = _of(rates.expert_bandwidth, form.name) * rates.bandwidth
        fixed = _of(rates.expert_latency, form.name) + 2 * rates.gemm_latency[form.compute]
        return fixed + _norm(moved / bandwidth, 2.0 * experts.elements * rows / rate)

    def pairs_seconds(self, tokens: float, pairs: float) -> float:
        """Attention of so many tokens of prompts on one stage [s]."""
        own = self.work.attention_dp
        return sum(
            each * (min(pairs, tokens * window) if window else pairs) / own
            for window, each in self._prompts
        )

    def context_seconds(self, contexts: Floats) -> Floats:
        """The least that reading the cache of each of several sequences adds to a stage's iterations [s]."""
        own = self.work.attention_dp
        return sum((shape.least(contexts) / own for shape in self._decode), np.zeros(len(contexts)))

    def head_seconds(self, samples: float) -> float:
        """Logits and sampling of so many tokens [s]."""
        known = self._heads.get(samples)
        if known is None:
            known = self._heads[samples] = self._head_seconds(samples) if samples else 0.0
        return known

    def _head_seconds(self, samples: float) -> float:
        head = self.work.head
        size = samples * head.out * _LOGIT
        gathered = self._reductions.seconds(size) / 2.0
        passes = _SAMPLING_PASSES * size / self._streamed
        return self.linear_seconds(head, samples) + passes + gathered + self.engine.sampling_time


class _Decode:
    """Decode attention of equal layers: every sequence reads its keys and values once, for all its queries."""

    def __init__(
        self, shape: Attention, rates: Rates, kv_bytes: float, *, shared: bool, queries: int = 1
    ) -> None:
        self._layers = shape.layers
        self._window = shape.window
        self._latency = rates.attention_latency
        reads = 1.0 if shared or shape.latent else shape.heads / shape.kv_heads
        bandwidth = rates.attention_bandwidth * rates.bandwidth
        rate = rates.attention_compute * rates.peaks["bf16"]
        self._per_token = max(
            reads * shape.read_width * kv_bytes / bandwidth,
            queries * 2.0 * shape.heads * shape.decode_width / rate,
        )

    @property
    def slope(self) -> float | None:
        """Time a token of the contexts together [s]; None where a window limits what is read."""
        return None if self._window else self._layers * self._per_token

    def least(self, contexts: Floats) -> Floats:
        """The part that grows with the context, of each sequence on its own [s]: a batch takes no less together."""
        if self._window:
            contexts = np.minimum(contexts, self._window)
        return self._layers * self._per_token * contexts

    def seconds(self, sequences: float, context: Seconds) -> Seconds:
        """Time for so many sequences with so many tokens together [s]."""
        if self._window:
            context = np.minimum(context, sequences * self._window)
        return self._layers * (self._latency + self._per_token * context)


def _of(by_format: Mapping[str, float], name: str) -> float:
    """A rate of grouped products with weights of a format."""
    return by_format.get(name, by_format["*"])


def _norm(stream: float, compute: float) -> float:
    """Time of a product that is bound a little by both."""
    return float((stream**_NORM + compute**_NORM) ** (1.0 / _NORM))


def _grid() -> list[float]:
    """Numbers of tokens at which iterations are tabulated."""
    points = [float(_EXACT)]
    while points[-1] < _LARGEST:
        points.append(float(round(points[-1] * _GRID_STEP)))
    return points
