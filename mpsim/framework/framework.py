"""Framework: how a software stack runs the step, as far as time and memory depend on it."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from mpsim.errors import Problem, ScenarioError, UnitError, nearest
from mpsim.units import Dimension, parse_quantity
from mpsim.workload import Lowering

__all__ = [
    "ATTENTION_KERNELS",
    "BlockingSends",
    "Framework",
    "GradientOverlap",
    "TensorOverlap",
    "from_mapping",
]


class TensorOverlap(enum.StrEnum):
    """What runs beside the collectives of tensor parallelism."""

    NONE = "none"  # every collective blocks the compute stream
    WEIGHT_GRADIENT = (
        "weight-gradient"  # the reduction of an input gradient hides behind the weight gradient
    )


class BlockingSends(enum.StrEnum):
    """Where a rank waits for its messages to other stages, sent and received, between two actions."""

    NEVER = "never"
    PLAIN = "plain"  # in GPipe and 1F1B; all other schedules overlap them
    ALWAYS = "always"


class GradientOverlap(enum.StrEnum):
    """When the reduction of gradients over data parallelism may run beside the last backward."""

    NEVER = "never"
    WITHOUT_PIPELINE = (
        "without-pipeline"  # only where one stage holds the whole model (torch DDP under Megatron)
    )
    ALWAYS = "always"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One software stack of one era.

    Parameters
    ----------
    lowering : Lowering
        Which kernels a layer becomes.
    attention_kernel : str
        Generation of the fused attention kernel (``flash1``, ``flash2``, ``flash3``, ``cudnn``); unused when
        `lowering` materialises the scores.
    memory_kernel_factor : float
        Time of memory-bound kernels relative to the cost model's default: above 1 for eager kernels that are not fused,
        below 1 for compiled ones.
    tensor_overlap : TensorOverlap
    scatter_gather : bool
        A stage sends 1/tp of its output from each tensor-parallel rank and gathers it over scale-up links on arrival.
    blocking_sends : BlockingSends
    overlap_warmup_flush : bool
        Whether overlapped messages are so in warm-up and flush too, not in the steady state alone.
    gradient_overlap : GradientOverlap
    parameter_gather_overlap : bool
        With a sharded optimizer, gather parameters beside the first forward instead of after the optimizer.
    bucket_bytes : float
        Gradients are reduced in buckets of at least this size when overlapped [B].
    gradient_bytes : int
        Bytes of a gradient element as kept and reduced.
    parameter_bytes, optimizer_bytes : int
        Bytes of a parameter as computed with, and of the optimizer's state (master copy and moments) [B].
    optimizer_traffic : float
        Memory traffic of the optimizer step per owned parameter [B].
    gradient_norm : bool
        A global gradient norm synchronises all stages before the optimizer.
    launch_cost : float
        Host time of one kernel launch where it cannot run ahead of the device, 0 where launches are hidden or captured [s].
    layer_launches_forward, layer_launches_backward : int
        Kernels that one layer launches in each direction, without recomputation.
    step_overhead : float
        Serial host time per step: logging, data, bookkeeping [s].
    source, as_of : str
        Where the switches were read, and when.
    """

    name: str
    title: str
    lowering: Lowering
    attention_kernel: str
    memory_kernel_factor: float
    tensor_overlap: TensorOverlap
    scatter_gather: bool
    blocking_sends: BlockingSends
    overlap_warmup_flush: bool
    gradient_overlap: GradientOverlap
    parameter_gather_overlap: bool
    bucket_bytes: float
    gradient_bytes: int
    parameter_bytes: int
    optimizer_bytes: int
    optimizer_traffic: float
    gradient_norm: bool
    launch_cost: float
    layer_launches_forward: int
    layer_launches_backward: int
    step_overhead: float
    source: str
    as_of: str

    def in_precision(self, precision: str) -> Framework:
        """The stack with its element sizes as training in `precision` has them.

        Presets state the sizes of mixed 16-bit training. In fp32 and tf32 every element takes 4 bytes, and no master copy
        of the parameters is kept beside the two moments.
        """
        if precision not in _FULL_PRECISION:
            return self
        size = _FULL_PRECISION_BYTES
        lowering = dataclasses.replace(
            self.lowering,
            activation_bytes=max(size, self.lowering.activation_bytes),
            weight_grad_bytes=max(size, self.lowering.weight_grad_bytes),
        )
        return dataclasses.replace(
            self,
            lowering=lowering,
            gradient_bytes=max(size, self.gradient_bytes),
            parameter_bytes=max(size, self.parameter_bytes),
            optimizer_bytes=min(2 * size, self.optimizer_bytes),
        )

    def overlaps_gradients(self, pp: int) -> bool:
        """Whether gradients are reduced beside the last backward when there are `pp` stages."""
        if self.gradient_overlap is GradientOverlap.WITHOUT_PIPELINE:
            return pp == 1
        return self.gradient_overlap is GradientOverlap.ALWAYS


