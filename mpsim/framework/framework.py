"""Framework: how a software stack runs the step, as far as time and memory depend on it."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from mpsim.description import Description, Figure
from mpsim.errors import Problem, ScenarioError, UnitError, nearest
from mpsim.framework.behaviour import (
    DataBehaviour,
    ExpertBehaviour,
    GradientOverlap,
    HostBehaviour,
    KernelBehaviour,
    MemoryBehaviour,
    OptimizerBehaviour,
    PipelineBehaviour,
    TensorBehaviour,
)
from mpsim.memo import remembered
from mpsim.units import Dimension, format_quantity, parse_quantity
from mpsim.workload import Lowering

__all__ = ["AREAS", "ATTENTION_KERNELS", "DIMENSIONS", "UNITS", "Framework", "from_mapping"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One software stack of one era.

    Parameters
    ----------
    name, title : str
    lowering : Lowering
        Which kernels a layer becomes.
    kernels : KernelBehaviour
    tensor : TensorBehaviour
    pipeline : PipelineBehaviour
    data : DataBehaviour
    optimizer : OptimizerBehaviour
    memory : MemoryBehaviour
    host : HostBehaviour
    experts : ExpertBehaviour
    source, as_of : str
        Where the switches were read, and when.
    suits : mapping of str to object
        Dotted keys of a scenario that this preset was written for, such as ``parallelism.zero: 3``. They describe; nothing is
        set by them.
    notes : tuple of str
        What could not be decided from sources, and what is approximated.
    """

    name: str
    title: str
    lowering: Lowering
    kernels: KernelBehaviour
    tensor: TensorBehaviour
    pipeline: PipelineBehaviour
    data: DataBehaviour
    optimizer: OptimizerBehaviour
    memory: MemoryBehaviour
    host: HostBehaviour
    experts: ExpertBehaviour
    source: str
    as_of: str
    suits: Mapping[str, object] = dataclasses.field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()

    def groups(self) -> dict[str, dict[str, Any]]:
        """Every field by its area and the name presets and scenarios write it under."""
        return {name: dataclasses.asdict(getattr(self, name)) for name in _GROUPS}

    def fields(self) -> dict[str, Any]:
        """Every field by the name presets and scenarios write it under."""
        return {name: value for group in self.groups().values() for name, value in group.items()}

    def describe(self) -> Description:
        """Every field by its area, with its unit; all were read in the source of the preset."""
        source = f"{self.source} ({self.as_of})"
        return Description(
            tuple(
                Figure(field, value, _printed(field, value), source, _unit(field), area)
                for area, fields in self.groups().items()
                for field, value in fields.items()
            )
        )

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
        optimizer = dataclasses.replace(
            self.optimizer,
            gradient_bytes=max(size, self.optimizer.gradient_bytes),
            parameter_bytes=max(size, self.optimizer.parameter_bytes),
            optimizer_bytes=min(2 * size, self.optimizer.optimizer_bytes),
        )
        gathered = max(size, self.data.gathered_bytes) if self.data.gathered_bytes else 0
        data = dataclasses.replace(self.data, gathered_bytes=gathered)
        return dataclasses.replace(self, lowering=lowering, optimizer=optimizer, data=data)

    @property
    def update_traffic(self) -> float:
        """Bytes that updating the parameters in place moves for each of them [B]."""
        return self.optimizer.optimizer_traffic

    def overlaps_gradients(self, pp: int) -> bool:
        """Whether gradients are reduced beside a backward when there are `pp` stages."""
        if self.host.launch_blocking:
            return False
        if self.data.gradient_overlap is GradientOverlap.WITHOUT_PIPELINE:
            return pp == 1
        return self.data.gradient_overlap is GradientOverlap.ALWAYS


