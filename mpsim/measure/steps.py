"""Training steps of small GPTs, divided in every way the world allows: without a pipeline (alone,
with DDP, FSDP2, tensor parallelism, several microbatches), and actions of pipelines.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules

from mpsim import structs
from mpsim.measure.model import Gpt, Place, Sizes, attention_backend, loss_of
from mpsim.measure.plan import Case, Grid, Split, Work, degrees
from mpsim.measure.recorder import Recorder
from mpsim.measure.tensors import agrees, dtype_of, element_bytes, training_dtype
from mpsim.measure.world import World
from mpsim.schedule import make_orders, schedule

LEARNING_RATE = 1e-3


class Axis(NamedTuple):
    """Place of a rank along one axis, and its one-dimensional mesh; None for a rank alone."""

    rank: int
    mesh: DeviceMesh | None

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks along it."""
        assert self.mesh is not None, "asked with others"
        return self.mesh.get_group()


class Step(Protocol):
    """One training step on this rank."""

    def __call__(self, ids: torch.Tensor, targets: torch.Tensor) -> list[float]:
        """Losses of the microbatches that end on this rank."""
        ...


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW in one kernel, as training runs use it."""
    return torch.optim.AdamW(list(parameters), lr=LEARNING_RATE, fused=True)


class Replica:
    """A model whole along the pipeline. `place`: of this rank in its tensor-parallel group."""

    def __init__(
        self,
        sizes: Sizes,
        split: Split,
        place: Place,
        axes: Mapping[str, Axis],
        recorder: Recorder,
        *,
        microbatches: int,
        recompute: bool,
        compiled: bool,
    ) -> None:
        self.split, self.recorder, self.microbatches = split, recorder, microbatches
        model = Gpt(sizes, place, recompute=recompute)
        if compiled:
            _compile(model)
        self.model = _spread(model, split, axes["dp"])
        self.optimizer = make_optimizer(self.model.parameters())
        self.loss = loss_of(place)

    def __call__(self, ids: torch.Tensor, targets: torch.Tensor) -> list[float]:
        """Forward and backward of each microbatch, then the optimizer."""
        losses = []
        parts = zip(ids.chunk(self.microbatches), targets.chunk(self.microbatches), strict=True)
        for index, (x, y) in enumerate(parts):
            with self._later(wanted=index < self.microbatches - 1):
                loss = self.recorder.note(f"0F{index}", functools.partial(self._forward, x, y))
                self.recorder.note(f"0B{index}", (loss / self.microbatches).backward)
            losses.append(loss.detach())
        self.recorder.note("optimizer", self._update)
        return [float(loss) for loss in losses]

    def _forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(ids), targets)

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _later(self, *, wanted: bool) -> contextlib.AbstractContextManager[None]:
        """Whether gradients are summed over the replicas only after a later microbatch."""
        if wanted and isinstance(self.model, nn.parallel.DistributedDataParallel):
            return self.model.no_sync()
        if self.split.data_parallel == "fsdp2":
            self.model.set_requires_gradient_sync(not wanted)  # type: ignore[operator]
        return contextlib.nullcontext()


def _compile(model: Gpt) -> None:
    """Compile the layers as one shared graph for these shapes; forget what was compiled before."""
    torch.compiler.reset()
    for layer in model.layers:
        layer.compile(dynamic=False, fullgraph=True)


def _spread(model: Gpt, split: Split, axis: Axis) -> nn.Module:
    """The model with its gradients, or everything, shared among its replicas."""
    if split.data_parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model, process_group=axis.group)
    if split.data_parallel == "fsdp2":
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise NotImplementedError(f"torch {torch.__version__} has no fully_shard") from error

        for layer in model.layers:
            fully_shard(layer, mesh=axis.mesh)
        fully_shard(model, mesh=axis.mesh)
    return model


CHECKED_STEPS = 2
"""The second loss shows that the gradients and the optimizer of the first step were right."""
CHECKED_FLOPS = 2e12
"""Work of a batch [FLOP] above which a second computation on one process is not worth it."""


def step_series(world: World, grid: Grid, parallel: Sequence[Grid]) -> list[list[Case]]:
    """Cases of every way to divide every model, a list for each way."""
    dtype = training_dtype(world)
    models = [Sizes(**sizes_row) for sizes_row in grid["models"]]
    series = []
    for entry in parallel:
        split = degrees(entry, world.size)
        if split is None:
            continue
        for options in grid["variants"] if split.ranks == 1 else [{}]:
            fitting = [sizes for sizes in models if _divides(sizes, split)]
            series.append([_case(world, sizes, split, dtype, options) for sizes in fitting])
    return series


def _divides(sizes: Sizes, split: Split) -> bool:
    stages = split.pp * split.virtual
    parts = (sizes.heads, sizes.ffn_hidden, sizes.vocab)
    return sizes.layers % stages == 0 and not any(part % split.tp for part in parts)


def _case(world: World, sizes: Sizes, split: Split, dtype: str, options: Grid) -> Case:
    microbatches = split.microbatches * options.get("microbatches", 1)
    wider = sizes.micro_batch * options.get("wider", 1)
    sizes = structs.replace(sizes, micro_batch=wider)
    recompute, compiled = options.get("recompute", "none"), bool(options.get("compiled", False))
    degrees = {"dp": split.dp, "tp": split.tp, "pp": split.pp}
    parameters = sizes.parameters / (split.tp * split.pp) * element_bytes(dtype)
    place = Place(0, split.tp, None, world.device, dtype_of(dtype))
    chosen = {"attention": attention_backend(sizes, place)} if world.kind == "cuda" else {}
    saved = sizes.tokens * (34.0 * sizes.hidden * sizes.layers / split.pp + 12.0 * sizes.vocab)

    def prepare(world: World) -> Work:
        recorder = Recorder(world.kind == "cuda", world.clock_offset)
        place, axes = place_of(world, split, dtype)
        batch = Batch(sizes, microbatches, split.dp, world.device)
        step: Step
        if split.pp > 1:
            step = Pipeline(sizes, split, place, axes, recorder)
        else:
            step = Replica(
                sizes,
                split,
                place,
                axes,
                recorder,
                microbatches=microbatches,
                recompute=recompute == "full",
                compiled=compiled,
            )
        ids, targets = batch.part(axes["dp"].rank)
        losses = [_mean(world, split, step(ids, targets)) for _ in range(CHECKED_STEPS)]
        check = checked(sizes, batch, place, losses, dtype)
        return Work(
            run=lambda: step(ids, targets), most_calls=1, check=check, warm=True, recorder=recorder
        )

    return Case(
        family="steps",
        op="train_step",
        shape=sizes.shape()
        | degrees
        | {"virtual_stages": split.virtual, "microbatches": microbatches},
        variant={
            "data_parallel": split.data_parallel,
            "schedule": split.schedule or "none",
            "recompute": recompute,
            "compiled": compiled,
            "optimizer": "adamw",
            **chosen,
        },
        dtype=dtype,
        group=world.everyone,
        synchronous=split.ranks > 1,
        flops=3.0 * sizes.flops * microbatches / (split.tp * split.pp),
        memory=4.0 * parameters + saved / split.tp * min(microbatches, split.pp) * 1.2,
        prepare=prepare,
    )


def place_of(world: World, split: Split, dtype: str) -> tuple[Place, Mapping[str, Axis]]:
    """Part of the weights that this rank holds, and its place along each axis."""
    if split.ranks == 1:
        alone = Place(0, 1, None, world.device, dtype_of(dtype))
        return alone, dict.fromkeys(("pp", "dp", "tp"), Axis(0, None))
    mesh = world.mesh(split.pp, split.dp, split.tp)
    axes = {axis: Axis(mesh.get_local_rank(axis), mesh[axis]) for axis in ("pp", "dp", "tp")}
    tp = axes["tp"]
    return Place(tp.rank, split.tp, tp.group, world.device, dtype_of(dtype)), axes


class Batch:
    """The same random ids on every rank, and each replica's part of them."""

    def __init__(
        self, sizes: Sizes, microbatches: int, replicas: int, device: torch.device
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (replicas * microbatches * sizes.micro_batch, sizes.sequence + 1)
        self.ids = torch.randint(sizes.vocab, shape, generator=generator).to(device)
        self.replicas = replicas

    def part(self, replica: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and targets of one replica."""
        mine = self.ids.chunk(self.replicas)[replica]
        return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def _mean(world: World, split: Split, losses: list[float]) -> float:
    """Over every replica; ranks that hold no loss have none in their list."""
    if split.ranks == 1:
        return sum(losses) / len(losses)
    total = torch.tensor([sum(losses), float(len(losses))], dtype=torch.float64)
    dist.all_reduce(total, group=world.control(world.everyone))
    return float(total[0] / total[1])


def checked(sizes: Sizes, batch: Batch, place: Place, losses: list[float], dtype: str) -> str:
    """Compare the losses of the first steps with those of one process on the whole batch."""
    sequences = batch.ids.shape[0]
    if 3.0 * sizes.flops * sequences / sizes.micro_batch > CHECKED_FLOPS:
        agrees(
            torch.tensor(losses).isfinite().double(),
            torch.ones(len(losses)),
            dtype,
            "finite losses",
        )
        return "losses are finite"
    wanted = _losses(sizes, batch, place.device, place.dtype)
    what = f"{CHECKED_STEPS} steps of one process"
    return agrees(torch.tensor(losses), torch.tensor(wanted), dtype, what, rule="loss_tolerance")


_ALONE: dict[tuple[Sizes, int, torch.dtype], list[float]] = {}


def _losses(sizes: Sizes, batch: Batch, device: torch.device, dtype: torch.dtype) -> list[float]:
    """Losses of the first steps of one process on the whole batch; computed once."""
    key = (sizes, batch.ids.shape[0], dtype)
    if key in _ALONE:
        return _ALONE[key]
    alone = Place(0, 1, None, device, dtype)
    model, loss_function = Gpt(sizes, alone), loss_of(alone)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for _ in range(CHECKED_STEPS):
        loss = loss_function(model(batch.ids[:, :-1]), batch.ids[:, 1:])
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return _ALONE.setdefault(key, losses)


CLASSES: Final[Mapping[str, str]] = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "zb-v": "ScheduleZBVZeroBubble",
}
"""Name of mpsim to class of torch."""


class Pipeline:
    """One rank of a pipeline. `place`: of this rank in its tensor-parallel group.

    Notes
    -----
    torch calls ``forward_one_chunk``, ``backward_one_chunk`` and ``backward_weight_one_chunk`` of
    its stages; each call is one action. Waiting for a message and sending one are between the
    actions. The loss belongs to the forward before it. On the first stage torch's I does nothing,
    and its W is the whole backward.
    """

    def __init__(
        self, sizes: Sizes, split: Split, place: Place, axes: Mapping[str, Axis], recorder: Recorder
    ) -> None:
        self.recorder = recorder
        self.sizes, self.split, self.place = sizes, split, place
        self.rank, self.replicas = axes["pp"].rank, axes["dp"]
        indices = self._indices()
        self.stages = [self._stage(index, axes["pp"].group) for index in indices]
        self.first, self.last = 0 in indices, split.pp * split.virtual - 1 in indices
        parameters = [parameter for stage in self.stages for parameter in stage.submod.parameters()]
        self.gradients = _flat_gradients(parameters) if split.dp > 1 else None
        self.optimizer = make_optimizer(parameters)
        facts = schedule(split.schedule)  # of one stage a rank torch wants the stage, else a list
        build = getattr(schedules, CLASSES[split.schedule], None)
        if build is None:
            raise NotImplementedError(f"torch {torch.__version__} has no {CLASSES[split.schedule]}")
        self.schedule = build(
            self.stages if facts.interleaves or facts.chunks != 1 else self.stages[0],
            split.microbatches,
            loss_fn=recorder.extend(loss_of(place)),
        )
        takes = inspect.signature(self.schedule.step).parameters
        self.options = {"return_outputs": False} if "return_outputs" in takes else {}

    def __call__(self, ids: torch.Tensor, targets: torch.Tensor) -> list[float]:
        """Every microbatch through the pipeline, then the optimizer."""
        losses: list[torch.Tensor] = []
        given = (ids,) if self.first else ()
        wanted = {"target": targets, "losses": losses} if self.last else {}
        self.schedule.step(*given, **wanted, **self.options)
        if self.gradients is not None:
            self.recorder.note("gradients", self._reduce)
        self.recorder.note("optimizer", self._update)
        return [float(loss.detach()) for loss in losses]

    def _reduce(self) -> None:
        assert self.gradients is not None
        dist.all_reduce(self.gradients, group=self.replicas.group)
        self.gradients /= self.split.dp

    def _update(self) -> None:
        self.optimizer.step()
        if self.gradients is None:
            self.optimizer.zero_grad()
        else:
            self.gradients.zero_()

    def _indices(self) -> list[int]:
        """Stages that this rank holds, in model order."""
        orders = make_orders(
            self.split.schedule,
            pp=self.split.pp,
            microbatches=self.split.microbatches,
            virtual_stages=self.split.virtual,
        )
        return [int(stage) for stage in np.flatnonzero(orders.stage_rank == self.rank)]

    def _stage(self, index: int, group: dist.ProcessGroup) -> PipelineStage:
        sizes, place = self.sizes, self.place
        count = self.split.pp * self.split.virtual
        each = sizes.layers // count
        model = Gpt(sizes, place, first=index * each, last=(index + 1) * each)
        stage = PipelineStage(
            model,
            index,
            count,
            place.device,
            input_args=self._example(index == 0, "ids"),
            output_args=self._example(index == count - 1, "logits"),
            group=group,
        )
        _record(stage, index, self.recorder)
        return stage

    def _example(self, at_end: bool, what: str) -> torch.Tensor:
        """A tensor like those that pass a boundary of the stage, without data."""
        shape = (self.sizes.micro_batch, self.sizes.sequence)
        empty = functools.partial(torch.empty, device=self.place.device)
        if not at_end:
            return empty(*shape, self.sizes.hidden, dtype=self.place.dtype, requires_grad=True)
        if what == "ids":
            return empty(*shape, dtype=torch.long)
        width = self.sizes.vocab // self.place.size
        return empty(*shape, width, dtype=self.place.dtype, requires_grad=True)


def _record(stage: PipelineStage, index: int, recorder: Recorder) -> None:
    """Let `recorder` note every action of `stage`."""

    def wrap(name: str, letters: str) -> None:
        """Note calls of a method; of two letters the second where a backward is not full."""

        def token(chunk: int, *_: object, full_backward: bool = True, **__: object) -> str:
            return f"{index}{letters[0 if full_backward else -1]}{chunk}"

        setattr(stage, name, recorder.wrap(token, getattr(stage, name)))

    wrap("forward_one_chunk", "F")
    wrap("backward_one_chunk", "BI")
    wrap("backward_weight_one_chunk", "W")


def _flat_gradients(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    """One buffer that holds every gradient, so that one all-reduce sums them."""
    sizes = [parameter.numel() for parameter in parameters]
    flat = torch.zeros(sum(sizes), device=parameters[0].device, dtype=parameters[0].dtype)
    for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat
