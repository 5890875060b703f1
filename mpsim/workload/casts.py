"""Casts of a narrow training precision: kernels that convert what linear layers read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mpsim import structs
from mpsim.workload.builders import make_elementwise
from mpsim.workload.expansion import Expansion
from mpsim.workload.operators import Module, Operator, OperatorKind, Phase, Role, Split

_WRITERS = {  # kernels that leave less to a cast behind them, by `casts` of `with_casts`
    "norms": (OperatorKind.NORM,),
    "elementwise": (OperatorKind.NORM, OperatorKind.ELEMENTWISE),
    "twice": (OperatorKind.NORM,),
}


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Casting:
    """How tensors become narrow."""

    element_bytes: float
    """Of a narrow element, its share of the scales included [B]."""
    passes: float
    """Times that the wide tensor is read, at least 1."""
    copies: float
    """Narrow tensors written: 2 where the products of the backward pass need a transposed one."""
    late_passes: float = 0.0
    """Times that the wide tensor is read once more for what the weight gradient multiplies, where
    that has scales of its own and is cast in the backward pass (one a column beside one a row); 0
    where the first cast serves both."""

    def moved_bytes(self, elements: float, wide_bytes: float) -> float:
        """Traffic of casting so many elements of `wide_bytes` each, of both casts if two [B]."""
        return self.first_bytes(elements, wide_bytes) + self.late_bytes(elements, wide_bytes)

    def first_bytes(self, elements: float, wide_bytes: float, *, transposed: bool = True) -> float:
        """Traffic of the first product's cast, with the `transposed` copy or without [B]."""
        copies = self.copies if transposed else 1.0
        return elements * (self.passes * wide_bytes + copies * self.element_bytes)

    def late_bytes(self, elements: float, wide_bytes: float) -> float:
        """Traffic of the second cast, 0 where there is none [B]."""
        again = self.late_passes * wide_bytes + self.element_bytes
        return elements * again if self.late_passes else 0.0

    def transposing_bytes(self, elements: float) -> float:
        """Traffic of transposing narrow elements, 0 where nothing needs it [B]."""
        return 2.0 * (self.copies - 1.0) * elements * self.element_bytes


def with_casts(
    expansion: Expansion,
    casting: Casting,
    *,
    wide_bytes: float,
    wide_roles: Collection[Role] = (),
    gathered: bool = False,
    fused_experts: bool = False,
    casts: str = "separate",
) -> Expansion:
    """Put casts before the linear layers, whose products then read narrow elements.

    `expansion`: in a wide precision. `wide_bytes`: of an element before its cast [B]. `wide_roles`:
    linear layers that stay wide. `gathered`: whether tensor-parallel ranks gather narrow elements:
    each casts its share and transposes the whole. `fused_experts`: whether products of experts hand
    each other narrow elements: what the second reads, and the gradient that the first reads.
    `casts`: as `framework.narrow_casts` has it.

    Notes
    -----
    Forward casts the input of a layer, backward the gradient of its output, each once for the two
    products that read it; with `Casting.late_passes` once for each of them, and after the gather,
    because a scale belongs to a whole row or column. Weights change once a step and are cast then,
    not here. Batched products (unfused attention) stay wide.

    Examples
    --------
    >>> from mpsim.workload import Lowering, expand_layer, model
    >>> layer = expand_layer(model("gpt2-small"), Lowering(), sequences=1, sequence_length=1024)
    >>> cast = with_casts(layer, Casting(element_bytes=1, passes=1, copies=2), wide_bytes=2)
    >>> [operator.name for operator in cast.forward][:3]
    ['norm1', 'quantise qkv input', 'qkv']
    """
    trained = frozenset(o.place for o in expansion.backward if o.phase is Phase.WEIGHT_GRADIENT)
    wide = frozenset(wide_roles)
    rules = _Rules(casting, wide_bytes, wide, gathered, fused_experts, trained, casts)
    forward, backward = (tuple(_cast(o, rules)) for o in (expansion.forward, expansion.backward))
    return structs.replace(expansion, forward=forward, backward=backward)


def kept_narrow(
    expansion: Expansion,
    *,
    element_bytes: float,
    wide_bytes: float,
    activation_inputs: bool = False,
) -> Expansion:
    """Keep what linear layers read as it was cast, for their weight gradients.

    `expansion`: of a layer, in a wide precision. `element_bytes`, `wide_bytes`: of a narrow
    element, its share of the scales included, and of a wide one [B]. `activation_inputs`: whether
    what activations of MLP and experts read is kept narrow too.

    Notes
    -----
    Wide are what other kernels keep (inputs of norms, what goes into the attention core and the
    activation) and the output of a norm that a router reads too. The output of the attention core
    is kept twice: its backward reads it wide. One narrow copy is kept of a tensor, the one along
    whose columns the weight gradient multiplies.

    References
    ----------
    NVIDIA/TransformerEngine transformer_engine/pytorch/module/linear.py, layernorm_linear.py
    (``saved_inputmat``); DeepSeek-V3, arXiv 2412.19437 section 3.3.3.
    """
    share = element_bytes / wide_bytes
    routes = any(operator.split is Split.EXPERT for operator in expansion.forward)

    def narrowed(operator: Operator) -> Operator:
        if activation_inputs and operator.role is Role.UP and not operator.is_cast:
            operator = structs.replace(operator, saved=operator.saved * share)
        if not operator.saved_for_weight or operator.is_cast:
            return operator
        if routes and operator.place == (Module.MLP, Role.NORM):
            return operator
        both = 1.0 if operator.role is Role.PROJECTION else 0.0
        return structs.replace(
            operator, saved_for_weight=operator.saved_for_weight * (share + both)
        )

    return structs.replace(expansion, forward=tuple(map(narrowed, expansion.forward)))


