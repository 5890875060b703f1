"""Costs of a training step: those of its layout, and what batches and replicas add to them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from mpsim import cost
from mpsim.framework import ExpertOverlap
from mpsim.parallel import Layout
from mpsim.program.rows import Prices
from mpsim.program.template import ticks
from mpsim.training.plan import Plan

_ON_AVERAGE = (".lost", ".full_rate")  # of the constants of interference


class PlanCosts(cost.LayoutCosts):
    """Cost models of one Plan; they share what those of a plan `like` it remember."""

    def __init__(self, plan: Plan, *, like: cost.LayoutCosts | None = None) -> None:
        super().__init__(plan.layout, like=like)
        self.plan = plan

    @functools.cached_property
    def parts(self) -> tuple[PlanCosts, ...]:
        """Costs of each class of replicas; these where all are alike."""
        if not self.plan.classes:
            return (self,)
        return tuple(PlanCosts(part) for part in self.plan.parts)

    def each(self) -> Iterator[cost.LayoutCosts]:
        """Costs of every kind of nodes, in every class of replicas."""
        if not self.plan.classes:
            yield from super().each()
        else:
            yield from itertools.chain(*(part.each() for part in self.parts))

    def provenance(self) -> tuple[cost.Constant, ...]:
        """Every constant used so far, kernels first."""
        _, *others = self.each()
        own = self.provenance_alone()
        elsewhere = [
            (*other.provenance_alone(), *self._step_constants(other.layout)) for other in others
        ]
        if self.plan.classes:
            elsewhere += [part.provenance() for part in self.parts]
        if elsewhere:
            own = tuple(dict.fromkeys(itertools.chain(own, *elsewhere)))
        return (*own, *self._step_constants(self.layout))

    def _step_constants(self, layout: Layout) -> tuple[cost.Constant, ...]:
        """Constants of what runs beside layers, and of the host that keeps states."""
        plan, constants = self.plan, tuple[cost.Constant, ...]()
        overlap = plan.layout.framework.experts.expert_overlap
        hides_tokens = plan.sharding.routing is not None and overlap is not ExpertOverlap.NONE
        beside = {"dp": plan.exchanges_beside, "ep": hides_tokens and not plan.interference}
        if any(beside.values()):
            used = (*_ON_AVERAGE, *(f".units_{axis}" for axis, runs in beside.items() if runs))
            taken = cost.interference_of(layout.framework.name, layout.cluster.accelerator)
            constants = tuple(each for each in taken.constants if each.name.endswith(used))
        if plan.straggling:
            usual = cost.straggling_constants(layout.cluster.accelerator)
            if plan.layout.mesh.world > usual["beyond"].value:
                constants = (*constants, *usual.values())
        on_host = {plan.offload, plan.recompute.offload} - {"none"}
        return (*constants, *cost.host_constants(layout.cluster)) if on_host else constants

    def straggling(self) -> float:
        """Time that every rank waits for the slowest of all at the end of the step [s]."""
        plan, mesh = self.plan, self.layout.mesh
        if not plan.straggling:
            return 0.0
        flops = plan.model_flops / mesh.world
        slowest = 0.0
        for costs in self.each():
            usual = cost.straggling_constants(costs.layout.cluster.accelerator)
            seconds = cost.straggling_seconds(
                flops,
                mesh.world,
                rate=costs.kernels.wide_rate,
                per_doubling=usual["per_doubling"].value,
                beyond=usual["beyond"].value,
            )
            slowest = max(slowest, seconds)
        return plan.straggling * slowest

    def sends(self) -> tuple[Prices, Prices]:
        """Messages of every stage to the next, and to the one before."""
        ranks, size = [stage.rank for stage in self.layout.stages], self.plan.message_bytes
        # chunks of the same two ranks send the same message, and the last stage none
        pairs = [*itertools.pairwise(ranks), (ranks[0], ranks[0])]
        sent = {
            (first, last): self.message(first, last, size) if first != last else (0.0, 0.0, 0.0)
            for pair in dict.fromkeys(pairs)
            for first, last in (pair, pair[::-1])
        }
        behind = [sent[pair[::-1]] for pair in [*pairs[-1:], *pairs[:-1]]]
        seconds, up, out = np.array([[sent[pair] for pair in pairs], behind]).transpose(2, 0, 1)
        onward, back = zip(ticks(seconds), up, out, up + out, strict=True)
        return Prices(*onward), Prices(*back)
