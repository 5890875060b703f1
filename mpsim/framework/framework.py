"""Framework: how a software stack runs the step, as far as time and memory depend on it."""

import math
import typing
from collections.abc import Iterable, Iterator, Mapping

from mpsim import nouns, structs
from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.framework import behaviour
from mpsim.memo import remembered
from mpsim.nouns import Description, Figure, MistakenError, Plain, Quantity, Scalar
from mpsim.shipped import read_shipped
from mpsim.units import Dimension, format_quantity
from mpsim.workload import Lowering


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One software stack of one era."""

    name: str
    title: str
    lowering: Lowering
    """Which kernels a layer becomes."""
    kernels: behaviour.KernelBehaviour
    tensor: behaviour.TensorBehaviour
    pipeline: behaviour.PipelineBehaviour
    data: behaviour.DataBehaviour
    optimizer: behaviour.OptimizerBehaviour
    memory: behaviour.MemoryBehaviour
    host: behaviour.HostBehaviour
    experts: behaviour.ExpertBehaviour
    source: str
    """Where the switches were read."""
    as_of: str
    suits: Mapping[str, Scalar] = structs.field(default_factory=dict, hash=False)
    """Dotted keys of a scenario that this preset was written for, such as `parallelism.zero: 3`.
    Of these only the sharding of a stack that is written for the most it has is set."""
    notes: tuple[str, ...] = ()
    """What could not be decided from sources, and what is approximated."""

    def groups(self) -> dict[str, dict[str, object]]:
        """Every field by its area and the name presets and scenarios write it under."""
        return {name: structs.asdict(getattr(self, name)) for name in AREAS}

    def fields(self) -> dict[str, object]:
        """Every field by the name presets and scenarios write it under."""
        return {name: value for group in self.groups().values() for name, value in group.items()}

    def describe(self) -> Description:
        """Every field by its area, with its unit; all were read in the source of the preset."""
        source = f"{self.source} ({self.as_of})"
        return Description(
            tuple(
                Figure(field, value, _printed(value, mark), source, _unit(mark), area)
                for area, fields in self.groups().items()
                for field, value in fields.items()
                for mark in (mark_of(field),)
            )
        )

    def in_precision(self, precision: str) -> typing.Self:
        """The stack with its element sizes as training in `precision` has them.

        Presets state the sizes of mixed 16-bit training. In fp32 and tf32 every element takes 4
        bytes, and no master copy of the parameters is kept beside the two moments.
        """
        if precision not in _FULL_PRECISION:
            return self
        size = 4
        lowering = structs.replace(
            self.lowering,
            activation_bytes=max(size, self.lowering.activation_bytes),
            weight_grad_bytes=max(size, self.lowering.weight_grad_bytes),
        )
        optimizer = structs.replace(
            self.optimizer,
            gradient_bytes=max(size, self.optimizer.gradient_bytes),
            parameter_bytes=max(size, self.optimizer.parameter_bytes),
            optimizer_bytes=min(2 * size, self.optimizer.optimizer_bytes),
        )
        gathered = max(size, self.data.gathered_bytes) if self.data.gathered_bytes else 0
        data = structs.replace(self.data, gathered_bytes=gathered)
        return structs.replace(self, lowering=lowering, optimizer=optimizer, data=data)

    def training_adapters(self) -> typing.Self:
        """The stack where adapters alone train: gradients and states have the width of these."""
        optimizer, width = self.optimizer, self.lowering.adapter_bytes
        times = width / optimizer.parameter_bytes if width else 1.0
        known = {field: getattr(optimizer, field) for field in _SIZES}
        sizes = {field: type(size)(times * size) for field, size in known.items()}
        return structs.replace(self, optimizer=structs.replace(optimizer, **sizes))

    def on_chips(self, families: Iterable[str]) -> typing.Self:
        """The stack with the attention that accelerators of all families can run."""
        known: typing.Any = read_shipped("mpsim.framework.data", "attention.yaml")
        kernel: behaviour.AttentionKernel | None = self.kernels.attention_kernel
        chips = {family: known["capability"].get(family, math.inf) for family in families}
        while kernel:
            own = [chips[each] for each in chips if each not in known["vendor"].get(kernel, ())]
            old = any(each < known["least"].get(kernel, 0) for each in own)
            if not old and all(each <= known["most"].get(kernel, each) for each in own):
                break
            kernel = known["instead"]["least" if old else "most"].get(kernel)
        if not self.lowering.fused_attention or kernel == self.kernels.attention_kernel:
            return self
        lowering = structs.replace(self.lowering, fused_attention=kernel is not None)
        kernels = structs.replace(self.kernels, attention_kernel=kernel or _UNUSED)
        return structs.replace(self, lowering=lowering, kernels=kernels)

    def on_host(self, call_time: float) -> typing.Self:
        """The stack on a host whose calls take so many times those of an x86 server."""
        if call_time == 1.0:
            return self
        longer = {name: call_time * getattr(self.host, name) for name in _CALLS}
        host = structs.replace(self.host, **longer)
        calls = call_time * self.experts.product_launch_cost
        experts = structs.replace(self.experts, product_launch_cost=calls)
        return structs.replace(self, host=host, experts=experts)

    def overlaps_gradients(self, pp: int) -> bool:
        """Whether gradients are reduced beside a backward when there are `pp` stages."""
        never, alone = behaviour.GradientOverlap.NEVER, behaviour.GradientOverlap.WITHOUT_PIPELINE
        refuses = (never,) if pp == 1 else (never, alone)
        return not self.host.launch_blocking and self.data.gradient_overlap not in refuses

    def defers_sums(self, pp: int) -> bool:
        """Whether sums between copies of shards wait for the last backward."""
        late = self.data.gradient_overlap is behaviour.GradientOverlap.SHARDS
        return late or not self.overlaps_gradients(pp)


_FULL_PRECISION = ("fp32", "tf32")
_SIZES = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "optimizer_traffic")
_UNUSED: typing.Final = "flash1"  # where scores are in memory: every chip has its constants
_CALLS = ("launch_cost", "backward_launch_cost", "collective_launch_cost", "layer_host_time")
ATTENTION_KERNELS = typing.get_args(behaviour.AttentionKernel)
AREAS: Mapping[str, str] = read_shipped("mpsim.framework.data", "areas.yaml")
"""Groups of fields in words."""


@remembered(1)
def _groups() -> Mapping[str, type]:
    """Class of each area, and of what a preset says of itself."""
    return nouns.hints(Framework)


@remembered(1)
def _areas() -> Mapping[str, str]:
    """Area of each flat field; empty for what a preset says of itself."""
    own = {name: "" for name in _groups() if name not in AREAS}
    return own | {each.name: area for area in AREAS for each in structs.fields(_groups()[area])}


def mark_of(field: str) -> Quantity | Plain | None:
    """How the number of a field is written: with a unit, or plain; None where it is none."""
    area = _areas().get(field)
    marks = nouns.markers(_groups()[area])[field] if area else ()
    return marks[-1] if marks else None


def read_framework(data: Mapping[str, object], *, key: str = "framework") -> Framework:
    """Make a Framework of plain data.

    `data`: fields of `Framework` and of its groups, flat; a field with a default may be left out.
    `key`: dotted key that problems are reported under. ScenarioError for unknown fields, missing
    fields and values of the wrong type or range; all at once.
    """
    areas = _areas()
    groups: dict[str, dict[str, object]] = {area: {} for area in AREAS}
    own: dict[str, object] = {}
    problems: list[Problem] = []
    for field, value in data.items():
        if field not in areas:
            message = f"unknown field; {nearest(field, areas)}"
            problems.append(Problem(message, key=f"{key}.{field}"))
            continue
        area = areas[field]
        (groups[area] if area else own)[field] = value
    try:
        framework = nouns.read(Framework, {**own, **groups})
    except MistakenError as error:
        problems += _problems(error, key)
    if problems:
        order = {f"{key}.{field}": number for number, field in enumerate(data)}
        problems.sort(key=lambda each: (order.get(each.key, len(order)), each.key))
        raise ScenarioError(problems)
    return framework


def _problems(error: MistakenError, key: str) -> Iterator[Problem]:
    for mistake in error.mistakes:
        area, _, field = mistake.key.partition(".")
        message = str(mistake) if mistake.needed else "missing; the preset must state it"
        yield Problem(message, key=f"{key}.{field if area in AREAS else area}")


def _unit(mark: Quantity | Plain | None) -> str:
    """SI unit of a field; empty for a number or a word."""
    if isinstance(mark, Quantity):
        return "s" if mark.dimension is Dimension.TIME else "B"
    return mark.unit if mark else ""


def _printed(value: object, mark: Quantity | Plain | None) -> str:
    """A value as a scenario would write it, with its unit."""
    if isinstance(mark, Quantity) and isinstance(value, float):
        return format_quantity(value, mark.dimension)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{text} {mark.unit if isinstance(mark, Plain) else ''}".rstrip()
