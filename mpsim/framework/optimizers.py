"""Optimizers: rows of a catalog that stand in for the AdamW of a stack's preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpsim import structs
from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.framework.behaviour import OptimizerBehaviour
from mpsim.nouns import Description, describe_fields
from mpsim.shipped import read_shipped

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
    data = _catalog()
    return tuple(sorted({*data["optimizers"], *data["spellings"]}))


def optimizer(name: str) -> Optimizer:
    """An optimizer of the catalog; ScenarioError if it has none of the name."""
    data = _catalog()
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


def _catalog() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_shipped("mpsim.framework.catalog", "optimizers.yaml")
    return data
