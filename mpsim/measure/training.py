"""A step without a pipeline: alone, with DDP, FSDP2, tensor parallelism, several microbatches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from mpsim.measure.model import Gpt, Place, Sizes, loss_of
from mpsim.measure.plan import Split
from mpsim.measure.recorder import Recorder

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
