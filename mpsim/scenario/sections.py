"""Sections of a scenario that stand for themselves, from parallelism to the sweep."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, Self, TypeAlias, get_args

from mpsim.scenario import fields
from mpsim.scenario.fields import Field, Read
from mpsim.schedule import is_schedule, schedule, schedule_names
from mpsim.shipped import say
from mpsim.workload import Tuning

Precision = Literal[
    "bf16", "fp16", "fp32", "tf32", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4"
]
RecomputeModule = Literal[
    "core_attn", "layernorm", "mlp", "moe_act", "moe", "shared_experts", "mla_up_proj"
]

Method = Literal["full", "lora", "qlora"]
FrozenPart = Literal["embedding", "vision", "attention", "mlp", "head"]
Projection = Literal["qkv", "query", "key", "value", "output", "up", "down", "head"]
KeptValue = Literal["query", "key", "value", "context", "output", "sums", "gate", "up"]

PRECISIONS: Final[tuple[str, ...]] = get_args(Precision)
AXES: Final = ("tp", "cp", "ep", "dp", "pp")
"""Fields of `Parallelism` that are degrees of axes, as `mpsim.parallel.axes.AXES` has them."""
DIVIDING: Final = ("tp", "pp", "cp")  # axes among whose ranks one replica of the model is divided
REPLICATING: Final = ("dp", "cp")  # axes whose ranks hold the same parameters
OF_STAGE: Final = tuple(axis for axis in AXES if axis != "pp" and axis in DIVIDING + REPLICATING)
"""Axes whose degrees multiply to the ranks of one pipeline stage."""


def factors(degrees: Mapping[str, int]) -> str:
    """Write ``tp 8 x pp 2``."""
    return " x ".join(f"{axis} {degree}" for axis, degree in degrees.items())


Degree = Annotated[int, Field(ge=1, le=1_000_000)]
Layers = Annotated[int, Field(ge=0, le=10_000)]
Batch = Annotated[int, Field(ge=1, le=10_000_000)]


def _order(order: str) -> str:
    if sorted(order.split("-")) != sorted(AXES):
        raise ValueError(
            f"got {order!r}; needed each of {', '.join(AXES)} once, joined by '-', "
            f"such as '{'-'.join(AXES)}'"
        )
    return order


class Parallelism(fields.Section):
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
    """ZeRO stage: what ranks shard: nothing (0), optimizer (1), gradients (2), parameters (3)."""
    shard: Degree | None = None
    """Ranks of data x context parallelism that share a copy of what zero divides (HSDP)."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """States kept by the host: none, the optimizer's, the parameters too."""
    offload_to: Literal["host", "nvme"] = "host"
    """Place of offloaded states: host memory or NVMe drives."""
    offload_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the optimizer's state that is offloaded; the device steps the rest."""
    order: Annotated[fields.Name, Read(_order, "after")] = "-".join(AXES)
    """Axes in the order they are laid on accelerators, fastest first."""
    layers_per_stage: fields.Listed[Layers] | Literal["auto"] | None = None
    """Layers of each (virtual) stage in model order, or auto: balanced by work, as far as the
    framework can split; left out, divided evenly."""
    embedding_counts_as_layer: bool = False
    """Whether the embedding takes the place of one layer in an even division."""
    loss_counts_as_layer: bool = False
    """Whether the output head takes the place of one layer in an even division."""

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


class ScheduleChoice(fields.Section):
    """The order of forwards and backwards on each pipeline rank."""

    name: Annotated[str, fields.OneOf(is_schedule, schedule_names)] | None = None
    """A schedule by name; left out only when a file is given."""
    virtual_stages: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Chunks of layers a pipeline rank holds; left out, what the schedule needs."""
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """A CSV file with the order of every rank, instead of a name."""
    flushes: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Whole schedules of a step, one after another, as torch's stacks run them; left out, one."""

    def _after(self) -> Self:
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


class Adapter(fields.Section):
    """Low-rank adapters beside frozen products (LoRA)."""

    rank: Annotated[int, Field(ge=1, le=65536)] = 8
    """Inner width of every adapter, at most the narrower side of the product beside it."""
    modules: fields.Some[Projection] = ("qkv", "output", "up", "down")
    """Products with adapters: qkv (or some of query, key, value), output (of attention), up (with
    the gate), down, head."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before every adapter, which then keeps an input and a mask of its own."""
    base: Literal["bf16", "fp8", "int8", "nf4", "nf4-single"] | None = None
    """Format of the frozen weights of layers; left out, nf4 for qlora and bf16 for lora; fp8
    weights are what products in fp8 read, nf4-single has scales that are not quantised again. What
    else is narrow is widened before each product."""


