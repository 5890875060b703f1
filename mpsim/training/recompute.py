"""Recomputation: what a layer keeps from its forward, and which of its kernels run again before
which of its gradients.

*Full* keeps the input of a layer (or of several) and runs all of it again. *Selective* runs modules
again: some whole, from their input, some only to make an output anew that was thrown away. *Per-op*
keeps what some matrix products return, or attention. What is kept may wait in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from mpsim import structs
from mpsim.memo import remembered
from mpsim.parallel import Repeat, Sharding, reshaped
from mpsim.workload import Expansion, Module, Operator, OperatorKind, Role, Split

NONE, SELECTIVE, FULL, PER_OP = "none", "selective", "full", "per-op"
EVERY_SECOND: Final = ("query", "value", "gate", "context", "sums")
"""What torchtitan's list keeps: of the products query, key, value, output, gate, up, down every odd
one, attention's output, and sums of tensor parallelism."""
_LAYERS = 4096  # whose recomputation stays ready
Bytes = tuple[float, float]  # kept until the input gradient, until the weight gradient
Place = tuple[Module, Role]


@structs.dataclass(frozen=True, slots=True)
class Recompute:
    """Recomputation of activations: which kernels run again in backward, so that less is kept."""

    granularity: str = NONE  # ``none``, ``selective``, ``full`` or ``per-op``
    modules: tuple[str, ...] = ("core_attn",)  # of selective recomputation, some of `MODULES`
    # of full recomputation: ``uniform`` (chunks of `layers` layers, the last perhaps smaller) or
    # ``block`` (the first `layers` of every stage, each on its own; the others keep everything)
    method: str = "uniform"
    layers: int = 1  # as `method` says
    # whether what a whole layer runs again ends with the last value that a gradient reads, not with
    # the layer's output; of several layers that run again together all are run to their end
    stops_early: bool = False
    prunes: bool = False  # the same, and a product ends it also where its input is cast first
    # what *per-op* keeps beside the layer's input: what products return (query, key, value, output,
    # gate, up), attention (context), and what tensor parallelism has summed (sums)
    keeps: tuple[str, ...] = EVERY_SECOND
    # what of the kept waits on the host: ``none``, ``inputs`` of layers, ``products``, ``all``
    offload: str = "none"
    # first layers of every stage that offload; all of them by default
    offload_layers: int | None = None

    def chunks(self, layers: int) -> tuple[range, ...]:
        """Layers of a stage, with how many run again together from the input of the first."""
        if self.granularity != FULL:
            return ()
        if self.method == "block":
            return tuple(range(layer, layer + 1) for layer in range(min(self.layers, layers)))
        starts = range(0, layers, self.layers)
        return tuple(range(first, min(first + self.layers, layers)) for first in starts)

    @remembered(_LAYERS)
    def of_layer(self, layer: int, layers: int) -> Recompute:
        """Recomputation of one layer of a stage before its own gradients: of all of it, of parts,
        or of nothing.

        Where chunks have several layers they run again together, before the gradients of the last.
        """
        whole = self
        if self.granularity == FULL:
            runs_again = self.method != "block" or layer < self.layers
            whole = self._with(FULL if runs_again else NONE)
        if self.offload_layers is None or layer < self.offload_layers:
            return whole
        return structs.replace(whole, offload="none")

    @remembered(_LAYERS)
    def alone(self, layers: int) -> tuple[Recompute, ...]:
        """Recomputation of every layer of a stage by itself: of nothing in chunks of several."""
        each = [self.of_layer(layer, layers) for layer in range(layers)]
        for chunk in self.chunks(layers):
            if len(chunk) > 1:
                each[chunk.start : chunk.stop] = [NOTHING] * len(chunk)
        return tuple(each)

    def at(self, granularity: str) -> Recompute:
        """The same, or another granularity with its defaults."""
        if granularity == self.granularity:
            return self
        return structs.replace(
            self._with(granularity), keeps=NOTHING.keeps, offload="none", offload_layers=None
        )

    def _with(self, granularity: str) -> Recompute:
        usual = granularity, NOTHING.modules, "uniform", 1
        if usual == (self.granularity, self.modules, self.method, self.layers):
            return self  # every layer of every layout of a search asks
        return structs.replace(
            self, granularity=granularity, modules=NOTHING.modules, method="uniform", layers=1
        )


