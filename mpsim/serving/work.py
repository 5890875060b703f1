"""Work of a rank in an iteration: weights it multiplies, keys and values it reads.

An instance is ``tp x pp`` accelerators (with attention data parallelism the ``tp`` ranks keep whole
heads and requests of their own, and meet in the experts). Everything here is per rank and per
iteration, and linear in the tokens that take part, so that an iteration is priced from a handful of
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.parallel import Sharding, shard
from mpsim.parallel.experts import busiest_rank, expected_maximum
from mpsim.workload import (
    Lowering,
    Module,
    Operator,
    OperatorKind,
    Role,
    Transformer,
    expand_head,
    expand_layer,
)
from mpsim.workload.transformer import LayerKind


@structs.dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored and multiplied."""

    name: str
    bytes: float  # of a weight with its share of the scales [B]
    compute: str  # precision whose matrix units do the product
    precision: str  # the same as `mpsim.cost.KernelModel` knows it

    @property
    def unpacked(self) -> bool:
        """Whether weights of 4 bits are widened for units of 16 bits."""
        return self.bytes < 1.0 and self.compute == "bf16"


@structs.dataclass(frozen=True, slots=True)
class Linear:
    """Matrices of one shape that all tokens of an iteration pass."""

    product: Operator  # one rank's product for a token
    layers: int  # how many such matrices
    format: Format
    # tokens that pass it over the iteration's: below 1 with attention data parallelism
    share: float = 1.0

    @property
    def weights(self) -> float:
        """Elements of one matrix."""
        return float(self.product.n * self.product.k)


@structs.dataclass(frozen=True, slots=True)
class ExpertWork:
    """Routed experts of equal layers."""

    layers: int
    experts: int
    top_k: int
    # one rank's grouped products, their features divided by the tensor parallelism inside experts
    products: tuple[Operator, ...]
    ep: int  # ranks that divide the experts among them
    format: Format
    imbalance: float = 1.0  # tokens of the busiest rank over the mean
    spread: float = 0.0  # standard deviation of an expert's tokens over their mean

    @property
    def elements(self) -> float:
        """Elements of one expert on this rank: all its matrices."""
        return float(sum(product.n * product.k for product in self.products))

    def rows(self, tokens: Floats) -> Floats:
        """Rows of the busiest rank, by popularity and by chance, for so many tokens of all."""
        busiest = busiest_rank(self.imbalance, self.ep, tokens * self.top_k)
        return tokens * (self.top_k / self.ep * busiest)

    def touched(self, tokens: Floats) -> Floats:
        """Experts that any of so many tokens is routed to, on the rank with the most, expected.

        Popularity has a gamma distribution, so that misses have a negative binomial one; a token
        always goes to ``top_k``. Of ranks alike, the most is some standard deviations of the number
        over its mean; a rank that gets more tokens touches at least what these do.
        """
        own, mean = self.experts / self.ep, self._hit(tokens)
        most = own * mean + expected_maximum(self.ep) * np.sqrt(own * mean * (1.0 - mean))
        busiest = own * self._hit(tokens * self.imbalance)
        most = np.maximum(most, np.minimum(busiest, self.imbalance * own * mean))
        return np.minimum(most, np.minimum(own, self.rows(tokens)))

    def _hit(self, tokens: Floats) -> Floats:
        """Share of the experts that so many tokens are routed to."""
        share, spread = self.top_k / self.experts, self.spread**2
        missed: Floats = (1.0 - share) ** tokens if share < 1.0 else np.zeros_like(tokens)
        if spread and share < 1.0:
            missed = (1.0 - spread * math.log(1.0 - share) * tokens) ** (-1.0 / spread)
        return np.maximum(1.0 - missed, share)


@structs.dataclass(frozen=True, slots=True)
class Attention:
    """Attention of equal layers on one rank."""

    layers: int
    # heads, kv_heads: query heads, and key-value heads whose cache is read
    heads: float
    kv_heads: float
    # key_width, value_width: elements of a key and a value that a query head multiplies; of latent
    # attention those of the prompt's, not absorbed
    key_width: int
    value_width: int
    # elements of cache a token that one decode reads: all key-value heads of the rank
    read_width: float
    # elements a query head and cached token multiply in decoding (two FLOP each)
    decode_width: float
    window: int = 0  # tokens a query sees, 0 for all
    latent: bool = False


@structs.dataclass(frozen=True, slots=True)
class StateWork:
    """State mixers of equal layers on one rank."""

    layers: int
    # state of a sequence in a layer, read and written for each of its tokens that decodes [B]
    held: float
    # scan, convolution and norm of a token of a prompt in a layer [FLOP] and [B]
    token_flops: float
    token_bytes: float