class Training(fields.Section):
    """Batches, number format and recomputation of one training step; batches count sequences."""

    global_batch: Batch
    """Sequences of one optimizer step, over all replicas."""
    micro_batch: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Sequences that go through the pipeline together."""
    batch_per_replica: Annotated[fields.Some[Batch], Field(max_length=100_000)] | None = None
    """Sequences of each replica, which sum to global_batch; left out, divided evenly."""
    sequence_length: Annotated[int, Field(ge=1, le=100_000_000)]
    """Tokens of a sequence."""
    lengths: fields.LengthChoice | None = None
    """Tokens of a sample; left out, every sequence is full. Samples are cut at sequence_length."""
    packing: bool = False
    """Whether samples fill sequences, each attending to itself alone, or each is padded to the
    longest of its microbatch."""
    reference: bool = False
    """Whether a frozen reference model runs a forward beside every microbatch (DPO): the model
    without its adapters, or a copy of it in 16 bits."""
    precision: Precision = "bf16"
    """Number format of matrix products."""
    recompute: Literal["none", "selective", "full", "per-op"] = "none"
    """Recomputed in the backward: nothing, some modules, all, or all but every second product."""
    recompute_method: Literal["uniform", "block"] | None = None
    """Unit of full recomputation: chunks of recompute_layers layers, or the first recompute_layers
    of every stage; left out, uniform."""
    recompute_layers: Layers | None = None
    """Layers of a chunk (1 when left out), or of every (virtual) stage for block."""
    recompute_modules: fields.Some[RecomputeModule] | None = None
    """Modules that selective recomputation runs again; left out, core_attn, or per-op where the
    framework's selective is that."""
    recompute_keeps: fields.Some[KeptValue] | None = None
    """Values that per-op keeps beside a layer's input: what products return, attention's output
    (context), sums over tensor parallelism; left out, every second product, context and sums."""
    optimizer: fields.Name | None = None
    """Optimizer of the catalog (see 'mpsim show optimizers'); left out, the AdamW that the
    framework's preset describes."""
    method: Method = "full"
    """Parameters that train: all (full), or adapters beside 16-bit (lora) or narrow (qlora)."""
    adapter: Adapter | None = None
    """Adapters of lora and qlora; left out, of rank 8 beside every product of a layer."""
    frozen: fields.Listed[FrozenPart] = ()
    """Parts whose products and tables do not train: embedding, vision, attention, mlp, head."""
    offload_activations: Literal["inputs", "products", "all"] | None = None
    """Activations that wait on the host: inputs of layers, all kept but those, or all."""
    offload_layers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """First layers of every stage whose activations wait in host memory; left out, all."""

    @property
    def tuning(self) -> Tuning:
        """Which parameters train."""
        if self.method == "full":
            return Tuning(frozen=self.frozen)
        adapter = self.adapter or Adapter()
        base = adapter.base or ("nf4" if self.method == "qlora" else "bf16")
        return Tuning(
            rank=adapter.rank, modules=adapter.modules, dropout=adapter.dropout > 0, base=base
        )


class FrameworkChoice(fields.PresetSection):
    """The software stack: a preset, and fields of it to replace, written beside it."""

    preset: fields.Name = "megatron-lm"
    """A framework by name (see 'mpsim show frameworks')."""


class Simulation(fields.Section):
    """Engine, network and seed."""

    engine: Literal["auto", "simpy", "replay"] = "auto"
    """Engine that runs the program; auto takes the fast one wherever it is exact."""
    network: Literal["analytic", "flow"] = "analytic"
    """Whether transfers take the time they have alone, or share links with each other as flows."""
    interference: bool = False
    """Whether kernels and collectives beside each other on a device slow each other down."""
    straggling: bool = True
    """Whether a step on many accelerators loses what it usually does to the slowest of them; a
    variation's speed or jitter draws its own instead."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed of everything random."""


Share = Annotated[float, Field(gt=0, le=1)]
Coefficient = Annotated[float, Field(ge=0, le=1)]
Index = Annotated[int, Field(ge=0, le=1_000_000)]