NOTHING: Final = Recompute()


@structs.dataclass(frozen=True, slots=True)
class Rerun:
    """Effect of recomputation on one layer: kernels that run again, and bytes that are kept."""

    parts: tuple[Repeat, ...] = ()
    # bytes of forward operators that keep others than they report, by their place: until the input
    # gradient, until the weight gradient [B]
    kept: Mapping[Place, Bytes] = structs.field(default_factory=dict)
    # whether all not kept is alive at once in a layer's backward, not half after half
    together: bool = False

    def of(self, operator: Operator) -> Bytes:
        """Bytes that a forward operator keeps, before any parallelism [B]."""
        reported = operator.saved, operator.saved_for_weight
        return reported if operator.is_cast else self.kept.get(operator.place, reported)


def rerun(expansion: Expansion, recompute: Recompute, *, tp: int = 1) -> Rerun:
    """Choose what one layer keeps and what it runs again.

    `expansion`: of a layer, with casts to a narrow format or without. `recompute`: of that layer
    (`Recompute.of_layer`). `tp`: ranks over which tensor parallelism sums what row products return.

    Notes
    -----
    Modules are those of Megatron-Core's ``recompute_modules``. ``core_attn``, ``mlp``, ``moe`` and
    ``shared_experts`` are checkpoints: their input is kept, all inside runs again with its
    collectives. ``layernorm``, ``moe_act`` and ``mla_up_proj`` discard an output and make it anew.
    Norms that are one kernel with the projection behind them (all but those before experts and
    before latent attention) have none.

    Per-op is torchtitan's ``selective`` with ``op``, or a policy of XLA that saves values by name:
    what ``keeps`` names stays, all else runs again, up to the last value that a gradient reads.
    """
    if recompute.granularity == FULL:
        again = expansion.forward
        if recompute.stops_early or recompute.prunes:
            again = _until_read(again, prunes=recompute.prunes)
        return Rerun((Repeat(again, _places(expansion.forward)),), together=True)
    if recompute.granularity == PER_OP:
        return _per_op(expansion, tp=tp, keeps=recompute.keeps)
    if recompute.granularity == NONE:
        return Rerun()
    parts: list[Repeat] = []
    kept: dict[Place, Bytes] = {}
    for module in recompute.modules:
        for part, drops in MODULES[module](expansion):
            parts.append(part)
            kept.update(_less(kept, drops))
    return Rerun(tuple(_distinct(parts)), kept)


def repeats(expansion: Expansion, sharding: Sharding, recompute: Recompute) -> tuple[Repeat, ...]:
    """Kernels that a layer on one rank runs again in its backward."""
    return rerun(expansion, recompute, tp=sharding.tp).parts


def _until_read(operators: tuple[Operator, ...], *, prunes: bool) -> tuple[Operator, ...]:
    """Without what follows the last value that a gradient reads: what keeps nothing, and a product,
    which keeps its input.

    A product whose input is cast first runs unless the pass `prunes`: its kernel and its casts are
    one function, which keeps them when it is done.
    """
    end = max(i for i, each in enumerate(operators) if each.saved + each.saved_for_weight)
    last = operators[end]
    plain = prunes or not any(
        operator.is_cast and operator.place == last.place for operator in operators
    )
    return operators[: end if last.flops and plain and last.n else end + 1]


def _less(known: Mapping[Place, Bytes], more: Mapping[Place, Bytes]) -> dict[Place, Bytes]:
    """Bytes kept where two modules both drop something of an operator: the fewer of each."""
    return {
        place: (min(now[0], known[place][0]), min(now[1], known[place][1]))
        if place in known
        else now
        for place, now in more.items()
    }


def _distinct(parts: list[Repeat]) -> Iterator[Repeat]:
    """Leave out what another part runs again anyway."""
    sets = [_places(part.operators) for part in parts]
    for place, part in enumerate(parts):
        inside = (
            sets[place] < other or (sets[place] == other and at < place)
            for at, other in enumerate(sets)
            if at != place
        )
        if not any(inside):
            yield part


# --- modules --------------------------------------------------------------------------------------

