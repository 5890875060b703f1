"""Price of an iteration: one forward pass over decoding sequences and prompts.

All tokens pass the linear layers together; attention is apart for sequences that decode (bound by
bandwidth) and for prompts (bound by compute). What depends on the number of tokens alone is
tabulated once; an iteration is then a few additions, and many iterations of the same batch are one
array expression.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost import KernelModel
from mpsim.hardware import Cluster
from mpsim.serving.batching import Batch
from mpsim.serving.engines import EnginePreset
from mpsim.serving.rates import Exchange, Rates, Reductions
from mpsim.serving.speculation import Draft
from mpsim.serving.work import Attention, ExpertWork, Format, Linear, RankWork, StateWork
from mpsim.workload import Module

Seconds: TypeAlias = float | Floats
"""Of one iteration, or of many that differ in their contexts [s]."""
Count = TypeVar("Count", float, Floats)

_ACTIVATION = 2.0  # B: activations are 16 bits wide whatever the weights are
_LOGIT = 4.0  # B
_SAMPLING_PASSES = 3  # over the logits: scale, softmax, choice
_STATE_KERNELS = 2  # a decoding layer's convolution and update of its state
# launches of experts over a dense layer's: 45 (Megatron-LM, catalog of frameworks), 15 (vLLM 2023)
_EXPERT_LAUNCHES = 3
_EXACT = 64  # up to so many tokens an iteration is priced by itself, above between grid points:
_GRAPHS = 512  # up to here every eighth, as graphs are captured, then by
_GRID_STEP = 1.05
_LARGEST = 300_000
_NONE = np.zeros(1)
_BLOCKS = "fp8_block"  # whose inputs are quantised by a kernel of their own
# norms that span ranks square, scale queries and scale keys around a sum of two numbers a token
_SPANNING, _SQUARES = 3, 8.0  # kernels, B (MiniMaxText01RMSNormTP.forward_qk of vLLM and SGLang)


@structs.dataclass(eq=False)
class IterationPrices:
    """Seconds of iterations of one instance.

    Products take what `Products` says, tabulated once; decode attention ``t0 + max(bytes / (e BW),
    FLOPs / (c F))``; causal attention of prompts its FLOPs at a share of the peak.
    """

    work: RankWork
    rates: Rates
    engine: EnginePreset
    reductions: Reductions  # all-reduces among the ranks of a stage
    kv_bytes: float  # of an element of cache [B]
    send: tuple[float, float]  # of messages to the next stage: latency [s], rate [B/s]
    products: Products
    # tokens that each iteration drafts and verifies for every decoding sequence
    draft: Draft | None = None
    # dispatch and combine among ranks with requests of their own; without it they gather all tokens
    exchange: Exchange | None = None
    call_time: float = 1.0  # of the same calls of the host over an x86 server's

    def __post_init__(self) -> None:
        work, rates, engine, draft = self.work, self.rates, self.engine, self.draft
        self._queries = 1 if draft is None else 1 + draft.tokens  # of a decoding sequence
        # layers that the host launches one by one; compiled ones run as pieces of graphs
        launched = work.layers + _EXPERT_LAUNCHES * work.expert_layers
        launched *= work.pp * (not engine.piecewise_graphs or not engine.graph_sizes)
        self._launches = self.call_time * engine.host_layer_time * launched
        self.least_launches = 0.0 if engine.graph_sizes else self._launches
        self._drafting: IterationPrices | None = None
        if draft is not None and draft.work is not None:
            self._drafting = structs.replace(self, work=draft.work, draft=None)
        # more tokens never take less time: whoever has fewer may pad them
        parts = self.parts(_GRID)
        self._table = np.maximum.accumulate(sum(parts.values())).tolist()
        self._exposed_table = parts["exchange"].tolist()
        alone = (linear for linear in work.linears if linear.share < 1.0)  # of own tokens
        products = (linear.layers * self.products.seconds(linear, _GRID) for linear in alone)
        self._own_table = sum(products, work.layers * self._streaming(_GRID)).tolist()
        self._head_table = self._head_parts(_GRID).tolist()
        shared = engine.shared_reads
        self._decode: list[DecodeAttention | StateScan] = [
            DecodeAttention(shape, rates, self.kv_bytes, shared=shared, queries=self._queries)
            for shape in work.attention
        ]
        states = [] if work.state is None else [StateScan(work.state, rates)]
        self._decode += states
        # decoding alone takes a time for so many sequences, and so much a token of their contexts
        self._fixed: dict[int, tuple[float, float] | None] = {}
        slopes = [shape.slope for shape in self._decode]
        plain = self._drafting is None and None not in slopes
        each = sum(slope for slope in slopes if slope is not None) / work.attention_dp
        self._slope = each * work.pp * engine.slowdown if plain else None
        eight = engine.narrow_prompts and self.kv_bytes < _ACTIVATION
        rate, narrow = rates.prompt_share * rates.peaks["bf16"], rates.prompt_narrow**eight
        # what latent attention caches is not what prompts multiply: it stays wide
        self._prompts = [
            (s.window, s.layers * 2.0 * s.heads * (s.key_width + s.value_width) / each)
            for s in work.attention
            for each in [rate if s.latent else rate * narrow]
        ]
        # a token of a prompt passes a state like a window of itself alone
        self._prompts += [(1, state.prompt_token) for state in states]

    def seconds(self, batch: Batch, prompts: int = 0) -> Seconds:
        """Time of one iteration through all stages, in which so many prompts end."""
        if not (batch.prompt_tokens or prompts) and (line := self.decoding(batch.decodes)):
            return line[0] + line[1] * batch.context
        return self._whole(batch, prompts)

    def decoding(self, decodes: int) -> tuple[float, float] | None:
        """Time of decoding so many, and what a token of contexts adds [s]; None if no line."""
        if self._slope is None:
            return None
        if decodes not in self._fixed:
            batch = Batch(decodes, 0.0)
            line = not self._launches or self.graph(batch)  # else the host may be slower
            self._fixed[decodes] = (float(self._whole(batch, 0)), self._slope) if line else None
        return self._fixed[decodes]

    def _whole(self, batch: Batch, prompts: int) -> Seconds:
        """The same, term by term."""
        sequences = (batch.decodes + prompts) / self.work.attention_dp
        stage = self.stage_seconds(batch)
        return self._joined(stage, batch, prompts, sequences, launched=not self.graph(batch))

    def apart_seconds(self, loads: Sequence[Batch], prompts: int) -> Seconds:
        """Time of one iteration of ranks that keep requests of their own and wait for the busiest
        in every layer. `loads`: of each rank that has work. `prompts`: that end with it on any
        rank.
        """
        own = self.work.attention_dp
        whole = Batch(*map(sum, zip(*loads, strict=True)))
        decodes = [load.decodes for load in loads]
        alike = len(loads) == own and min(decodes) == max(decodes)
        graph = 0 if whole.prompt_tokens else self._captured(max(decodes), alike=alike)
        most = max(self.tokens_of(n.decodes, n.prompt_tokens) for n in loads)
        stage = self._layers_seconds(whole, max(most, self.tokens_of(graph // own, 0)))
        attention: Seconds = 0.0
        for load in loads:
            if load.decodes:
                attention = np.maximum(attention, self._decode_seconds(*load[:2]))
        pairs = [self.pairs_seconds(*load[2:]) * own for load in loads if load.prompt_tokens]
        stage = stage + attention + max(pairs, default=0.0)
        sequences = max(decodes) + -(-prompts // own)
        return self._joined(stage, whole, prompts, sequences, launched=not graph)

    def _joined(
        self, stage: Seconds, batch: Batch, prompts: int, sequences: float, *, launched: bool
    ) -> Seconds:
        """Time of an iteration of so long a stage, with head, drafts, messages and the host."""
        engine, work = self.engine, self.work
        device = stage * work.pp + self.head_seconds(batch.decodes * self._queries + prompts)
        if self._drafting is not None:
            device = device + self._draft_seconds(batch)
        device = device + self.send_seconds(self.tokens_of(batch.decodes, batch.prompt_tokens))
        device = device * engine.slowdown
        if launched:
            device = np.maximum(device, self._launches)
        return device + engine.step_time + engine.request_time * sequences

    def exposed_seconds(self, tokens: float) -> tuple[float, float]:
        """Exposed time of one stage: its all-reduces, and the exchange of tokens of experts [s]."""
        return self._communication(tokens), _between(self._exposed_table, tokens)

    def tokens_of(self, decodes: Count, prompt_tokens: Count) -> Count:
        """Tokens that pass the layers: of prompts, and of decoding sequences with their drafts."""
        return prompt_tokens + decodes * self._queries

    def _draft_seconds(self, batch: Batch) -> Seconds:
        """Time of the draft's passes over decoding sequences, and of one over prompts."""
        drafting, draft = self._drafting, self.draft
        assert drafting is not None, "asked with a draft"
        assert draft is not None, "asked with a draft"
        seconds: Seconds = 0.0
        if batch.decodes:
            each = drafting.stage_seconds(Batch(batch.decodes, batch.context))
            seconds = draft.passes * (each + drafting.head_seconds(batch.decodes))
        if batch.prompt_tokens:
            seconds = seconds + drafting.stage_seconds(batch._replace(decodes=0, context=0.0))
        return seconds

    def send_seconds(self, tokens: float) -> float:
        """Time of the messages from stage to stage for so many tokens [s]."""
        latency, rate = self.send
        return (self.work.pp - 1) * (latency + tokens * self.work.hidden * _ACTIVATION / rate)

    def stage_seconds(self, batch: Batch) -> Seconds:
        """Time of one stage without the head."""
        own, seconds = self.work.attention_dp, self._layers_seconds(batch)
        if batch.decodes and batch.prompt_tokens and not self.engine.mixes:
            seconds = self.token_seconds(batch.prompt_tokens)
            seconds += self._layers_seconds(Batch(batch.decodes, 0.0))
        if batch.decodes:
            seconds = seconds + self._decode_seconds(batch.decodes / own, batch.context / own)
        if batch.prompt_tokens:
            seconds = seconds + self.pairs_seconds(batch.prompt_tokens, batch.pairs)
        return seconds

    def _decode_seconds(self, sequences: float, context: Seconds) -> Seconds:
        """Attention of one stage's decoding sequences, or their states, on a rank [s]."""
        return sum(shape.seconds(sequences, context) for shape in self._decode)

    def _layers_seconds(self, batch: Batch, most: float = 0.0) -> Seconds:
        """Time of one stage, attention apart; `most`: tokens on the busiest rank or its graph."""
        own, tokens = self.work.attention_dp, self.tokens_of(batch.decodes, batch.prompt_tokens)
        most = max(most, self.tokens_of(self.graph(batch), 0) / own, tokens / own)
        if own == 1:
            return self.token_seconds(most)
        # padding of ranks does not travel to experts: SGLang masks it
        more = _between(self._own_table, most) - _between(self._own_table, tokens / own)
        return self.token_seconds(tokens) + more

    def graph(self, batch: Batch) -> int:
        """Sequences of the graph in which a batch that ranks share evenly runs; 0 without one."""
        if batch.prompt_tokens:
            return 0
        own = self.work.attention_dp
        return self._captured(-(-batch.decodes // own), alike=batch.decodes % own == 0)

    def _captured(self, most: int, *, alike: bool) -> int:
        """Sequences of the graph of all ranks, which decode so many at most, or all as many."""
        sizes = self.engine.graph_sizes
        place = bisect.bisect_left(sizes, most)
        if place == len(sizes):
            return 0
        fits = self.engine.graph_padding or (alike and sizes[place] == most)
        return sizes[place] * self.work.attention_dp if fits else 0

    def token_seconds(self, tokens: float) -> float:
        """Time of one stage for so many tokens, attention apart [s]."""
        return _between(self._table, tokens)

    def parts(self, tokens: Floats) -> dict[str, Floats]:
        """Seconds of one stage that depend on the number of tokens alone, by part."""
        if self.exchange is None or not self.engine.two_batch_overlap:
            return self._parts(tokens)
        # each half reads the weights, and its exchange hides behind the other
        parts = {name: 2.0 * half for name, half in self._parts(tokens / 2.0).items()}
        hides = parts["linear"] + parts["experts"] + parts["streaming"]
        return {**parts, "exchange": np.maximum(0.0, parts["exchange"] - hides)}

    def _parts(self, tokens: Floats) -> dict[str, Floats]:
        """The same of a batch that passes as one."""
        work, engine, products = self.work, self.engine, self.products
        linear, experts = np.zeros(len(tokens)), np.zeros(len(tokens))
        for each in work.linears:
            linear += each.layers * products.seconds(each, tokens * each.share)
        for routed in work.experts:
            experts += routed.layers * products.expert_seconds(routed, tokens)
        kernels = engine.stream_kernels * self.rates.stream_latency
        streaming = work.layers * (kernels + self._streaming(tokens / work.attention_dp))
        streaming += work.normed * self.rates.stream_latency * (_SPANNING if work.spans else 1)
        return {
            "linear": linear,
            "experts": experts,
            "streaming": streaming,
            "host": np.full(len(tokens), work.layers * engine.layer_time),
            "communication": np.array([self._communication(each) for each in tokens.tolist()]),
            "exchange": np.array([self._exchanged(each) for each in tokens.tolist()]),
        }

    def _streaming(self, tokens: Floats) -> Floats:
        """Time in which the memory-bound kernels of a layer move so many tokens of a rank [s]."""
        elements = tokens * (self.engine.stream_elements * self.work.hidden)
        return elements * (_ACTIVATION / self.rates.streamed)

    def _communication(self, tokens: float) -> float:
        """Two all-reduces a layer; with own requests a gather and a scatter, half of one each."""
        work = self.work
        each = self._gathered(tokens)
        if work.attention_dp == work.tp:
            return work.dense_layers * each
        norms = work.normed * self.reductions.seconds(tokens * _SQUARES) if work.spans else 0.0
        return norms + (2 * work.layers - (work.attention_dp > 1) * work.expert_layers) * each

    def _exchanged(self, tokens: float) -> float:
        """Tokens sent to the ranks of their experts, or to all ranks, whichever is faster [s]."""
        work = self.work
        if work.attention_dp == 1:
            return 0.0
        each = self._gathered(tokens)
        if self.exchange is not None:
            each = min(each, self.exchange.seconds(tokens / work.attention_dp))
        return work.expert_layers * each

    def _gathered(self, tokens: float) -> float:
        """Time of an all-reduce of the hidden state of so many tokens [s]."""
        return self.reductions.seconds(tokens * self.work.hidden * _ACTIVATION)

    def pairs_seconds(self, tokens: float, pairs: float) -> float:
        """Attention of so many tokens of prompts on one stage [s]."""
        own = self.work.attention_dp
        return sum(
            each * (min(pairs, tokens * window) if window else pairs) / own
            for window, each in self._prompts
        )

    def context_seconds(self, contexts: Floats) -> Floats:
        """The least that reading each sequence's cache adds to a stage's iterations [s]."""
        own = self.work.attention_dp
        return sum((shape.least(contexts) / own for shape in self._decode), np.zeros(len(contexts)))

    def head_seconds(self, samples: float) -> float:
        """Logits and sampling of so many tokens [s]."""
        return _between(self._head_table, samples) if samples else 0.0

    def _head_parts(self, samples: Floats) -> Floats:
        head = self.work.head
        sizes = samples * (head.product.n * _LOGIT)
        gathered = np.array([self.reductions.seconds(size) / 2.0 for size in sizes.tolist()])
        passes = _SAMPLING_PASSES * sizes / self.rates.streamed
        seconds = self.products.seconds(head, samples) + passes + gathered
        return np.maximum.accumulate(seconds) + self.engine.sampling_time


class Products:
    """Products of one rank as `mpsim.cost.KernelModel` prices them, and casts of their input."""

    def __init__(
        self,
        cluster: Cluster,
        rates: Rates,
        expert_kernel: str = "auto",
        padding: int = 0,
        clocks: str = "sustained",
    ) -> None:
        self._rates, chip = rates, cluster.accelerator
        self._experts = rates.expert_kernel if expert_kernel == "auto" else expert_kernel
        self._padding, self._clocks = padding, clocks
        self._chip = structs.replace(chip, memory_bandwidth=rates.bandwidth)
        self._kernels: dict[str, KernelModel] = {}

    def seconds(self, linear: Linear, tokens: Floats) -> Floats:
        """Time of one product of so many tokens [s]."""
        product, form = linear.product, linear.format
        moved = linear.weights * form.bytes + _ACTIVATION * tokens * (product.n + product.k)
        kernel = self._kernel(form)
        idle = partial(kernel.row_seconds, product, _NONE)
        moved = self._widened(form, linear.weights, moved, idle)
        seconds = kernel.row_seconds(product, tokens, moved) / _of(self._rates.product_rate, form)
        if product.module is Module.SHARED_EXPERTS:
            # they run beside the routed ones, whose launches hide theirs
            return np.maximum(0.0, seconds - kernel.row_seconds(product, _NONE, _NONE))
        return seconds + self._cast(form, tokens * product.k)

    def expert_seconds(self, experts: ExpertWork, tokens: Floats) -> Floats:
        """Permute, grouped products and combine of one layer on the busiest rank [s]."""
        form, kernel = experts.format, self._kernel(experts.format)
        rows, touched = experts.rows(tokens), experts.touched(tokens)
        name, groups, passed, held = self._experts, touched, rows, experts.experts / experts.ep
        if name == "triton" and form.unpacked and form.name == "mxfp4":
            name = "triton_kernels"  # OpenAI's, which route by kernels of their own
        if self._padding and form.name == _BLOCKS:
            # a launch that knows no expert's tokens passes what all of them could fill
            name, groups, passed = "deepgemm", np.array(held), rows + held * (self._padding - 1)
        knee = self._rates.expert_knee[name]
        fixed = self._rates.expert_latency[name] + self._rates.expert_each[name] * held
        seconds, casts = np.zeros(len(tokens)), np.zeros(len(tokens))
        work = passed / groups / _of(self._rates.expert_compute, form)
        for number, product in enumerate(experts.products):
            weights = touched * product.n * product.k
            moved = weights * form.bytes + _ACTIVATION * rows * (product.n + product.k)
            idle = partial(kernel.row_seconds, product, 1e-9 * rows, groups=touched, knee=knee)
            moved = self._widened(form, weights, moved, idle)
            seconds += kernel.row_seconds(product, work, moved, groups, knee)
            # tokens are quantised before they are permuted; of what lies between the products,
            # only blocks by a kernel of its own
            elements = (passed if number else rows / experts.top_k) * product.k
            casts += self._cast(form, elements, alone=not number or form.name == _BLOCKS)
        if name == "cutlass":
            seconds /= _of(self._rates.cutlass_rate, form)
        # rows are read and written as the products take them, and read once more to be combined
        width = form.bytes if casts.any() else _ACTIVATION
        permuted = rows * experts.products[0].k * (2.0 * width + _ACTIVATION)
        seconds /= _of(self._rates.expert_rate, form)
        return seconds + casts + permuted / self._rates.streamed + fixed

    def _cast(self, form: Format, elements: Floats, *, alone: bool = True) -> Floats | float:
        """Time of quantising a product's input: a kernel if alone, wide in, narrow out [s]."""
        if form.name not in self._rates.cast_latency or form.compute == "bf16":
            return 0.0
        latency = self._rates.cast_latency[form.name] if alone else 0.0
        return latency + elements * (_ACTIVATION + form.bytes) / self._rates.streamed

    def _widened(
        self, form: Format, weights: Floats | float, moved: Floats, seconds: Callable[..., Floats]
    ) -> Floats:
        """Bytes that take as long as weights are widened; `seconds`: of a product without rows."""
        if not form.unpacked:
            return moved
        launch, loads = seconds(0.0 * moved), seconds(moved)
        widens = weights / (_of(self._rates.unpack_rate, form) * self._chip.compute_units)
        return moved * np.maximum(1.0, (widens - launch) / (loads - launch))

    def _kernel(self, form: Format) -> KernelModel:
        """Kernels in the precision of a format; chips without bfloat16 work in fp16."""
        lacks = form.precision == "bf16" and "bf16" not in self._chip.peak_flops
        precision = "fp16" if lacks else form.precision
        if precision not in self._kernels:
            self._kernels[precision] = KernelModel(self._chip, precision, clocks=self._clocks)
        return self._kernels[precision]


class StateScan:
    """State mixers: every sequence reads and writes its state, however long its context."""

    slope = 0.0

    def __init__(self, state: StateWork, rates: Rates) -> None:
        self._fixed = _STATE_KERNELS * state.layers * rates.stream_latency
        self._each = state.layers * 2.0 * state.held / rates.streamed
        compute = state.token_flops / (rates.prompt_share * rates.peaks["bf16"])
        self.prompt_token = state.layers * max(compute, state.token_bytes / rates.streamed)

    def least(self, contexts: Floats) -> Floats:
        """Time that each of several sequences adds [s]."""
        return np.full(len(contexts), self._each)

    def seconds(self, sequences: float, _context: Seconds) -> Seconds:
        """Time for so many sequences [s]."""
        return self._fixed + self._each * sequences


class DecodeAttention:
    """Decode attention of equal layers: a sequence reads its cache once for all its queries."""

    def __init__(
        self, shape: Attention, rates: Rates, kv_bytes: float, *, shared: bool, queries: int = 1
    ) -> None:
        self._layers, self._window = shape.layers, shape.window
        self._latency = rates.latent_latency if shape.latent else rates.attention_latency
        reads = 1.0 if shared or shape.latent else shape.heads / shape.kv_heads
        bandwidth = rates.attention_bandwidth * rates.bandwidth
        narrow = rates.attention_narrow if kv_bytes < _ACTIVATION else 1.0
        rate = narrow * rates.attention_compute * rates.peaks["bf16"]
        self._per_token = max(
            reads * shape.read_width * kv_bytes / bandwidth,
            queries * 2.0 * shape.heads * shape.decode_width / rate,
        )

    @property
    def slope(self) -> float | None:
        """Time a token of the contexts together [s]; None where a window limits what is read."""
        return None if self._window else self._layers * self._per_token

    def least(self, contexts: Floats) -> Floats:
        """The part that grows with each sequence's context [s]: a batch takes no less together."""
        if self._window:
            contexts = np.minimum(contexts, self._window)
        return self._layers * self._per_token * contexts

    def seconds(self, sequences: float, context: Seconds) -> Seconds:
        """Time for so many sequences with so many tokens together [s]."""
        if self._window:
            context = np.minimum(context, sequences * self._window)
        return self._layers * (self._latency + self._per_token * context)


def _of(by_format: Mapping[str, float], form: Format) -> float:
    """A rate for weights of a format."""
    return by_format.get(form.name, by_format["*"])


def _grid() -> Floats:
    """Numbers of tokens at which iterations are tabulated."""
    points = [*range(1, _EXACT), *range(_EXACT, _GRAPHS + 1, 8)]
    while points[-1] < _LARGEST:
        points.append(round(points[-1] * _GRID_STEP))
    return np.array(points, dtype=np.float64)


_GRID = _grid()
_POINTS: list[float] = _GRID.tolist()


def _between(table: Sequence[float], tokens: float) -> float:
    """Entry of a table over the grid, or between two of its points."""
    if tokens <= _EXACT and tokens >= 1 and tokens == int(tokens):
        return table[int(tokens) - 1]
    place = min(max(bisect.bisect_right(_POINTS, tokens), 1), len(_POINTS) - 1)
    low, high = _POINTS[place - 1], _POINTS[place]
    return table[place - 1] + (table[place] - table[place - 1]) * (tokens - low) / (high - low)
