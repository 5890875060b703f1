"""Sections of a scenario that stand for themselves: parallelism, schedule, training, framework, simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

import pydantic
from pydantic import Field

from mpsim.scenario.fields import Name, OneOf, Section, gather_overrides
from mpsim.schedule import schedule, schedule_names

__all__ = [
    "AXES",
    "DIVIDING",
    "OF_STAGE",
    "PRECISIONS",
    "REPLICATING",
    "FrameworkChoice",
    "Parallelism",
    "ScheduleChoice",
    "Simulation",
    "Training",
    "factors",
]

Precision = Literal[
    "bf16", "fp16", "fp32", "tf32", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4"
]
RecomputeModule = Literal[
    "core_attn", "layernorm", "mlp", "moe_act", "moe", "shared_experts", "mla_up_proj"
]

PRECISIONS: Final[tuple[str, ...]] = get_args(Precision)
AXES: Final = ("tp", "cp", "ep", "dp", "pp")
"""Fields of `Parallelism` that are degrees of axes, as `mpsim.parallel.axes.AXES` has them."""
DIVIDING: Final = ("tp", "pp", "cp")
"""Axes among whose ranks one replica of the model is divided."""
REPLICATING: Final = ("dp", "cp")
"""Axes whose ranks hold the same parameters."""
OF_STAGE: Final = tuple(axis for axis in AXES if axis != "pp" and axis in DIVIDING + REPLICATING)
"""Axes whose degrees multiply to the ranks of one pipeline stage."""


def factors(degrees: Mapping[str, int]) -> str:
    """Write ``tp 8 x pp 2``."""
    return " x ".join(f"{axis} {degree}" for axis, degree in degrees.items())


Degree = Annotated[int, Field(ge=1, le=1_000_000)]


class Parallelism(Section):
    """How the work is divided among accelerators."""

    tp: Annotated[int, Field(ge=1, le=4096)] = 1
    """Tensor-parallel ranks that share each layer."""
    pp: Annotated[int, Field(ge=1, le=4096)] = 1
    """Pipeline ranks the layers are spread over."""
    dp: Degree | None = None
    """Data-parallel replicas; left out, what the cluster has room for."""
    cp: Annotated[int, Field(ge=1, le=4096)] = 1
    """Context-parallel ranks that share each sequence."""
    ep: Annotated[int, Field(ge=1, le=4096)] = 1
    """Expert-parallel ranks; above 1 only for a mixture of experts."""
    etp: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Tensor-parallel ranks that share each expert; left out, tp."""
    sequence_parallel: bool = False
    """Whether norms and dropouts are divided along the sequence among tensor-parallel ranks."""
    zero: Literal[0, 1, 2, 3] = 0
    """What data-parallel ranks share: nothing, optimizer state, gradients too, parameters too."""
    shard: Degree | None = None
    """Ranks of data x context parallelism that share one copy of what zero divides (HSDP); left out, all."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """What the host keeps: nothing, the optimizer's state, the parameters too."""
    offload_to: Literal["host", "nvme"] = "host"
    """Where it keeps them."""
    order: Name = "-".join(AXES)
    """Axes in the order they are laid on accelerators, fastest first."""
    layers_per_stage: (
        Annotated[tuple[Annotated[int, Field(ge=0, le=10_000)], ...], Field(strict=False)]
        | Literal["auto"]
        | None
    ) = None
    """Layers of each (virtual) stage in model order, or auto: balanced by work, as far as the framework can split; left out, divided evenly."""
    embedding_counts_as_layer: bool = False
    """Whether the embedding takes the place of one layer in an even division."""
    loss_counts_as_layer: bool = False
    """Whether the output head takes the place of one layer in an even division."""

    @pydantic.field_validator("order")
    @classmethod
    def _check_order(cls, order: str) -> str:
        if sorted(order.split("-")) != sorted(AXES):
            raise ValueError(
                f"got {order!r}; needed each of {', '.join(AXES)} once, joined by '-', "
                f"such as '{'-'.join(AXES)}'"
            )
        return order

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of `order`, fastest first."""
        return tuple(self.order.split("-"))

    @property
    def dividing(self) -> Mapping[str, int]:
        """Degrees of the axes that divide one replica."""
        return {axis: getattr(self, axis) for axis in DIVIDING}

    @property
    def replica_ranks(self) -> int:
        """Ranks that compute for one replica."""
        return math.prod(self.dividing.values())


class ScheduleChoice(Section):
    """The order of forwards and backwards on each pipeline rank."""

    name: Annotated[str, OneOf(schedule_names)] | None = None
    """A schedule by name; left out only when a file is given."""
    virtual_stages: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Chunks of layers a pipeline rank holds; left out, what the schedule needs."""
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """A CSV file with the order of every rank, instead of a name."""

    @pydantic.model_validator(mode="after")
    def _check_choice(self) -> ScheduleChoice:
        if (self.name is None) == (self.file is None):
            got = "neither" if self.name is None else "both"
            raise ValueError(f"got {got} of name and file; needed one, such as 'schedule: 1f1b'")
        return self

    @property
    def chunks(self) -> int:
        """Virtual stages of each rank, as given or as the schedule has them."""
        if self.virtual_stages is not None or self.name is None:
            return self.virtual_stages or 1
        return schedule(self.name).chunks or 1


class Training(Section):
    """Batches, number format and recomputation of one training step; batches count sequences."""

    global_batch: Annotated[int, Field(ge=1, le=10_000_000)]
    """Sequences of one optimizer step, over all replicas."""
    micro_batch: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Sequences that go through the pipeline together."""
    batch_per_replica: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=10_000_000)], ...],
            Field(strict=False, min_length=1, max_length=100_000),
        ]
        | None
    ) = None
    """Sequences of each data-parallel replica, which sum to global_batch; left out, divided evenly."""
    sequence_length: Annotated[int, Field(ge=1, le=100_000_000)]
    """Tokens of a sequence."""
    precision: Precision = "bf16"
    """Number format of matrix products."""
    recompute: Literal["none", "selective", "full", "per-op"] = "none"
    """What is run again in the backward pass instead of kept: nothing, some modules, all, or all but every second matrix product; selective
    without modules is what the framework calls so (`recompute_selective`)."""
    recompute_method: Literal["uniform", "block"] | None = None
    """Of full recomputation: chunks of recompute_layers layers, or the first recompute_layers of every stage; left out, uniform."""
    recompute_layers: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Layers of a chunk (1 when left out), or of every (virtual) stage for block."""
    recompute_modules: (
        Annotated[tuple[RecomputeModule, ...], Field(strict=False, min_length=1)] | None
    ) = None
    """Modules that selective recomputation runs again; left out, core_attn, or per-op where the framework's selective is that."""


class FrameworkChoice(Section):
    """The software stack: a preset, and fields of it to replace, written beside it."""

    preset: Name = "megatron-lm"
    """A framework by name (see 'mpsim show frameworks')."""
    overrides: Mapping[str, Any] = {}
    """Fields of the preset to replace."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _gather(cls, data: object) -> object:
        return gather_overrides(data)


class Simulation(Section):
    """Engine, network and seed."""

    engine: Literal["auto", "simpy", "replay"] = "auto"
    """Which engine runs it; auto takes the fast one wherever it is exact."""
    network: Literal["analytic", "flow"] = "analytic"
    """Whether transfers take the time they have alone, or share links with each other as flows."""
    interference: bool = False
    """Whether kernels and collectives that run beside each other on a device slow each other down."""
    straggling: bool = True
    """Whether a step on many accelerators loses what it usually does to the slowest of them; a variation section draws its own instead."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Of everything random."""