Rule = Callable[[Expansion], Iterator[tuple[Repeat, dict[Place, Bytes]]]]
_MLP: Final = frozenset(
    {Role.UP, Role.BIAS, Role.ACTIVATION, Role.GATE, Role.GATE_TIMES_UP, Role.DOWN}
)
_LATENT: Final = frozenset(
    {Role.QUERY_NORM, Role.QUERY_UP, Role.KEY_VALUE_NORM, Role.KEY_VALUE_UP, Role.ROTARY}
)
_RESIDUAL: Final = frozenset({Role.BIAS_DROPOUT_ADD, Role.RESIDUAL_ADD, Role.POST_NORM})


def _core_attention(expansion: Expansion) -> Iterator[tuple[Repeat, dict[Place, Bytes]]]:
    for module in (Module.CROSS_ATTENTION, Module.ATTENTION):
        core = [operator for operator in _inside(expansion, module) if operator.in_attention_core]
        if core:
            yield _checkpoint(core)


def _plain_mlp(expansion: Expansion) -> Iterator[tuple[Repeat, dict[Place, Bytes]]]:
    inside = [operator for operator in _inside(expansion, Module.MLP) if operator.role in _MLP]
    if inside and not _routes(expansion):
        yield _checkpoint(inside)


def _experts(expansion: Expansion) -> Iterator[tuple[Repeat, dict[Place, Bytes]]]:
    if _routes(expansion):
        yield _checkpoint(_inside(expansion, Module.EXPERTS, Module.SHARED_EXPERTS))


def _shared_experts(expansion: Expansion) -> Iterator[tuple[Repeat, dict[Place, Bytes]]]:
    shared = _inside(expansion, Module.SHARED_EXPERTS)
    if inside := [operator for operator in shared if operator.role is not Role.EXPERT_SUM]:
        yield _checkpoint(inside)


def _expert_activation(expansion: Expansion) -> Iterator[tuple[Repeat, dict[Place, Bytes]]]:
    experts = _inside(expansion, Module.EXPERTS)
    inside = [operator for operator in experts if operator.role in _MLP - {Role.UP, Role.DOWN}]
    if not inside:
        return
    (down,) = (
        operator for operator in experts if operator.role is Role.DOWN and not operator.is_cast
    )
    casts = (operator for operator in experts if operator.role is Role.DOWN and operator.is_cast)
    kept = {operator.place: (0.0, 0.0) for operator in inside} | {down.place: (down.saved, 0.0)}
    yield Repeat((*inside, *casts), frozenset({down.place}), late=True), kept


def _layer_norms(expansion: Expansion) -> Iterator[tuple[Repeat, dict[Place, Bytes]]]:
    latent = any(operator.role is Role.KEY_VALUE_DOWN for operator in expansion.forward)
    routes = _routes(expansion)
    for module, stands_alone in ((Module.ATTENTION, latent), (Module.MLP, routes)):
        if not stands_alone:
            continue
        places = [operator.place for operator in expansion.forward]
        at = places.index((module, Role.NORM))
        norm, behind = expansion.forward[at], expansion.forward[at + 1 :]
        half = _places(behind[: _end_of_half(behind)])
        yield Repeat((norm,), half), {norm.place: (norm.saved, 0.0)}


def _latent_projections(expansion: Expansion) -> Iterator[tuple[Repeat, dict[Place, Bytes]]]:
    inside = [operator for operator in expansion.forward if operator.role in _LATENT]
    if not any(operator.role is Role.KEY_VALUE_UP for operator in inside):
        return
    core = _places(operator for operator in expansion.forward if operator.in_attention_core)
    kept = {
        operator.place: (operator.saved if operator.kind is OperatorKind.NORM else 0.0, 0.0)
        for operator in inside
        if not operator.is_cast
    }
    yield Repeat(tuple(inside), core), kept


MODULES: Final[Mapping[str, Rule]] = {
    "core_attn": _core_attention,
    "layernorm": _layer_norms,
    "mlp": _plain_mlp,
    "moe_act": _expert_activation,
    "moe": _experts,
    "shared_experts": _shared_experts,
    "mla_up_proj": _latent_projections,
}
"""Rules of selective recomputation: what each module runs again in a layer, nothing where the layer
has no such module."""


def _checkpoint(inside: Collection[Operator]) -> tuple[Repeat, dict[Place, Bytes]]:
    return Repeat(tuple(inside), _places(inside)), {each.place: (0.0, 0.0) for each in inside}


def _inside(expansion: Expansion, *modules: Module) -> list[Operator]:
    return [operator for operator in expansion.forward if operator.module in modules]


