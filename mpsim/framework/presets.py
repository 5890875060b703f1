"""The catalogs of framework presets, and of optimizers that stand in for the AdamW of a preset."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

from mpsim import structs
from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.framework.behaviour import OptimizerBehaviour, SelectiveRecompute
from mpsim.framework.framework import Framework, read_framework
from mpsim.inputs import shown
from mpsim.memo import remembered
from mpsim.nouns import Description, describe_fields
from mpsim.shipped import load_catalog, read_shipped

_PERSONAL = ("suits", "notes")  # what a preset says of itself alone
_Preset: TypeAlias = dict[str, Any]  # fields of a framework, and what a preset says beside them
_SETTLES = "settles"  # of a preset, not of a framework: keys of the scenario
_SHARDING = "parallelism.zero"  # settled too by a stack that is written for the most it has
_COMPILE = "compile"  # beside a preset
_UNCOMPILED = "uncompiled"  # too: fields that `compile: false` replaces
_LOSS = "loss"  # beside a preset: a word for fields of the loss
_COMPILED = "compiled"  # and those that `compile: true` replaces, of a preset that is not


@remembered(1)
def _catalog() -> tuple[dict[str, _Preset], dict[str, str]]:
    """Return presets by name and aliases to names."""
    presets: dict[str, _Preset] = {}
    aliases: dict[str, str] = {}
    for _, data in load_catalog("mpsim.framework.catalog"):
        presets.update(data.get("presets", {}))
        aliases.update(data.get("aliases", {}))
    return presets, aliases


@remembered(1)
def _lines() -> dict[str, str]:
    """The file of the catalog that each preset is in."""
    catalog = load_catalog("mpsim.framework.catalog")
    return {name: line for line, data in catalog for name in data.get("presets", {})}


def framework_line(name: str) -> tuple[str, str]:
    """A preset and the line of software that it belongs to, such as ``nvidia`` or ``pytorch``; both
    empty where the catalog has none of the name.

    Examples
    --------
    >>> framework_line("megatron-lm")
    ('megatron-core', 'nvidia')
    """
    preset = _catalog()[1].get(name, name)
    line = _lines().get(preset)
    return ("", "") if line is None else (preset, line)


@remembered(64)
def settled_keys(preset: str) -> tuple[Mapping[str, object], ...]:
    """Groups of values by dotted key of a scenario that a preset settles where none of the group is
    written; none of a name that is no preset.

    Examples
    --------
    >>> settled_keys("deepseek-2024")[0], settled_keys("megatron-lm"), settled_keys("torchtitan")
    ({'schedule': 'dualpipe'}, (), ({'parallelism.zero': 3},))
    """
    presets, aliases = _catalog()
    name = aliases.get(preset, preset)
    if name not in presets:
        return ()
    fields = _inherited(presets, name)
    zero = fields.get("suits", {}).get(_SHARDING)
    sharding = ({_SHARDING: zero},) if zero and zero == fields.get("zero_limit") else ()
    return (*presets[name].get(_SETTLES, ()), *sharding)


def selective_of(preset: str) -> str:
    """Meaning of selective recomputation in a preset; the usual one for a name that is no preset.

    Examples
    --------
    >>> selective_of("torchtitan-2025"), selective_of("megatron-core")
    ('per-op', 'core-attention')
    """
    presets, aliases = _catalog()
    name = aliases.get(preset, preset)
    fields = _inherited(presets, name) if name in presets else {}
    return str(fields.get("recompute_selective", SelectiveRecompute.CORE_ATTENTION))


def framework_names() -> tuple[str, ...]:
    """Every preset and alias, sorted."""
    return tuple(sorted(itertools.chain(*_catalog())))


def framework_aliases() -> Mapping[str, str]:
    """The preset that each alias stands for."""
    return dict(sorted(_catalog()[1].items()))


def framework(
    preset: str, overrides: Mapping[str, object] | None = None, *, key: str = "framework"
) -> Framework:
    """Look up a preset and replace some of its fields.

    `preset`: a name or alias of the catalog. `overrides`: fields of `Framework` and `Lowering` to
    replace. `key`: dotted key that problems are reported under. ScenarioError if the preset is
    unknown or an override is wrong; it names every mistake.

    Examples
    --------
    >>> framework("megatron-2021").pipeline.scatter_gather
    True
    """
    presets, aliases = _catalog()
    name = aliases.get(preset, preset)
    if name not in presets:
        where = f"{key}.preset" if overrides else key
        message = f"unknown framework {preset!r}; {nearest(preset, framework_names())}"
        raise ScenarioError([Problem(message, key=where)])
    fields, wanted = _inherited(presets, name), dict(overrides or {})
    switched = {False: fields.pop(_UNCOMPILED, None), True: fields.pop(_COMPILED, None)}
    if _COMPILE in wanted:
        compiles, switches = wanted.pop(_COMPILE), any(map(bool, switched.values()))
        # a stack of other kernels is not compiled; one that is nothing else has an empty entry
        eager = compiles is False and switched[True] is None
        if not isinstance(compiles, bool) or not (switches or eager):
            needed = "true or false" if switches else f"a stack of torch, which {preset} is not"
            problem = Problem(f"got {shown(compiles)}; needed {needed}", f"{key}.compile")
            raise ScenarioError([problem])
        fields |= switched[compiles] or {}
    if _LOSS in wanted:
        fields |= _loss(wanted.pop(_LOSS), key)
    return read_framework({**fields, **wanted, "name": preset}, key=key)


def _loss(word: object, key: str) -> Mapping[str, object]:
    """Fields that a word for the loss stands for."""
    known: Mapping[str, Any] = read_shipped("mpsim.framework.catalog", "losses.yaml")["losses"]
    if word not in known:
        needed = f"got {shown(word)}; needed one of {', '.join(known)}"
        raise ScenarioError([Problem(needed, f"{key}.{_LOSS}")])
    fields: Mapping[str, object] = known[str(word)]["fields"]
    return fields


def uncompiled(preset: str) -> Mapping[str, object]:
    """Fields that `compile: false` beside a preset replaces; none if nothing is compiled."""
    fields: Mapping[str, object] = _inherited(_catalog()[0], preset).get(_UNCOMPILED, {})
    return fields


def _inherited(presets: Mapping[str, _Preset], name: str) -> _Preset:
    """Fields of a preset on top of those of the preset it is `like`."""
    own = {key: value for key, value in presets[name].items() if key != _SETTLES}
    parent = own.pop("like", None)
    if not parent:
        return own
    inherited = _inherited(presets, parent)
    return {**{key: inherited[key] for key in inherited if key not in _PERSONAL}, **own}


_MOMENTS = 8.0  # B of Adam's two in float32; a preset with fewer has both in what it states


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """A row of the catalog, whose file says what fields mean; None is the preset's."""

    name: str
    title: str
    moments: float
    moment_bytes: float | None = None
    master: float | None = None
    passes: float | None = None
    scratch: float = 0.0
    tensor_bytes: float = 0.0
    iterations: int = 0
    others: float | None = None
    exchanged: int = 0
    repeats: float = 0.0
    outside: bool = False
    source: str
    as_of: str

    def describe(self) -> Description:
        """Every figure with its source."""
        return describe_fields(self)