_FULL_PRECISION = ("fp32", "tf32")
_FULL_PRECISION_BYTES = 4
ATTENTION_KERNELS = ("flash1", "flash2", "flash3", "cudnn")
_DIMENSIONS: Mapping[str, Dimension] = types.MappingProxyType(
    {
        "bucket_bytes": Dimension.BYTES,
        "launch_cost": Dimension.TIME,
        "step_overhead": Dimension.TIME,
    }
)
_POSITIVE = frozenset(
    {"memory_kernel_factor", "gradient_bytes", "parameter_bytes", "activation_bytes"}
)


def from_mapping(data: Mapping[str, Any], *, key: str = "framework") -> Framework:
    """Build a Framework from plain data, reporting every mistake at once.

    Parameters
    ----------
    data : mapping
        Fields of `Framework`; those of `Lowering` stand beside them, not nested.
    key : str
        Dotted key that problems are reported under.

    Raises
    ------
    ScenarioError
        For unknown fields, missing fields and values of the wrong type or range.
    """
    outer = typing.get_type_hints(Framework)
    inner = typing.get_type_hints(Lowering)
    kinds = {**{k: v for k, v in outer.items() if k != "lowering"}, **inner}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for field, value in data.items():
        where = f"{key}.{field}"
        if field not in kinds:
            problems.append(Problem(f"unknown field; {nearest(field, kinds)}", key=where))
            continue
        try:
            values[field] = _convert(field, value, kinds[field])
        except (UnitError, ValueError) as error:
            problems.append(Problem(str(error), key=where))
    missing = sorted(set(outer) - {"lowering"} - set(data))
    problems += [
        Problem("missing; the preset must state it", key=f"{key}.{name}") for name in missing
    ]
    if problems:
        raise ScenarioError(problems)
    lowering = Lowering(**{field: values.pop(field) for field in inner if field in values})
    return Framework(lowering=lowering, **values)


def _convert(field: str, value: object, kind: Any) -> object:
    if field in _DIMENSIONS:
        return parse_quantity(value, _DIMENSIONS[field])
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return _choice(value, [member.value for member in kind], kind)
    if field == "attention_kernel":
        return _choice(value, ATTENTION_KERNELS, str)
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"got {value!r}; needed true or false")
        return value
    if kind in (int, float):
        return _number(field, value, kind)
    if not isinstance(value, str):
        raise ValueError(f"got {value!r}; needed text")
    return value


def _choice(value: object, known: typing.Sequence[str], kind: Any) -> object:
    if value not in known:
        raise ValueError(f"got {value!r}; {nearest(str(value), known)}")
    return kind(value)


def _number(field: str, value: object, kind: Any) -> float | int:
    good = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not good or not 0 <= typing.cast(float, value) < 1e12:
        raise ValueError(
            f"got {value!r}; needed a non-negative {'whole ' if kind is int else ''}number"
        )
    if field in _POSITIVE and not value:
        raise ValueError("got 0; needed more than 0")
    return typing.cast(float, kind(value))
