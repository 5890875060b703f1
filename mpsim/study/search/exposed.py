"""Exchanges of data parallelism that a bound counts: those that nothing hides, or that wait in a queue.

Shapes: S stages, P pipeline ranks, A parts of the model.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.program.template import ticks
from mpsim.study.search.shapes import part_names
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import Plan
from mpsim.training.replicas.groups import collective_columns, dense_group, reduction_kind

__all__ = ["Exposed", "StageParts"]

Floats = NDArray[np.float64]


class Exposed(NamedTuple):
    """Ticks of exchanges of data parallelism of each rank, float64[P].

    Parameters
    ----------
    once : float64[P]
        After its last action.
    each : float64[P]
        Between the actions of every microbatch, which wait for it.
    queued : float64[P]
        Of every microbatch, beside the actions: the queue of the communicator has to get through all of them.
    """

    once: Floats
    each: Floats
    queued: Floats


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StageParts:
    """Ranks and parts of the stages of a frame.

    Parameters
    ----------
    rank : int64[S]
        Pipeline rank of each stage.
    count : float64[S, A]
        Parts of each stage, by `mpsim.study.search.shapes.part_names`.
    """

    rank: NDArray[np.int64]
    count: Floats

    def exposed(self, plan: Plan, costs: PlanCosts) -> Exposed:
        """Exchanges of data parallelism that nothing hides, or not wholly."""
        none = np.zeros(plan.layout.mesh.pp)
        if plan.replicas == 1:
            return Exposed(none, none, none)
        sizes, data = plan.layout.framework.optimizer, plan.layout.framework.data
        reduce = self._collective(
            plan, costs, reduction_kind(plan), data.reduced_bytes or sizes.gradient_bytes
        )
        every = plan.reduces_every_microbatch
        queued = reduce * every
        if plan.gathers_units and not plan.keeps_gathered:
            gather = self._collective(
                plan, costs, "all_gather", data.gathered_bytes or sizes.parameter_bytes
            )
            queued = queued + gather * (2 if data.reshard_after_forward else 1)
        hidden = plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp) or plan.gathers_units
        return Exposed(
            once=none if hidden or every else reduce,
            each=reduce if every and not hidden else none,
            queued=queued,
        )

    def _collective(self, plan: Plan, costs: PlanCosts, kind: str, element: float) -> Floats:
        """Ticks of one collective over the layers of every stage of a rank, float64[P]; unit by unit where those are cut."""
        peers = dense_group(plan, costs)
        inside = [peers.inside(int(rank)) for rank in self.rank]
        if not plan.gathers_units:
            size = self._dense(plan) * element
            seconds, _, _ = collective_columns(costs.collectives, kind, size, inside, peers.owners)
            return self._by_rank(plan, ticks(seconds))
        layers, unit = self.count[:, :-2].sum(axis=1), plan.layout.framework.data.unit_layers
        least = self._each(plan).min() * unit * element
        seconds, _, _ = collective_columns(
            costs.collectives, kind, np.full(len(layers), least), inside, peers.owners
        )
        return self._by_rank(plan, (layers // unit) * ticks(seconds))

    def _by_rank(self, plan: Plan, values: Floats) -> Floats:
        """Sums over the stages of each rank, float64[S] to float64[P]."""
        sums = np.zeros(plan.layout.mesh.pp)
        np.add.at(sums, self.rank, values)
        return sums

    def _each(self, plan: Plan) -> Floats:
        """Parameters of a layer of each kind that every replica holds, on one tensor-parallel rank."""
        tp, layers = plan.layout.mesh.tp, plan.layout.layer_parameters
        names = part_names(plan)[:-2]
        return np.array([layers[name].sharded / tp + layers[name].replicated for name in names])

    def _dense(self, plan: Plan) -> Floats:
        """Parameters of each stage that every replica holds, on one tensor-parallel rank, float64[S]."""
        tp = plan.layout.mesh.tp
        dense: Floats = self.count[:, :-2] @ self._each(plan)
        for place in np.flatnonzero(self.count[:, -2:].any(axis=1)).tolist():
            parts = plan.layout.stage_parameters(plan.layout.stages[place])
            ends = (parts[name] for name in ("embedding", "head") if name in parts)
            dense[place] += sum(end.sharded / tp + end.replicated for end in ends)
        return dense