@structs.dataclass(frozen=True, slots=True)
class _Rules:
    """Rules by which linear layers are cast, as `with_casts` takes them."""

    casting: Casting
    wide_bytes: float
    wide: frozenset[Role]
    gathered: bool
    fused_experts: bool
    trained: frozenset[tuple[Module, Role]]
    casts: str


def _cast(operators: Iterable[Operator], rules: _Rules) -> Iterator[Operator]:
    narrow, following = rules.casting.element_bytes, None
    for operator in operators:
        before, following = following, operator
        if not _is_linear(operator) or operator.role in rules.wide:
            yield operator
            continue
        if operator.phase is Phase.WEIGHT_GRADIENT:
            yield from _late(operator, rules)
        elif not (rules.fused_experts and _is_handed_on(operator)):
            yield from _quantise(operator, before, rules)
        saved = (rules.wide_bytes - narrow) * sum(operator.operands[:2])
        yield structs.replace(operator, bytes=operator.bytes - saved, operand_bytes=narrow)


def _is_linear(operator: Operator) -> bool:
    """Whether it multiplies by weights: projections, and experts with one kernel for all."""
    linear = operator.kind is OperatorKind.GEMM and operator.split is not Split.TENSOR
    return linear or operator.kind is OperatorKind.GROUPED_GEMM


def _is_handed_on(product: Operator) -> bool:
    """Whether the other product of the same experts writes what this one reads."""
    inside = Role.DOWN if product.phase is Phase.FORWARD else Role.UP
    return product.module is Module.EXPERTS and product.role is inside


def _quantise(product: Operator, before: Operator | None, rules: _Rules) -> Iterator[Operator]:
    """Cast of what a product reads besides the weight, its left operand, unless it comes narrow."""
    forward = product.phase is Phase.FORWARD
    what, casting, elements = "input" if forward else "gradient", rules.casting, product.operands[0]
    split = _split(product, what, rules)
    # the transposed copy of an input is for the gradient of the weight alone
    whole = not forward or product.place in rules.trained
    whole = whole and not (rules.gathered and split is Split.SEQUENCE)
    moved = casting.first_bytes(float(elements), rules.wide_bytes, transposed=whole)
    # norms write what is read forward, kernels of XLA both ways; a norm knows its largest magnitude
    writes = _WRITERS.get(rules.casts, ()) if forward or rules.casts == "elementwise" else ()
    written = before is not None and before.kind in writes
    if rules.casts == "twice":
        moved += (not written) * elements * rules.wide_bytes
    elif written:
        moved = whole * casting.transposing_bytes(float(elements))
    if moved:
        yield _kernel(product, what, split, moved)


def _late(product: Operator, rules: _Rules) -> Iterator[Operator]:
    """Casts that a weight gradient needs beyond its operands': others, or transposed copies."""
    casting = rules.casting
    for what, elements in zip(("gradient", "input"), product.operands[:2], strict=True):
        split = _split(product, what, rules)
        moved = casting.late_bytes(float(elements), rules.wide_bytes)
        if not moved and rules.gathered and split is Split.SEQUENCE:
            moved, split = casting.transposing_bytes(float(elements)), Split.NONE
        if moved:
            yield _kernel(product, f"{what} for the weight", split, moved)


def _kernel(product: Operator, what: str, split: Split, moved: float) -> Operator:
    return make_elementwise(
        product.role,
        product.phase,
        moved=moved,
        kind=OperatorKind.QUANTISE,
        module=product.module,
        name=f"quantise {product.name} {what}",
        split=split,
    )


def _split(product: Operator, what: str, rules: _Rules) -> Split:
    """How the input or the gradient of a layer is divided when it is cast.

    Between a column and a row layer tensors are divided by tensor parallelism, elsewhere only with
    sequence parallelism, and not at all once they are gathered; those of experts as experts are.
    """
    if product.split is Split.EXPERT:
        return Split.EXPERT
    if product.split is (Split.ROW if what == "input" else Split.COLUMN):
        return Split.TENSOR
    return Split.NONE if rules.casting.late_passes else Split.SEQUENCE