def optimizer_names() -> tuple[str, ...]:
    """Every optimizer and alias, sorted."""
    data = _optimizers()
    return tuple(sorted({*data["optimizers"], *data["spellings"]}))


def optimizer(name: str) -> Optimizer:
    """An optimizer of the catalog; ScenarioError if it has none of the name."""
    data = _optimizers()
    known = data["spellings"].get(name, name)
    if known not in data["optimizers"]:
        message = f"unknown optimizer {name!r}; {nearest(name, optimizer_names())}"
        raise ScenarioError([Problem(message, "training.optimizer")])
    return Optimizer(name=known, **data["optimizers"][known])


def stepped_by(name: str, preset: OptimizerBehaviour) -> OptimizerBehaviour:
    """Model states and optimizer step of a stack with another optimizer than its preset's.

    `name`: of the catalog. `preset`: with AdamW, from which the width of moments and the master
    copy are taken where the row does not say. ScenarioError if the catalog has no optimizer of the
    name.

    Notes
    -----
    A fused step of gradient g, state s and kept weight w moves ``g + 2 w + 2 s`` bytes a parameter,
    and writes the parameter p where w is a master copy.
    """
    row = optimizer(name)
    if row.passes is None:
        return preset
    adam = min(preset.optimizer_bytes, _MOMENTS)
    master = preset.optimizer_bytes - adam if row.master is None else row.master
    width = adam / 2 if row.moment_bytes is None else row.moment_bytes
    state = row.moments * width
    fused = preset.gradient_bytes + 2 * (master or preset.parameter_bytes) + 2 * state
    fused += preset.parameter_bytes if master else 0
    others = row.moments if row.others is None else row.others
    # what steps a master copy gets its 16-bit gradients in fp32, whichever it is (Megatron-LM
    # optimizer.py MixedPrecisionOptimizer, DeepSpeed stage_1_and_2.py step); lists are AdamW's own
    casts = row.master is None and master > 0 and preset.gradient_bytes < master
    return structs.replace(
        preset,
        optimizer_bytes=0.0 if row.outside else master + state,
        paged_bytes=master + state if row.outside else 0.0,
        optimizer_traffic=row.passes * fused,
        step_scratch=row.scratch * width + casts * preset.step_scratch,
        tensor_scratch=float(row.tensor_bytes),
        orthogonal_iterations=row.iterations,
        orthogonal_gather=row.exchanged,
        other_states=(others - row.moments) * width,
        repeated_share=row.repeats,
    )


def _optimizers() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_shipped("mpsim.framework.catalog", "optimizers.yaml")
    return data
