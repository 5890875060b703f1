"""Recomputation: what a layer keeps from its forward, and which of its kernels run again before which of its gradients.

*Full* keeps the input of a layer (or of several) and runs all of it again. *Selective* runs modules again: some whole, from their input,
some only to make an output anew that was thrown away. *Per-op* keeps what every second matrix product returns, and attention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from mpsim.parallel.shard import reshaped
from mpsim.workload import Expansion, Operator, Split

__all__ = ["MODULES", "NOTHING", "Again", "Recompute", "Rerun", "rerun", "subject"]

NONE, SELECTIVE, FULL, PER_OP = "none", "selective", "full", "per-op"
Bytes = tuple[float, float]  # kept until the input gradient, until the weight gradient


@dataclasses.dataclass(frozen=True, slots=True)
class Recompute:
    """What runs again in the backward pass instead of being kept.

    Parameters
    ----------
    granularity : str
        ``none``, ``selective``, ``full`` or ``per-op``.
    modules : tuple of str
        Of selective recomputation, some of `MODULES`.
    method : str
        Of full recomputation: ``uniform`` (chunks of `layers` layers, the last perhaps smaller) or ``block`` (the first `layers` of every
        stage, each on its own; the others keep everything).
    layers : int
        As `method` says.
    stops_early : bool
        Whether what a whole layer runs again ends with the last value that a gradient reads, not with the layer's output; of several
        layers that run again together all are run to their end.
    prunes : bool
        The same, and a product ends it also where its input is cast first.
    """

    granularity: str = NONE
    modules: tuple[str, ...] = ("core_attn",)
    method: str = "uniform"
    layers: int = 1
    stops_early: bool = False
    prunes: bool = False

    def chunks(self, layers: int) -> tuple[range, ...]:
        """Layers of a stage with so many that run again together from the input of the first; layers in none run again in part or not."""
        if self.granularity != FULL:
            return ()
        if self.method == "block":
            return tuple(range(one, one + 1) for one in range(min(self.layers, layers)))
        starts = range(0, layers, self.layers)
        return tuple(range(first, min(first + self.layers, layers)) for first in starts)

    def of_layer(self, layer: int, layers: int) -> Recompute:
        """What one layer of a stage runs again before its own gradients: itself, parts of it, or nothing.

        Where chunks have several layers they run again together, before the gradients of the last.
        """
        if self.granularity != FULL:
            return self
        whole = any(layer in one for one in self.chunks(layers))
        return self._with(FULL) if whole else NOTHING

    def at(self, granularity: str) -> Recompute:
        """The same, or another granularity with its defaults."""
        return self if granularity == self.granularity else self._with(granularity)

    def _with(self, granularity: str) -> Recompute:
        return Recompute(granularity, stops_early=self.stops_early, prunes=self.prunes)


NOTHING: Final = Recompute()


@dataclasses.dataclass(frozen=True, slots=True)
class Again:
    """Kernels that run again together.

    Parameters
    ----------
    operators : tuple of Operator
        Of the forward, in order.
    before : set of str
        Forward operators (`subject`): the first gradient of any of them waits for it.
    late : bool
        Whether they run when the gradient has arrived at the rank that computes it, not before it is sent there.
    """

    operators: tuple[Operator, ...]
    before: frozenset[str]
    late: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Rerun:
    """What recomputation does to one layer.

    Parameters
    ----------
    parts : tuple of Again
    kept : mapping of str to (float, float)
        Bytes of forward operators that keep others than they report: until the input gradient, until the weight gradient [B].
    together : bool
        Whether all that was not kept is alive at once while the layer is differentiated, not one half of the layer after the other.
    """

    parts: tuple[Again, ...] = ()
    kept: Mapping[str, Bytes] = dataclasses.field(default_factory=dict)
    together: bool = False

    def of(self, one: Operator) -> Bytes:
        """Bytes that a forward operator keeps, before any parallelism [B]."""
        return self.kept.get(one.name, (one.saved, one.saved_for_weight))


def rerun(expansion: Expansion, recompute: Recompute, *, divided: bool = False) -> Rerun:
    """Choose what one layer keeps and what it runs again.

    Parameters
    ----------
    expansion : Expansion
        Of a layer, with casts to a narrow format or without.
    recompute : Recompute
        Of that layer (`Recompute.of_layer`).
    divided : bool
        Whether tensor parallelism sums what row products return.

    Notes
    -----
    Modules are those of Megatron-Core's ``recompute_modules``. ``core_attn``, ``mlp``, ``moe`` and ``shared_experts`` are checkpoints: their
    input is kept, all inside runs again with its collectives. ``layernorm``, ``moe_act`` and ``mla_up_proj`` discard an output and make it
    anew. Norms that are one kernel with the projection behind them (all but those before experts and before latent attention) have none.

    Per-op is torchtitan's ``selective`` with ``op``: of the products query, key, value, output, gate, up, down every odd one is kept, with
    attention's output and what sums of tensor parallelism return; all else runs again, up to the last value that a gradient reads.
    """
    if recompute.granularity == FULL:
        again = expansion.forward
        if recompute.stops_early or recompute.prunes:
            again = _until_read(again, prunes=recompute.prunes)
        return Rerun((Again(again, _names(expansion.forward)),), together=True)
    if recompute.granularity == PER_OP:
        return _per_op(expansion, divided=divided)
    if recompute.granularity == NONE:
        return Rerun()
    parts: list[Again] = []
    kept: dict[str, Bytes] = {}
    for module in recompute.modules:
        for part, more in MODULES[module](expansion):
            parts.append(part)
            kept.update(_less(kept, more))
    return Rerun(tuple(_distinct(parts)), kept)


def _until_read(operators: tuple[Operator, ...], *, prunes: bool) -> tuple[Operator, ...]:
    """Without what follows the last value that a gradient reads: what keeps nothing, and a product, which keeps its input.

    A product whose input is cast first runs unless the pass `prunes`: its kernel and its casts are one function, which keeps them when it
    is done.
    """
    end = max(i for i, one in enumerate(operators) if one.saved + one.saved_for_weight)
    last = operators[end]
    plain = prunes or not any(one is not last and subject(one) == last.name for one in operators)
    return operators[: end if last.flops and plain and last.n else end + 1]


def subject(one: Operator) -> str:
    """Name of the forward operator that a gradient or a cast belongs to."""
    name = one.name.split()[1] if one.name.startswith("quantise ") else one.name
    for ending in ("_dq", "_dk", "_dp", "_dv"):
        name = name.removesuffix(ending)
    return name


def _less(known: Mapping[str, Bytes], more: Mapping[str, Bytes]) -> dict[str, Bytes]:
    """What is kept where two modules both drop something of an operator."""
    return {
        name: (min(now[0], known[name][0]), min(now[1], known[name][1])) if name in known else now
        for name, now in more.items()
    }


def _distinct(parts: list[Again]) -> Iterator[Again]:
    """Leave out what another part runs again anyway."""
    sets = [_names(one.operators) for one in parts]
    for place, one in enumerate(parts):
        inside = (
            sets[place] < other or (sets[place] == other and at < place)
            for at, other in enumerate(sets)
            if at != place
        )
        if not any(inside):
            yield one


# --- modules ---------------------------------------------------------------------------------------------------------------------

Module = Callable[[Expansion], Iterator[tuple[Again, dict[str, Bytes]]]]
_MLP: Final = frozenset({"fc1", "fc1_bias", "activation", "gate", "gate_times_up", "fc2"})
_ROUTING: Final = frozenset({"router", "topk", "permute", "unpermute", "shared_add"})
_UP: Final = frozenset({"q_norm", "q_up", "kv_norm", "kv_up", "rotary"})


def _core_attention(expansion: Expansion) -> Iterator[tuple[Again, dict[str, Bytes]]]:
    prefixes = ("cross_", "")
    for prefix in prefixes:
        core = [
            one
            for one in expansion.forward
            if one.recomputed_selectively and one.name.startswith("cross_") == bool(prefix)
        ]
        if core:
            yield _checkpoint(core)


def _plain_mlp(expansion: Expansion) -> Iterator[tuple[Again, dict[str, Bytes]]]:
    if not _routes(expansion) and (inside := _those(expansion, _MLP.__contains__)):
        yield _checkpoint(inside)


def _experts(expansion: Expansion) -> Iterator[tuple[Again, dict[str, Bytes]]]:
    if _routes(expansion):
        yield _checkpoint(_those(expansion, _is_of_mixture))


def _shared_experts(expansion: Expansion) -> Iterator[tuple[Again, dict[str, Bytes]]]:
    def shared(name: str) -> bool:
        return name.startswith("shared_") and name != "shared_add"

    if inside := _those(expansion, shared):
        yield _checkpoint(inside)


def _expert_activation(expansion: Expansion) -> Iterator[tuple[Again, dict[str, Bytes]]]:
    products = ("experts_fc1", "experts_fc2")
    inside = _those(expansion, lambda name: name.startswith("experts_") and name not in products)
    if not inside:
        return
    (down,) = (one for one in expansion.forward if one.name == products[1])
    again = (*inside, *_casts(expansion, products[1]))
    kept = {one.name: (0.0, 0.0) for one in inside} | {down.name: (down.saved, 0.0)}
    yield Again(again, frozenset({products[1]}), late=True), kept


def _layer_norms(expansion: Expansion) -> Iterator[tuple[Again, dict[str, Bytes]]]:
    names = [one.name for one in expansion.forward]
    latent, routes = "kv_down" in names, _routes(expansion)
    for name, stands_alone in (("norm1", latent), ("norm2", routes)):
        if not stands_alone:
            continue
        place = names.index(name)
        norm, behind = expansion.forward[place], expansion.forward[place + 1 :]
        half = _names(behind[: _end_of_half(behind)])
        yield Again((norm,), half), {name: (norm.saved, 0.0)}


def _latent_projections(expansion: Expansion) -> Iterator[tuple[Again, dict[str, Bytes]]]:
    inside = _those(expansion, _UP.__contains__)
    if not any(one.name == "kv_up" for one in inside):
        return
    core = frozenset(one.name for one in expansion.forward if one.recomputed_selectively)
    kept = {
        one.name: (one.saved if one.name.endswith("_norm") else 0.0, 0.0)
        for one in inside
        if not one.name.startswith("quantise ")
    }
    yield Again(tuple(inside), core), kept


MODULES: Final[Mapping[str, Module]] = {
    "core_attn": _core_attention,
    "layernorm": _layer_norms,
    "mlp": _plain_mlp,
    "moe_act": _expert_activation,
    "moe": _experts,
    "shared_experts": _shared_experts,
    "mla_up_proj": _latent_projections,
}
"""What each module of selective recomputation runs again in a layer; nothing where the layer has no such module."""


def _checkpoint(inside: Collection[Operator]) -> tuple[Again, dict[str, Bytes]]:
    return Again(tuple(inside), _names(inside)), {one.name: (0.0, 0.0) for one in inside}


def _those(expansion: Expansion, belongs: Callable[[str], bool]) -> list[Operator]:
    return [one for one in expansion.forward if belongs(subject(one))]


def _is_of_mixture(name: str) -> bool:
    return name in _ROUTING or name.startswith(("experts_", "shared_"))


def _routes(expansion: Expansion) -> bool:
    return any(one.split is Split.EXPERT for one in expansion.forward)


def _casts(expansion: Expansion, name: str) -> tuple[Operator, ...]:
    """Casts of what a product reads."""
    return tuple(one for one in expansion.forward if one.name != name and subject(one) == name)


def _names(operators: Iterable[Operator]) -> frozenset[str]:
    return frozenset(subject(one) for one in operators)


def _end_of_half(operators: Collection[Operator]) -> int:
    """Where the residual addition of a half layer begins."""
    sums = ("bias_dropout_add", "residual_add", "post_norm")
    places = [i for i, one in enumerate(operators) if one.name.startswith(sums)]
    return places[0] if places else len(operators)


# --- per-op ----------------------------------------------------------------------------------------------------------------------


def _per_op(expansion: Expansion, *, divided: bool) -> Rerun:
    by_name = {one.name: one for one in expansion.forward}
    again: list[Operator] = []
    features = _kept_features(by_name)
    output = by_name["proj"]
    for one in expansion.forward[: _last_needed(expansion.forward)]:
        left = _left(one, by_name, features)
        if one is output:  # its sum was kept
            again.append(dataclasses.replace(one, split=Split.TENSOR))
        elif left:
            again.append(left)
    feature = output.saved_for_weight / output.k  # a tensor of one feature
    kept = {one.name: (0.0, 0.0) for one in again}
    kept |= {name: (count * feature, 0.0) for name, count in features.items()}
    compiled = (
        "gate_times_up" not in by_name
    )  # else nobody drops the last product, which is odd but never read
    last = 0.0 if compiled else by_name["fc2"].n * feature
    kept |= {"proj": (0.0, output.saved_for_weight), "fc2": (last, 0.0)}
    first = expansion.forward[0]
    kept[first.name] = (first.saved, 0.0)  # the input of the layer
    if divided:  # what the sum behind the attention returned stands in for its residual
        kept["norm2"] = (by_name["norm2"].saved, 0.0)
    part = Again(tuple(again), _names(expansion.forward))
    return Rerun((part,), kept, together=True)


def _left(
    one: Operator, by_name: Mapping[str, Operator], features: Mapping[str, int]
) -> Operator | None:
    """The part of an operator that runs again: not attention, and of a projection the features that were not kept."""
    if one.recomputed_selectively:
        return None
    whole = by_name.get(subject(one), one)
    if whole.name not in features:
        return one
    left = whole.n - features[whole.name]
    if not left or left == whole.n or one is not whole:
        return one if left else None
    part = reshaped(one, {"n": left})
    return dataclasses.replace(part, flops=one.flops * left / one.n, weights=1)


def _kept_features(by_name: Mapping[str, Operator]) -> dict[str, int]:
    """Output features that stay of every projection: those of odd products; products are numbered from 1 as torchtitan's are."""
    core = next(one for one in by_name.values() if one.recomputed_selectively)
    assert core.heads, "per-op recomputation without fused attention"
    up, down = by_name["fc1"], by_name["fc2"]
    widths = {
        "qkv": (
            core.heads * core.head_dim,
            core.kv_heads * core.head_dim,
            core.kv_heads * core.head_dim_v,
        ),
        "proj": (by_name["proj"].n,),
        "fc1": (down.k,) * (up.n // down.k),
    }
    kept, number = dict.fromkeys(widths, 0), 0
    for name, parts in widths.items():
        for width in parts:
            number += 1
            kept[name] += width if number % 2 else 0
    return kept


def _last_needed(operators: Collection[Operator]) -> int:
    """Where what no gradient of the layer reads begins: the second product of the MLP."""
    return next(i for i, one in enumerate(operators) if subject(one) == "fc2")
