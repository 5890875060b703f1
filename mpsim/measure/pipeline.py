"""A training step through torch.distributed.pipelining, with every action's start and end."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

from mpsim.measure.model import Gpt, Place, Sizes, loss_of
from mpsim.measure.plan import Split
from mpsim.measure.recorder import Recorder
from mpsim.measure.training import Axis, make_optimizer
from mpsim.schedule import make_orders, schedule

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
