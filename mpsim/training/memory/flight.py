"""Flights: how many microbatches a rank holds when, by the order of actions alone.

Shapes: U distinct moments, P pipeline ranks, C chunks, S stages, N actions, K layouts.

What a rank holds at its fullest is the largest of a few sums over its chunks, which are the same
for all layouts with the same order. Orders of 1F1B and its interleaved form repeat themselves in
the middle, so a few rounds of microbatches show every moment of many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.schedule import Action, Orders
from mpsim.training.memory.activations import SIGNS
from mpsim.training.memory.fresh import Fresh, blocks_as_one, fullest


@structs.dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """Distinct moments of an order, without those that hold no more than another."""

    first: Ints  # int64[P], first moment of each rank; moments are sorted by rank
    stage: Ints  # int64[U], stage whose action runs
    # int64[U], 2 where it computes both gradients, 1 where input gradients only, else 0
    differentiates: Ints
    held_stage: Ints  # int64[U, C], stages of the rank's chunks
    # for_input, for_weight: float64[U, C], microbatches of each chunk that are held for input
    # gradients and for weight gradients
    for_input: Floats
    for_weight: Floats

    @classmethod
    def of(cls, orders: Orders, *, beside: bool = False) -> Flight:
        """Moments of an order that can be the fullest; `beside`: its fused blocks run as one."""
        rank, chunk = orders.rank, orders.stage_chunk[orders.stage]
        chunks = int(orders.stage_chunk.max()) + 1
        change = np.array([SIGNS[action][:2] for action in Action])[orders.kind]
        levels = np.zeros((2, len(orders), chunks), dtype=np.int32)
        levels[:, np.arange(len(orders)), chunk] = change.T
        after = levels.cumsum(axis=1)
        before = after - levels
        if beside:
            blocks_as_one(before.swapaxes(0, 1), after.swapaxes(0, 1), orders.fused)
        held = np.where((orders.kind == Action.F)[:, None], after, before)
        differentiates = 2 * (orders.kind == Action.B) + (orders.kind == Action.I)
        moments = np.column_stack(
            [rank, orders.stage * (differentiates > 0), differentiates, *held]
        )
        moments = _fullest_moments(np.unique(moments, axis=0))
        stages = np.argsort(orders.stage_rank, kind="stable").reshape(orders.pp, chunks)
        return cls(
            first=np.searchsorted(moments[:, 0], np.arange(orders.pp)),
            stage=moments[:, 1],
            differentiates=moments[:, 2],
            held_stage=stages[moments[:, 0]],
            for_input=moments[:, 3 : 3 + chunks].astype(np.float64),
            for_weight=moments[:, 3 + chunks :].astype(np.float64),
        )

    def peaks(
        self, kept: Mapping[str, Floats], fresh: Sequence[Fresh]
    ) -> tuple[Floats, Floats, Floats]:
        """Most that each rank holds at once, the part of it that is no activation, and what other
        moments need, all and what stays of it.

        `kept` (mapping of str to float64[K, S]): fields of `Kept` of each stage [B]. `fresh`: what
        the backward of each layout makes for itself. Returns two float64[K, P] and a float64[2, K,
        P], as `mpsim.training.memory.activations.held_by_rank` has them.
        """
        for_input = kept["for_input"] + kept["logits"]
        backward, whole = self.differentiates > 0, self.differentiates > 1
        before = np.zeros((len(for_input), len(self.stage)))
        for chunk in range(self.held_stage.shape[1]):
            stage = self.held_stage[:, chunk]
            before += for_input[:, stage] * self.for_input[:, chunk]
            before += kept["for_weight"][:, stage] * self.for_weight[:, chunk]
        columns = {name: column[:, self.stage] for name, column in kept.items()}
        after = before - np.where(backward, for_input[:, self.stage], 0.0)
        after -= np.where(whole, columns["for_weight"], 0.0)
        most, apart, *others = np.zeros((4, *before.shape))
        for each in dict.fromkeys(fresh):  # few: one for each way to share states
            rows = np.array([each == layout_fresh for layout_fresh in fresh])
            own = {name: column[rows] for name, column in columns.items()}
            moment = fullest(before[rows], after[rows], own, backward, whole, each)
            most[rows], apart[rows] = moment.most, moment.apart
            others[0][rows], others[1][rows] = moment.elsewhere, moment.stays
        return *self._fullest(most, apart), np.maximum.reduceat(others, self.first, axis=2)

    def _fullest(self, most: Floats, own: Floats) -> tuple[Floats, Floats]:
        """The largest of each rank's moments, and what belongs to it."""
        ranks = np.split(np.arange(most.shape[1]), self.first[1:])
        fullest = np.stack([rank[0] + most[:, rank].argmax(axis=1) for rank in ranks], axis=1)
        return np.take_along_axis(most, fullest, axis=1), np.take_along_axis(own, fullest, axis=1)


def _fullest_moments(moments: Ints) -> Ints:
    """Moments, int64[U, 3 + 2 C] in order, without those outdone by the next one of their stage."""
    alike = (moments[:-1, :3] == moments[1:, :3]).all(axis=1)
    outdone = alike & (moments[:-1, 3:] <= moments[1:, 3:]).all(axis=1)
    left: Ints = moments[~np.append(outdone, False)]
    return left
