"""Roofline of a step: what kernels compute and move, how near they come to the peaks.

A kernel of arithmetic intensity I [FLOP/B] can at most do ``min(peak, I * bandwidth)`` [FLOP/s];
what it achieves is its work over the time it takes alone.

References
----------
S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost import StageCosts
from mpsim.cost.kernels import executed_flops
from mpsim.parallel import Compute, Item
from mpsim.program.program import Template
from mpsim.schedule import Action
from mpsim.training.blocks import Blocks
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.vocabulary import PARTS, part_of
from mpsim.workload import Operator

_WIDE = "bf16"


@structs.dataclass(frozen=True, slots=True, eq=False)
class Roofline:
    """Kernels of a step, one point a name and part of the step.

    Shapes: K points.
    """

    # names, parts: such as ``fc1``, and the part of the step its time counts as
    names: tuple[str, ...]
    parts: tuple[str, ...]
    count: Floats  # float64[K], launches in a step, mean over pipeline ranks
    seconds: Floats  # float64[K], of all of them, each alone on the device [s]
    flops: Floats  # float64[K], that they execute; 0 for kernels that only move [FLOP]
    moved: Floats  # float64[K], to and from device memory, every operand once [B]
    peaks: Mapping[str, float]  # dense peak of each precision that products run in [FLOP/s]
    bandwidth: float  # of device memory [B/s]

    @property
    def intensity(self) -> Floats:
        """Work over bytes moved [FLOP/B]."""
        return _over(self.flops, self.moved)

    @property
    def achieved(self) -> Floats:
        """Work over time [FLOP/s]."""
        return _over(self.flops, self.seconds)

    @property
    def bandwidth_share(self) -> Floats:
        """Bytes moved over what memory could have moved in the time, in [0, 1]."""
        return _over(self.moved, self.seconds * self.bandwidth)


def _over(amount: Floats, whole: Floats) -> Floats:
    """Ratios; 0 where there is nothing to divide by."""
    return np.divide(amount, whole, out=np.zeros_like(amount), where=whole > 0)


def roofline(plan: Plan) -> Roofline:
    """Collect the kernels of forwards and backwards of a step, mean over pipeline ranks.

    Notes
    -----
    Copies around exchanges of gradients and the optimizer are no kernels of layers, and are left
    out. Where replicas differ, these are those of the first.
    """
    plan = plan.parts[0]
    costs = PlanCosts(plan)
    blocks, orders = Blocks(plan, costs), plan.orders
    pairs = np.stack([orders.kind.astype(np.int64), orders.stage.astype(np.int64)])
    distinct, counts = np.unique(pairs, axis=1, return_counts=True)
    total: dict[tuple[str, str], Floats] = {}
    known: dict[tuple[Template, int], dict[tuple[str, str], Floats]] = {}
    for (kind, number), times in zip(distinct.T.tolist(), counts.tolist(), strict=True):
        stage = plan.layout.stages[number]
        for block in blocks.of(stage, Action(kind)).blocks:
            key = block.template, stage.rank
            if key not in known:
                known[key] = _kernels(costs.stage(stage.rank), block.items)
            for place, figures in known[key].items():
                total[place] = total.get(place, np.zeros(4)) + times * figures
    table = np.array([*total.values()]).reshape(-1, 4) / plan.layout.mesh.pp
    chip, precision = plan.layout.cluster.accelerator, plan.layout.precision
    formats = dict.fromkeys((precision, *([_WIDE] if _WIDE in chip.peak_flops else [])))
    count, seconds, flops, moved = table.T
    return Roofline(
        names=tuple(name for name, _ in total),
        parts=tuple(part for _, part in total),
        count=count,
        seconds=seconds,
        flops=flops,
        moved=moved,
        peaks={name: chip.peak(name) for name in formats},
        bandwidth=chip.memory_bandwidth,
    )


def _kernels(costs: StageCosts, items: Sequence[Item]) -> dict[tuple[str, str], Floats]:
    """Launches, seconds, work and bytes of a block's kernels by name and part."""
    kernels = [item for item in items if isinstance(item, Compute)]
    operators: list[Operator] = [kernel.operator for kernel in kernels]
    seconds, work = costs.kernels(operators), executed_flops(operators)
    result: dict[tuple[str, str], Floats] = {}
    for kernel, took, flops in zip(kernels, seconds.tolist(), work.tolist(), strict=True):
        place = kernel.operator.name, PARTS[part_of(kernel)]
        moved = kernel.operator.bytes + kernel.operator.repeated_bytes
        result[place] = result.get(place, np.zeros(4)) + np.array([1.0, took, flops, moved])
    return result
