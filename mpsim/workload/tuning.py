"""Tuning: which parameters train, and what adapters and narrow frozen weights add.

`Tuning.applied` is the one place that asks whether a weight trains: kernels, kept activations,
messages, states and the optimizer all follow from the weight gradients that are left in an
expansion (`trained_weights`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

from mpsim import structs
from mpsim.workload.builders import MASK_BYTES, STATISTIC_BYTES, linear, moving
from mpsim.workload.expansion import Expansion, Lowering, Step
from mpsim.workload.operators import Module, Operator, OperatorKind, Phase, Role, Split
from mpsim.workload.parameters import Count
from mpsim.workload.transformer import Transformer

_QUERY: Final = frozenset({Role.QKV, Role.QUERY, Role.QUERY_UP})
PROJECTIONS: Final = MappingProxyType(
    {
        "qkv": frozenset({*_QUERY, Role.KEY_VALUE, Role.KEY_VALUE_UP, Role.STATE_IN}),
        "query": _QUERY,
        "key": frozenset({Role.QKV}),
        "value": frozenset({Role.QKV}),
        "output": frozenset({Role.PROJECTION, Role.STATE_OUT}),
        "up": frozenset({Role.UP}),
        "down": frozenset({Role.DOWN}),
        "head": frozenset({Role.LOGITS}),
    }
)
"""Products that adapters stand beside, by the word for them."""
FROZEN: Final = MappingProxyType(
    {
        "embedding": frozenset({Module.EMBEDDING}),
        "attention": frozenset({Module.ATTENTION, Module.CROSS_ATTENTION, Module.STATE}),
        "vision": frozenset({Module.VISION}),
        "mlp": frozenset({Module.MLP, Module.EXPERTS, Module.SHARED_EXPERTS}),
        "head": frozenset({Module.HEAD}),
    }
)
"""Modules whose weights can be frozen, by the word for them."""
BASES: Final = MappingProxyType(
    {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "nf4": 0.5159, "nf4-single": 0.5625}
)
"""Bytes of a frozen weight: fp8 as products read it (Transformer Engine's fp8_params), int8 without
its row scales; NF4 in blocks of 64, scales in 8 bits by blocks of 256 (Dettmers et al., QLoRA,
2023, section 3), or in float32 if quantised once (bitsandbytes, litgpt's `bnb.nf4`)."""
ADAPTERS: Final = frozenset(
    {Role.ADAPTER_DROPOUT, Role.ADAPTER_DOWN, Role.ADAPTER_UP, Role.ADAPTER_SUM}
)
"""Roles of what adapters add to a forward."""
_WIDE = BASES["bf16"]
_PRODUCTS = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM)
_JOINED: Final = ("query", "key", "value")


class _Beside(NamedTuple):
    """Weights of one product that adapters stand beside."""

    weights: int
    features: int


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Parameters that train."""

    frozen: tuple[str, ...] = ()
    """Words of `FROZEN` whose weights stay as they are."""
    rank: int = 0
    """Of the adapters, which alone train then; 0 for none."""
    modules: tuple[str, ...] = ()
    """Words of `PROJECTIONS` that have adapters."""
    dropout: bool = False
    """Whether each adapter drops some of its input, which it keeps with the mask."""
    base: str = "bf16"
    """Format of the frozen weights of layers beside adapters, one of `BASES`; what is narrow is
    widened before each product."""

    @property
    def trains_all(self) -> bool:
        """Whether every parameter trains."""
        return not self.rank and not self.frozen

    @property
    def widens(self) -> bool:
        """Whether narrow frozen weights are widened before each product."""
        return self.base not in ("bf16", "fp8")

    def applied(
        self, part: str, expansion: Expansion, lowering: Lowering, model: Transformer
    ) -> Expansion:
        """Operators of a part as it trains: frozen weights have no gradient, and keep no input."""
        if self.trains_all:
            return expansion
        steps: list[Step] = []
        waiting: list[int] = []  # norms and activations that keep their output for the next product
        for step in _steps(self._seen(expansion)):
            forward = step.forward
            has_weight = forward.kind in _PRODUCTS and any(
                gradient.phase is Phase.WEIGHT_GRADIENT for gradient in step.backward
            )
            adapted = (
                has_weight
                and part != "embedding"
                and any(forward.role in PROJECTIONS[word] for word in self.modules)
            )
            # an adapter of another width, or with dropout, keeps an input of its own
            reads = adapted and not (self.dropout or _is_wide(lowering))
            frozen = bool(self.rank) or any(forward.module in FROZEN[word] for word in self.frozen)
            # what a fused core returns is read by the core's own gradient
            keeps = reads or (forward.role is Role.PROJECTION and lowering.fused_attention)
            if frozen:
                step = _without_weight_gradient(step, keeps=keeps)
            if frozen and forward.kind is not OperatorKind.NORM and forward.role is Role.NORM:
                step = _without_normed(step, lowering)
            if has_weight and frozen and not reads:
                for place in waiting:
                    steps[place] = _keeping_less(steps[place])
            if has_weight:
                waiting = []
            elif forward.role is Role.NORM or forward.saved_for_weight:
                waiting.append(len(steps))
            if has_weight and self.widens and part not in ("embedding", "head"):
                steps.append(self._widened(forward, lowering, keeps=keeps))
            steps.append(step)
            if adapted:
                steps += self._adapter(forward, lowering, self._beside(forward, model))
        result = Expansion.of(
            steps, input_bytes=expansion.input_bytes, input_split=expansion.input_split
        )
        if part == "embedding" and (self.rank or part in self.frozen):
            forward_only = tuple(_keeping_nothing(operator) for operator in result.forward)
            return structs.replace(result, forward=forward_only, backward=())
        return result

    def _seen(self, expansion: Expansion) -> Expansion:
        """The same without the backward of a frozen vision tower, before which nothing trains."""
        if "vision" not in self.frozen:
            return expansion
        forward = (
            _keeping_nothing(each) if each.module is Module.VISION else each
            for each in expansion.forward
        )
        backward = (each for each in expansion.backward if each.module is not Module.VISION)
        return structs.replace(expansion, forward=tuple(forward), backward=tuple(backward))

    def trained(
        self, part: str, full: Expansion, count: Count, lowering: Lowering, model: Transformer
    ) -> Count:
        """Trained parameters of a part that has `count` of its own."""
        if self.trains_all:
            return count
        left = trained_weights(self.applied(part, full, lowering, model).backward)
        if self.rank:
            return left
        if part in self.frozen:
            return Count()
        gone = trained_weights(full.backward)
        # a tied output projection has a gradient, but its weight is counted with the embedding
        return Count(
            max(count.sharded - gone.sharded + left.sharded, 0),
            max(count.replicated - gone.replicated + left.replicated, 0),
            count.experts - gone.experts + left.experts,
        )

    def base_bytes(self, count: Count, *, layer: bool) -> float:
        """Bytes of a frozen parameter beside adapters, on average over those of a part."""
        if not layer or not count.total:
            return _WIDE
        linear_share = (count.sharded + count.experts) / count.total
        return _WIDE + (BASES[self.base] - _WIDE) * linear_share

    def _beside(self, product: Operator, model: Transformer) -> _Beside:
        """Weights of a product that have adapters, and their width, perhaps some of joined ones."""
        widths = (model.query_features, model.kv_features, model.kv_features)
        chosen = [size for word, size in zip(_JOINED, widths, strict=True) if word in self.modules]
        if product.role is not Role.QKV or "qkv" in self.modules or not chosen:
            return _Beside(product.weights, product.n)
        return _Beside(len(chosen), sum(chosen))

    def _widened(self, product: Operator, lowering: Lowering, *, keeps: bool) -> Step:
        """Read narrow weights, write 16 bits, before a product; `keeps`: its input is kept."""
        kept = max(lowering.narrow_inputs - keeps, 0) * lowering.activation_bytes
        weights = product.batch * product.n * product.k
        moved = (BASES[self.base] + lowering.activation_bytes) * weights
        split = Split.EXPERT if product.split is Split.EXPERT else Split.TENSOR
        return moving(
            Role.DEQUANTISE,
            split,
            (moved, moved),
            module=product.module,
            name=f"widen {product.name}",
            saved_for_weight=float(kept * product.m * product.k),
            saved_split=Split.TENSOR if product.split is Split.ROW else Split.SEQUENCE,
        )

    def _adapter(self, product: Operator, lowering: Lowering, beside: _Beside) -> Iterator[Step]:
        """Two narrow products for each weight with an adapter, and the sum with its result."""
        tokens, features, name = product.m, product.k, f"{product.name} adapter"
        out, inner = beside.features, self.rank * beside.weights
        element = lowering.adapter_bytes or lowering.activation_bytes
        narrow = structs.replace(lowering, activation_bytes=element)
        product_of = functools.partial(
            linear, tokens=tokens, lowering=narrow, module=product.module
        )
        column = product.split is Split.COLUMN
        first = Split.ROW if product.split is Split.ROW else Split.SEQUENCE
        second = Split.COLUMN if column else Split.SEQUENCE
        if self.dropout or _is_wide(lowering):
            read, written = lowering.activation_bytes, element
            mask = MASK_BYTES if self.dropout else 0
            moved = float((read + written + mask) * tokens * features * beside.weights)
            split = Split.TENSOR if first is Split.ROW else Split.SEQUENCE
            yield moving(
                Role.ADAPTER_DROPOUT,
                split,
                (moved, moved),
                module=product.module,
                name=f"{name} {'dropout' if self.dropout else 'input'}",
                saved_for_weight=float((written + mask) * tokens * features * beside.weights),
                saved_split=split,
            )
        down = f"{name} down"
        yield product_of(
            Role.ADAPTER_DOWN, first, features_out=inner, features_in=features, name=down
        )
        yield product_of(
            Role.ADAPTER_UP,
            second,
            features_out=out,
            features_in=self.rank,
            name=f"{name} up",
            saved_for_weight=float(element * tokens * inner),
        )
        around = Split.TENSOR if column else Split.SEQUENCE
        moved, module = 3 * float(element * tokens), product.module
        sums = moved * out, moved * features
        yield moving(Role.ADAPTER_SUM, around, sums, module=module, name=f"{name} sum")


ALL_TRAINED: Final = Tuning()


def trained_weights(operators: Iterable[Operator]) -> Count:
    """Weights of products that these gradients are of."""
    sharded = replicated = experts = 0
    for operator in operators:
        if operator.phase is not Phase.WEIGHT_GRADIENT or operator.kind not in _PRODUCTS:
            continue
        weights = operator.batch * operator.m * operator.n
        if operator.split is Split.EXPERT:
            experts += weights
        elif operator.split in (Split.COLUMN, Split.ROW):
            sharded += weights
        else:
            replicated += weights
    return Count(sharded, replicated, experts)


def _steps(expansion: Expansion) -> list[Step]:
    """The steps of an expansion: gradients in reverse, each beside others of its place."""
    left, steps = list(expansion.backward), list[Step]()
    for forward in reversed(expansion.forward):
        count = 0
        while count < len(left) and left[count].place == forward.place:
            count += 1
        steps.append(Step(forward, tuple(left[:count])))
        del left[:count]
    return steps[::-1]


def _without_weight_gradient(step: Step, *, keeps: bool) -> Step:
    backward = tuple(
        gradient for gradient in step.backward if gradient.phase is not Phase.WEIGHT_GRADIENT
    )
    has_weight = len(backward) < len(step.backward)
    step = Step(step.forward, backward)
    return _keeping_less(step) if has_weight and not keeps else step


def _without_normed(step: Step, lowering: Lowering) -> Step:
    """A norm of several kernels with a frozen weight keeps its input in float32 only."""
    share = STATISTIC_BYTES / (STATISTIC_BYTES + lowering.activation_bytes)
    return Step(structs.replace(step.forward, saved=share * step.forward.saved), step.backward)


def _keeping_less(step: Step) -> Step:
    return Step(structs.replace(step.forward, saved_for_weight=0.0), step.backward)


def _is_wide(lowering: Lowering) -> bool:
    """Whether adapters are wider than activations, which they read copied."""
    return lowering.adapter_bytes > lowering.activation_bytes


def _keeping_nothing(operator: Operator) -> Operator:
    return structs.replace(operator, saved=0.0, saved_for_weight=0.0)
