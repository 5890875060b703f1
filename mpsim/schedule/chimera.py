"""Chimera: two 1F1B pipelines in opposite directions, merged so that each fills the other's bubble.

Shapes: P ranks, K microbatches a direction.

Rank r holds stage r of one direction and stage p - 1 - r of the other, so there are two copies of
the weights. Microbatches go in units of p, half of them each way. In slots of equal length, stage s
of either direction runs forward k of a unit in slot s + 2k and backward k in slot 2p - 1 - s + 2k;
the two directions never want the same slot of a rank, and units follow each other every 2p slots
("direct concatenation"). With tF equal to a full backward that takes 2m + p - 2 slots. Rank r holds
between p/2 + 1 (at both ends) and p (in the middle) stages' activations.

Microbatches 0 to m/2 - 1 go down the ranks and the others up.

References
----------
Li and Hoefler, Chimera: Training Large Neural Networks with Bidirectional Pipelines, 2021, sec. 3.
"""

from __future__ import annotations

import numpy as np

from mpsim.arrays import Ints
from mpsim.errors import ScheduleError
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import Schedule, check_counts, check_even, check_one_chunk
from mpsim.schedule.stages import TwoWay

_NAME = "chimera"


def chimera(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of Chimera.

    `pp`: ranks, even. `microbatches`: per optimizer step over both directions, a multiple of pp.
    `virtual_stages`: 1: one part of the model a rank and direction.

    Examples
    --------
    >>> chimera(pp=2, microbatches=2).tokens()
    [['0F0', '3F1', '3B1', '0B0'], ['2F1', '1F0', '1B0', '2B1']]
    """
    check_counts(_NAME, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk(_NAME, virtual_stages, instead="dualpipe-v")
    check_even(_NAME, "pp", pp, why="the two directions take turns on every rank")
    if microbatches % pp:
        raise ScheduleError(
            f"{_NAME}: got microbatches = {microbatches} with pp = {pp}; needed a multiple of pp,"
            " half of each unit for each direction; set microbatches to"
            f" {(microbatches // pp + 1) * pp}"
        )
    ways = TwoWay(pp=pp, microbatches=microbatches)
    stage, microbatch, kind, slot = _in_slots(ways)
    rank = ways.stage_rank[stage]
    order = np.lexsort((slot, rank))
    return Orders(
        schedule=_NAME,
        pp=pp,
        microbatches=microbatches,
        virtual_stages=virtual_stages,
        stage_rank=ways.stage_rank,
        rank_ptr=np.arange(pp + 1, dtype=np.int64) * (2 * microbatches),
        kind=kind[order].astype(np.int8),
        stage=stage[order].astype(np.int32),
        microbatch=microbatch[order].astype(np.int32),
        model_stage=ways.model_stage,
    )


def _in_slots(ways: TwoWay) -> tuple[Ints, ...]:
    """Stage, microbatch, kind and slot of every action of both directions."""
    stages, each_way = len(ways.stage_rank), ways.microbatches // 2
    stage, place, kind = np.indices((stages, each_way, 2)).reshape(3, -1)
    part = ways.model_stage[stage].astype(np.int64)
    unit, k = np.divmod(place, ways.pp // 2)
    start = np.where(kind == 0, part, 2 * ways.pp - 1 - part)
    slot = 2 * ways.pp * unit + start + 2 * k
    action = np.where(kind == 0, Action.F, Action.B)
    return stage, place + ways.first_microbatch[stage], action, slot


CHIMERA = Schedule(_NAME, chimera, directions=2)