@structs.dataclass(frozen=True, slots=True)
class RankWork:
    """All that one rank of the fullest stage does in an iteration."""

    hidden: int
    layers: int
    linears: tuple[Linear, ...]
    experts: tuple[ExpertWork, ...]
    attention: tuple[Attention, ...]
    head: Linear
    tp: int
    pp: int
    ep: int
    attention_dp: int
    dense_layers: int
    expert_layers: int
    normed: int  # layers whose queries and keys are normed
    spans: bool  # whether those norms span the heads of other ranks
    weight_bytes: float  # of one rank of the fullest stage [B]
    state: StateWork | None
    # elements of cache that a token takes on one rank of the fullest stage, windows apart
    cache_elements: float

    @classmethod
    def of(
        cls,
        model: Transformer,
        *,
        tp: int,
        pp: int = 1,
        ep: int = 1,
        attention_dp: int = 1,
        weights: Format,
        wide: Format,
        wide_roles: frozenset[Role] = frozenset(),
        imbalance: float = 1.0,
        spread: float = 0.0,
    ) -> RankWork:
        """Divide a model among the ranks of an instance.

        `weights` and `wide`: formats of the linear layers, and of what stays wide: output head,
        router, embedding, and the products of layers in `wide_roles`. `imbalance`: tokens of the
        busiest expert rank over the mean. `spread`: standard deviation of an expert's tokens over
        their mean.
        """
        wide_roles |= {Role.ROUTER}
        attention_tp = max(1, tp // attention_dp)
        own_heads = Sharding(tp=attention_tp)
        own_modules = {Module.ATTENTION, Module.STATE}
        if attention_dp > 1 and ep > 1:
            # shared experts are whole beside divided ones (`_compute_shared_expert_tp_size` of
            # TensorRT-LLM's modeling_deepseekv3.py, SGLang's deepseek_v2.py with DeepEP)
            own_modules.add(Module.SHARED_EXPERTS)
        inside = max(1, tp // ep) if ep > 1 else tp
        shared = Sharding(tp=tp, ep=ep, etp=inside)
        kinds: dict[LayerKind, int] = {}
        for kind in model.kinds[: model.layers - model.mtp_layers]:
            kinds[kind] = kinds.get(kind, 0) + 1
        stage = {kind: -(-count // pp) if pp > 1 else count for kind, count in kinds.items()}
        # a layer of a mixer or an MLP alone has half of the kernels and reductions of one of both
        halves = sum(count * ((k.mixer != "none") + k.mlp) for k, count in kinds.items())
        layers = -(-halves // (2 * pp))
        linears: list[Linear] = []
        experts: list[ExpertWork] = []
        attention: list[Attention] = []
        for kind, count in stage.items():
            if kind.mixer == "attention":
                attention.append(_attention(model, kind, attention_tp, count))
            grouped: list[Operator] = []
            for operator in _products(model, kind.name, attention_tp):
                if operator.kind is OperatorKind.GROUPED_GEMM:
                    grouped.append(shard(operator, shared))
                    continue
                around = operator.module in own_modules
                product = shard(operator, own_heads if around else shared)
                form = wide if product.role in wide_roles else weights
                share = 1.0 / attention_dp if around else 1.0
                linears.append(Linear(product, count, form, share))
            if grouped and (moe := model.moe):
                busiest = imbalance if ep > 1 else 1.0
                pair = tuple(grouped)
                experts.append(
                    ExpertWork(count, moe.experts, moe.top_k, pair, ep, weights, busiest, spread)
                )
        expert_layers = sum(routed.layers for routed in experts)
        ends = expand_head(model, Lowering(), sequences=1, sequence_length=1)
        logits = next(o for o in ends.forward if o.role is Role.LOGITS)  # heads of drafts follow
        head = Linear(shard(logits, shared), 1, wide)
        own = math.fsum(linear.weights * linear.layers * linear.format.bytes for linear in linears)
        own += sum(
            expert.layers * expert.experts / expert.ep * expert.elements * expert.format.bytes
            for expert in experts
        )
        embedding = model.vocab * model.hidden / tp * wide.bytes
        outer = (head.weights * wide.bytes if not model.tied_embeddings else 0.0) + embedding
        return cls(
            hidden=model.hidden,
            layers=layers,
            linears=tuple(linears),
            experts=tuple(experts),
            attention=tuple(attention),
            head=head,
            tp=tp,
            pp=pp,
            ep=ep,
            attention_dp=attention_dp,
            dense_layers=layers - expert_layers,
            expert_layers=expert_layers,
            normed=sum(block.layers for block in attention) if model.qk_norm else 0,
            spans=model.qk_norm and model.qk_norm_whole and attention_tp > 1,
            weight_bytes=own + (outer if pp == 1 else outer / 2),
            state=_state(model, stage, attention_tp),
            cache_elements=sum(block.layers * block.read_width for block in attention),
        )


def _products(model: Transformer, kind: str, tp: int) -> list[Operator]:
    """Products of a layer for one token, before they are divided among `tp` ranks of heads."""
    if model.mla is None and model.kv_heads < tp:  # fewer key-value heads than ranks: each has one
        model = structs.replace(model, kv_heads=tp)
    layer = expand_layer(model, Lowering(), sequences=1, sequence_length=1, kind=kind)
    products = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM)
    return [o for o in layer.forward if o.kind in products and not o.in_attention_core]


def _state(model: Transformer, stage: Mapping[LayerKind, int], tp: int) -> StateWork | None:
    """State mixers of a stage; None of a model without."""
    mixer = model.state
    if mixer is None:
        return None
    counts = {kind.name: count for kind, count in stage.items() if kind.mixer == "state"}
    length, kind = mixer.chunk, next(iter(counts))
    layer = expand_layer(model, Lowering(), sequences=1, sequence_length=length, kind=kind)
    own = [o for o in layer.forward if o.module is Module.STATE and o.kind is not OperatorKind.GEMM]
    return StateWork(
        layers=sum(counts.values()),
        held=mixer.state_bytes() / tp,
        token_flops=math.fsum(operator.flops for operator in own) / length / tp,
        token_bytes=math.fsum(operator.bytes for operator in own) / length / tp,
    )


def _attention(model: Transformer, kind: LayerKind, tp: int, layers: int) -> Attention:
    mla, kv_heads, width = model.mla, max(1.0, model.kv_heads / tp), model.head_dim
    whole = Attention(
        layers=layers,
        heads=model.heads / tp,
        kv_heads=kv_heads,
        key_width=width,
        value_width=width,
        read_width=2 * kv_heads * width,
        decode_width=2 * width,
        window=kind.window,
    )
    if mla is None:
        return whole
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    return structs.replace(
        whole,
        kv_heads=1.0,
        key_width=mla.qk_head_dim,
        value_width=mla.v_head_dim,
        read_width=latent,
        decode_width=latent + mla.kv_lora_rank,
        latent=True,
    )


def wide_in(model: Transformer, weights: str) -> frozenset[Role]:
    """Products around attention that checkpoints of a format keep in 16 bits.

    NVIDIA's NVFP4 checkpoints of mixtures of experts leave out what makes queries, keys and values
    (`exclude_modules` of hf_quant_config.json: MiniMax-M2.5, Kimi-K2.5, DeepSeek-R1-0528-FP4-v2,
    Qwen3-Coder-Next), MXFP4 (gpt-oss) and 4-bit integers of latent attention (Kimi-K2.5) all of it.
    """
    if model.moe is None or weights not in ("nvfp4", "mxfp4", "w4a16"):
        return frozenset()
    if weights == "nvfp4":
        return _INTO_ATTENTION
    both = weights == "mxfp4" or model.mla is not None
    return _INTO_ATTENTION | {Role.PROJECTION} if both else frozenset()


_KEYS = Role.KEY_VALUE, Role.KEY_VALUE_DOWN, Role.KEY_VALUE_UP
_INTO_ATTENTION = frozenset({Role.QKV, Role.QUERY, Role.QUERY_DOWN, Role.QUERY_UP, *_KEYS})
FORMATS = {
    "bf16": Format("bf16", 2.0, "bf16", "bf16"),
    "fp16": Format("fp16", 2.0, "fp16", "fp16"),
    "fp32": Format("fp32", 4.0, "fp32", "fp32"),
    "fp8": Format("fp8", 1.0, "fp8", "fp8"),
    "fp8_block": Format("fp8_block", 1.0 + 4.0 / 128**2, "fp8", "fp8_block"),
    "int8": Format("int8", 1.0, "int8", "int8"),
    "w4a16": Format("w4a16", 0.5 + 2.0 / 128, "bf16", "bf16"),
    "nvfp4": Format("nvfp4", 0.5 + 1.0 / 16, "fp4", "nvfp4"),
    "mxfp4": Format("mxfp4", 0.5 + 1.0 / 32, "fp4", "mxfp8"),
}
"""Number formats of served weights, scales of 128x128, 128, 16 and 32 elements counted."""