_FULL_PRECISION = ("fp32", "tf32")
_FULL_PRECISION_BYTES = 4
ATTENTION_KERNELS = ("flash1", "flash2", "flash3", "cudnn")
_GROUPS: Mapping[str, type[Any]] = types.MappingProxyType(
    {
        "lowering": Lowering,
        "kernels": KernelBehaviour,
        "tensor": TensorBehaviour,
        "pipeline": PipelineBehaviour,
        "data": DataBehaviour,
        "optimizer": OptimizerBehaviour,
        "memory": MemoryBehaviour,
        "host": HostBehaviour,
        "experts": ExpertBehaviour,
    }
)
_OWN: Mapping[str, Any] = types.MappingProxyType(
    {"name": str, "title": str, "source": str, "as_of": str, "suits": dict, "notes": tuple}
)
_OPTIONAL = ("suits", "notes")
DIMENSIONS: Mapping[str, Dimension] = types.MappingProxyType(
    {
        "bucket_bytes": Dimension.BYTES,
        "first_bucket_bytes": Dimension.BYTES,
        "bucket_bytes_per_replica": Dimension.BYTES,
        "launch_cost": Dimension.TIME,
        "backward_launch_cost": Dimension.TIME,
        "product_launch_cost": Dimension.TIME,
        "collective_cost": Dimension.TIME,
        "collective_launch_cost": Dimension.TIME,
        "layer_host_time": Dimension.TIME,
        "synchronization_cost": Dimension.TIME,
        "fusion_cycle": Dimension.TIME,
        "gather_rank_time": Dimension.TIME,
        "step_overhead": Dimension.TIME,
        "step_rank_time": Dimension.TIME,
    }
)
"""Fields that are written with a unit."""
UNITS: Mapping[str, str] = types.MappingProxyType(
    {
        **dict.fromkeys(
            ("activation_bytes", "weight_grad_bytes", "gradient_bytes"), "B an element"
        ),
        **dict.fromkeys(("reduced_bytes", "gathered_bytes", "parameter_bytes"), "B an element"),
        "optimizer_bytes": "B a parameter",
        **dict.fromkeys(("optimizer_traffic", "accumulation_traffic"), "B a parameter"),
        **dict.fromkeys(("gather_copy_traffic", "reduce_copy_traffic"), "B a parameter"),
        **dict.fromkeys(
            ("loss_bytes_per_logit", "loss_kept_bytes", "loss_peak_bytes"), "B a logit"
        ),
        **dict.fromkeys(("gradient_scratch", "microbatch_gradients"), "B an element"),
    }
)
"""Units of the fields that are written as a plain number."""
AREAS: Mapping[str, str] = types.MappingProxyType(
    {
        "lowering": "kernels of a layer",
        "kernels": "their speed",
        "tensor": "tensor and context parallelism",
        "pipeline": "pipeline",
        "data": "data parallelism",
        "optimizer": "model states",
        "memory": "lifetimes of tensors",
        "host": "host",
        "experts": "mixture of experts",
    }
)
"""Groups of fields in words."""
_POSITIVE = frozenset(
    {
        "memory_kernel_factor",
        "gradient_bytes",
        "parameter_bytes",
        "activation_bytes",
        "send_messages",
        "unit_layers",
        "units_in_flight",
    }
)


def from_mapping(data: Mapping[str, Any], *, key: str = "framework") -> Framework:
    """Build a Framework from plain data, reporting every mistake at once.

    Parameters
    ----------
    data : mapping
        Fields of `Framework` and of its groups, flat; a field with a default may be left out.
    key : str
        Dotted key that problems are reported under.

    Raises
    ------
    ScenarioError
        For unknown fields, missing fields and values of the wrong type or range.
    """
    fields = _fields()
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for field, value in data.items():
        where = f"{key}.{field}"
        if field not in fields:
            problems.append(Problem(f"unknown field; {nearest(field, fields)}", key=where))
            continue
        try:
            values[field] = _convert(field, value, fields[field].kind)
        except (UnitError, ValueError) as error:
            problems.append(Problem(str(error), key=where))
    missing = sorted(name for name, field in fields.items() if field.required and name not in data)
    problems += [
        Problem("missing; the preset must state it", key=f"{key}.{name}") for name in missing
    ]
    if problems:
        raise ScenarioError(problems)
    groups = {
        group: kind(**{name: values[name] for name in values if fields[name].group == group})
        for group, kind in _GROUPS.items()
    }
    return Framework(**groups, **{name: values[name] for name in _OWN if name in values})


def _unit(field: str) -> str:
    """SI unit of a field; empty for a number or a word."""
    if field in DIMENSIONS:
        return "s" if DIMENSIONS[field] is Dimension.TIME else "B"
    return UNITS.get(field, "")


def _printed(field: str, value: object) -> str:
    """A value as a scenario would write it, with its unit."""
    if field in DIMENSIONS and isinstance(value, float):
        return format_quantity(value, DIMENSIONS[field])
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{text} {UNITS.get(field, '')}".rstrip()


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """Where a flat field belongs, what type it has and whether a preset has to state it."""

    group: str
    kind: Any
    required: bool


@remembered(1)
def _fields() -> Mapping[str, _Field]:
    fields = {name: _Field("", kind, name not in _OPTIONAL) for name, kind in _OWN.items()}
    for group, kind in _GROUPS.items():
        hints = typing.get_type_hints(kind)
        fields |= {
            field.name: _Field(group, hints[field.name], field.default is dataclasses.MISSING)
            for field in dataclasses.fields(kind)
        }
    return types.MappingProxyType(fields)


def _convert(field: str, value: object, kind: Any) -> object:
    if field in DIMENSIONS:
        return parse_quantity(value, DIMENSIONS[field])
    if kind is tuple:
        return _texts(value)
    if kind is dict:
        return _scalars(value)
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


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"got {value!r}; needed a list of texts")
    return tuple(value)


def _scalars(value: object) -> dict[str, object]:
    good = isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(entry, str | bool | int | float)
        for key, entry in value.items()
    )
    if not good:
        raise ValueError(f"got {value!r}; needed dotted keys of a scenario and their values")
    return dict(typing.cast(Mapping[str, object], value))


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
