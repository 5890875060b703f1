"""Beside: how much longer the pieces of an action take because gathers and reductions run beside them.

A collective's blocks hold processors and memory bandwidth of the device they run on, so a kernel beside them loses a part of its rate
(`Interference.lost_at`). Pieces run in order; what is queued beside one and does not end there runs on beside the next. What the next action
finds still under way is left out, and so are collectives of other axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from mpsim.cost import interference_of
from mpsim.program.program import PARTS, TICK, Template
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import Plan
from mpsim.training.replicas.exchanges import exchange_times
from mpsim.training.replicas.segments import Amount, Piece

__all__ = ["Beside"]

_HOST = PARTS.index("host")
_Beside: TypeAlias = tuple[
    float, float
]  # seconds of collectives, and what kernels beside them lose [s]


class Beside:
    """Says by how much pieces of one Plan are longer.

    Parameters
    ----------
    plan : Plan
    costs : PlanCosts
    """

    def __init__(self, plan: Plan, costs: PlanCosts) -> None:
        self._plan = plan
        self._costs = costs
        self._known: dict[tuple[Amount, bool, int], _Beside] = {}

    def factors(
        self, pieces: Sequence[Piece], templates: Sequence[Template], rank: int
    ) -> list[float]:
        """How many times longer than alone each piece takes.

        Parameters
        ----------
        pieces : sequence of Piece
            Of one action, in the order they run.
        templates : sequence of Template
            What each is alone.
        rank : int
            Pipeline rank that runs them.

        Notes
        -----
        A piece in which the device waits for the host is longer only by what does not fit into the waiting.
        """
        factors, left, lost = [], 0.0, 0.0
        for template, (more, loses) in zip(templates, self._queued(pieces, rank), strict=True):
            left, lost = left + more, lost + loses
            alone = float(template.parts.sum()) * TICK
            busy = alone - float(template.parts[_HOST]) * TICK
            share = lost / left if left else 0.0
            took = max(alone, min(busy + lost, busy / (1.0 - share)))
            left = max(left - took, 0.0)
            lost = share * left
            factors.append(took / alone if took > alone else 1.0)
        return factors

    def _queued(self, pieces: Sequence[Piece], rank: int) -> list[_Beside]:
        """What joins the queue when each piece begins: gathers for those behind it, the reduction of the one before it."""
        plan, none = self._plan, (0.0, 0.0)
        if not plan.exchanges_beside or len(pieces) == 1:
            return [none] * len(pieces)
        gathers, reduces = [none] * len(pieces), [none] * len(pieces)
        if plan.gathers_units and plan.units_in_flight > 1:
            gathers[:-1] = [self._times(one.gathers, rank, gather=True) for one in pieces[1:]]
        elif plan.gathers_beside:
            gathers[0] = _sum(self._times(one.gathers, rank, gather=True) for one in pieces[1:])
        if (
            plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp)
            and not plan.keeps_gathered
        ):
            reduces[1:] = [self._times(one.reduces, rank, gather=False) for one in pieces[:-1]]
        return [_sum(both) for both in zip(gathers, reduces, strict=True)]

    def _times(self, amounts: Sequence[Amount], rank: int, *, gather: bool) -> _Beside:
        """Of exchanging several amounts."""
        alike = int(self._costs.alike[rank])
        for one in amounts:
            if (one, gather, alike) not in self._known:
                self._known[one, gather, alike] = self._time(one, alike, gather=gather)
        return _sum(self._known[one, gather, alike] for one in amounts)

    def _time(self, amount: Amount, rank: int, *, gather: bool) -> _Beside:
        plan, costs = self._plan, self._costs
        chip = plan.layout.cluster_of(rank).accelerator
        taken = interference_of(plan.layout.framework.name, chip)
        times = exchange_times(plan, costs, amount, gather=gather, rank=rank)
        return _sum((seconds, seconds * taken.lost_at(rate)) for seconds, rate in times)


def _sum(several: Iterable[_Beside]) -> _Beside:
    seconds, lost = 0.0, 0.0
    for one in several:
        seconds, lost = seconds + one[0], lost + one[1]
    return seconds, lost