def _routes(expansion: Expansion) -> bool:
    return any(operator.split is Split.EXPERT for operator in expansion.forward)


def _places(operators: Iterable[Operator]) -> frozenset[Place]:
    return frozenset(operator.place for operator in operators)


def _end_of_half(operators: Collection[Operator]) -> int:
    """Where the residual addition of a half layer begins."""
    places = [i for i, operator in enumerate(operators) if operator.role in _RESIDUAL]
    return places[0] if places else len(operators)


# --- per-op ---------------------------------------------------------------------------------------


_QKV: Final = (Module.ATTENTION, Role.QKV)
_OUTPUT: Final = (Module.ATTENTION, Role.PROJECTION)
_UP: Final = (Module.MLP, Role.UP)
_DOWN: Final = (Module.MLP, Role.DOWN)
_SECOND_NORM: Final = (Module.MLP, Role.NORM)


def _per_op(expansion: Expansion, *, tp: int, keeps: Collection[str]) -> Rerun:
    by_place = {operator.place: operator for operator in expansion.forward if not operator.is_cast}
    again: list[Operator] = []
    features = _kept_features(by_place, keeps)
    output = by_place[_OUTPUT]
    for operator in expansion.forward[: _last_needed(expansion.forward)]:
        if operator.in_attention_core and "context" in keeps:
            continue
        left = _left(operator, by_place, features)
        if operator is output and left and "sums" in keeps:
            again.append(structs.replace(operator, split=Split.TENSOR))
        elif left:
            again.append(left)
    feature = output.saved_for_weight / output.k  # a tensor of one feature
    kept = {operator.place: (0.0, 0.0) for operator in again if not operator.is_cast}
    kept |= {place: (count * feature, 0.0) for place, count in features.items()}
    # in eager mode nobody drops the last product, which is odd but never read: every rank has all
    # of it, and its share of the sum
    eager = any(role is Role.GATE_TIMES_UP for _, role in by_place) and keeps == EVERY_SECOND
    last = (tp + (tp > 1)) * by_place[_DOWN].n * feature if eager else 0.0
    context = output.saved_for_weight if "context" in keeps else 0.0
    kept |= {_OUTPUT: (kept[_OUTPUT][0], context), _DOWN: (last, 0.0)}
    first = expansion.forward[0]
    kept[first.place] = (expansion.input_bytes, 0.0)  # not what a chain of norm kernels keeps
    # what the sum behind the attention returned stands in for its residual
    if tp > 1 and "sums" in keeps and "output" not in keeps:
        kept[_SECOND_NORM] = (expansion.input_bytes, 0.0)
    part = Repeat(tuple(again), _places(expansion.forward))
    return Rerun((part,), kept, together=True)


def _left(
    operator: Operator, by_place: Mapping[Place, Operator], features: Mapping[Place, int]
) -> Operator | None:
    """The part of an operator that runs again: of a projection the features that were not kept."""
    if operator.place not in features:
        return operator
    whole = by_place[operator.place]
    left = whole.n - features[whole.place]
    if not left or left == whole.n or operator is not whole:
        return operator if left else None
    part = reshaped(operator, {"n": left})
    return structs.replace(part, flops=operator.flops * left / operator.n, weights=1)


def _kept_features(by_place: Mapping[Place, Operator], keeps: Collection[str]) -> dict[Place, int]:
    """Output features that stay of every projection."""
    core = by_place[Module.ATTENTION, Role.ATTENTION]
    up, down = by_place[_UP], by_place[_DOWN]
    queries = core.heads * core.head_dim
    keys = (by_place[_QKV].n - queries) // 2  # as projected: the core may see them repeated
    # the first product of an MLP without gate has the place of a gate
    widths = {
        _QKV: {"query": queries, "key": keys, "value": keys},
        _OUTPUT: {"output": by_place[_OUTPUT].n},
        _UP: dict.fromkeys(("gate", "up")[: up.n // down.k], down.k),
    }
    return {
        place: sum(width for name, width in parts.items() if name in keeps)
        for place, parts in widths.items()
    }


def _last_needed(operators: Collection[Operator]) -> int:
    """Where begins what no gradient of the layer reads: the MLP's second product, or its cast."""
    return next(i for i, operator in enumerate(operators) if operator.place == _DOWN)