class SlowPart(fields.Section):
    """Accelerators that compute slower than the others."""

    node: Index | None = None
    """All of one node."""
    ranks: fields.Some[Index] | None = None
    """Or these ranks."""
    speed: Share
    """Speed over that of the others, such as 0.8."""

    def _after(self) -> Self:
        if (self.node is None) == (self.ranks is None):
            raise ValueError("needed one of node and ranks, such as {ranks: [12], speed: 0.8}")
        return self


class ThinLink(fields.Section):
    """NICs of a node that have lost bandwidth, always or now and then."""

    node: Index
    """The node."""
    bandwidth: Share
    """Share of the bandwidth that is left, such as 0.5 when one of two ports is down."""
    time: Share = 1.0
    """Share of the time in which it is so; below 1 the link flaps."""


class Outage(fields.Section):
    """A node that is down for a while; of services."""

    node: Index
    """The node."""
    at: fields.Time
    """When it fails, from the start of the run."""
    duration: fields.Time
    """How long it is down."""


class Variation(fields.Section):
    """Differences from rank to rank and from step to step; drawn by simulation.seed."""

    speed: Coefficient = 0.0
    """Coefficient of variation of the speeds of ranks, drawn for every machine."""
    jitter: Coefficient = 0.0
    """Coefficient of variation of the time of every operation of a rank, drawn for every step."""
    network_jitter: Coefficient = 0.0
    """Coefficient of variation of the time of messages and collectives, drawn for every step."""
    experts: Coefficient = 0.0
    """Coefficient of variation of the load of the busiest rank of experts, drawn for every
    operation; for a mixture of experts."""
    slow: fields.Listed[SlowPart] = ()
    """Accelerators that are slow in every step."""
    links: fields.Listed[ThinLink] = ()
    """Links that are degraded or flap."""
    outages: fields.Listed[Outage] = ()
    """Nodes of a service that fail: what their instances had goes on elsewhere."""
    samples: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """Steps to draw."""

    @property
    def is_random(self) -> bool:
        """Whether steps differ from each other."""
        flaps = any(link.time < 1 for link in self.links)
        return flaps or any((self.speed, self.jitter, self.network_jitter, self.experts))


MAX_VALUES: Final = 1000
NEARLY: Final = 1e-9  # of a step: a stop that rounding misses still counts


def expand_range(bounds: object) -> list[int | float]:
    """Values from start to stop, both included where the step lands on it.

    `bounds`: ``[start, stop, step]`` as written; the step may be negative. ValueError if it is
    anything else, or has no value, or more than a thousand.

    Examples
    --------
    >>> expand_range([2, 8, 2]), expand_range([0.1, 0.3, 0.1])
    ([2, 4, 6, 8], [0.1, 0.2, 0.3])
    """
    if not (isinstance(bounds, list) and len(bounds) == 3 and all(map(_is_number, bounds))):
        raise ValueError(say("scenario.no_range", got=str(bounds)[:60]))
    start, stop, step = bounds
    count = math.floor((stop - start) / step + NEARLY) + 1 if step else 0
    if not 1 <= count <= MAX_VALUES:
        raise ValueError(
            say("scenario.long_range", bounds=bounds, count=max(count, 0), most=MAX_VALUES)
        )
    if all(isinstance(bound, int) for bound in bounds):
        return [start + index * step for index in range(count)]
    return [float(f"{start + index * step:.12g}") for index in range(count)]


def points(sweep: Mapping[str, tuple[object, ...]]) -> Iterator[dict[str, object]]:
    """Every combination of the values, the last key changing fastest."""
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _expand(value: object) -> object:
    if isinstance(value, Mapping) and set(value) == {"range"}:
        return tuple(expand_range(value["range"]))
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_VALUES:
        got = f"a list of {len(value)}" if isinstance(value, list | tuple) else repr(value)[:60]
        raise ValueError(say("scenario.no_values", got=got))
    return tuple(value)


_NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
_RANGE = {"type": "object", "properties": {"range": _NUMBERS}, "required": ["range"]}

SweepValues: TypeAlias = Annotated[
    tuple[object, ...],
    Read(_expand, json=lambda *_: {"anyOf": [{"type": "array", "minItems": 1}, _RANGE]}),
]
