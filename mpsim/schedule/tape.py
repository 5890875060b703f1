"""Orders from lists: tapes, for schedules written as phases, and steps, as searches write.

A tape is what one rank does, action after action. Each (kind, stage) counts its own microbatches,
so a phase says "a forward of this stage" and the tape knows which. Weight gradients wait in a queue
from their input gradient on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.schedule.orders import Action, Orders

Step = tuple[int, int, int]  # an action as (`Action` value, stage, microbatch)


class Tape:
    """The growing order of one rank.

    Examples
    --------
    >>> tape = Tape()
    >>> tape.run(0, "FFI")
    >>> tape.weight()
    >>> list(zip(tape.kind, tape.stage, tape.microbatch))
    [(<Action.F: 0>, 0, 0), (<Action.F: 0>, 0, 1), (<Action.I: 2>, 0, 0), (<Action.W: 3>, 0, 0)]
    """

    __slots__ = ("_forwards", "_gradients", "_waiting", "fused", "kind", "microbatch", "stage")

    def __init__(self) -> None:
        self.kind: list[Action] = []
        self.stage: list[int] = []
        self.microbatch: list[int] = []
        self.fused: list[bool] = []
        self._forwards: dict[int, int] = {}
        self._gradients: dict[int, int] = {}
        self._waiting: list[tuple[int, int]] = []

    def run(self, stage: int, letters: str) -> None:
        """Append an action of `stage` for each letter F, B, I and W, for its next microbatch."""
        for letter in letters:
            if letter == "W":
                self.weight(stage)
            else:
                self._append(Action[letter], stage)

    def overlap(self, forward_stage: int, backward_stage: int) -> None:
        """Append a forward and a full backward fused into one block."""
        self._append(Action.F, forward_stage)
        self.fused[-1] = True
        self._append(Action.B, backward_stage)

    def weight(self, stage: int | None = None) -> None:
        """Append the weight gradient that has waited longest, of any stage or of one."""
        place = next(i for i, (owner, _) in enumerate(self._waiting) if stage in (None, owner))
        self._write(Action.W, *self._waiting.pop(place))

    def forwards(self, stage: int) -> int:
        """Number of forwards of `stage` there are so far."""
        return self._forwards.get(stage, 0)

    def waiting(self, stage: int) -> int:
        """Number of weight gradients of `stage` that wait."""
        return sum(owner == stage for owner, _ in self._waiting)

    def _append(self, kind: Action, stage: int) -> None:
        count = self._forwards if kind == Action.F else self._gradients
        microbatch = count.get(stage, 0)
        count[stage] = microbatch + 1
        if kind == Action.I:
            self._waiting.append((stage, microbatch))
        self._write(kind, stage, microbatch)

    def _write(self, kind: Action, stage: int, microbatch: int) -> None:
        self.kind.append(kind)
        self.stage.append(stage)
        self.microbatch.append(microbatch)
        self.fused.append(False)


def from_tapes(
    schedule: str,
    tapes: Sequence[Tape],
    *,
    microbatches: int,
    stage_rank: NDArray[np.int32],
    model_stage: NDArray[np.int32] | None = None,
    first_microbatch_S: NDArray[np.int32] | None = None,
) -> Orders:
    """Orders whose rank r runs ``tapes[r]``.

    `schedule`: name the orders carry. `tapes`: one a rank. `microbatches`: per optimizer step;
    actions of further ones are left out. `stage_rank` (int32[S]): rank of each stage. `model_stage`
    (int32[S], optional): part of the model each stage is, as of `Orders`. `first_microbatch_S`
    (int32[S], optional): what a stage's counts start from; 0 by default.
    """
    stages = len(stage_rank)
    first_S = np.zeros(stages, np.int32) if first_microbatch_S is None else first_microbatch_S
    part = np.arange(stages, dtype=np.int32) if model_stage is None else model_stage
    rank = np.repeat(np.arange(len(tapes)), [len(tape.kind) for tape in tapes])
    kind, stage, counted, fused = (
        np.concatenate([np.asarray(getattr(tape, column), dtype) for tape in tapes])
        for column, dtype in (
            ("kind", np.int8),
            ("stage", np.int32),
            ("microbatch", np.int32),
            ("fused", np.bool_),
        )
    )
    microbatch = counted + first_S[stage]
    within = np.flatnonzero(microbatch < microbatches)
    return Orders(
        schedule=schedule,
        pp=len(tapes),
        microbatches=microbatches,
        virtual_stages=(int(part.max()) + 1) // len(tapes),
        stage_rank=stage_rank,
        rank_ptr=np.searchsorted(rank[within], np.arange(len(tapes) + 1)).astype(np.int64),
        kind=kind[within],
        stage=stage[within],
        microbatch=microbatch[within],
        fused=fused[within],
        model_stage=part,
    )


def from_steps(
    schedule: str,
    steps: Sequence[Sequence[Step]],
    *,
    microbatches: int,
    stage_rank: NDArray[np.int32],
) -> Orders:
    """Orders whose rank r runs ``steps[r]``, validated. `schedule`: name the orders carry. `steps`:
    one a rank. `microbatches`: per optimizer step. `stage_rank` (int32[S]): rank of each stage.
    """
    flat = np.array([step for rank in steps for step in rank], dtype=np.int32).reshape(-1, 3)
    return Orders(
        schedule=schedule,
        pp=len(steps),
        microbatches=microbatches,
        virtual_stages=len(stage_rank) // len(steps),
        stage_rank=stage_rank,
        rank_ptr=np.cumsum([0, *map(len, steps)]).astype(np.int64),
        kind=flat[:, 0].astype(np.int8),
        stage=flat[:, 1].copy(),
        microbatch=flat[:, 2].copy(),
    ).validate()


def steps_of(orders: Orders) -> list[list[Step]]:
    """The actions of every rank as lists of Step: the reverse of `from_steps`."""
    rows = zip(orders.kind.tolist(), orders.stage.tolist(), orders.microbatch.tolist(), strict=True)
    flat = list(rows)
    ends = orders.rank_ptr.tolist()
    return [flat[ends[rank] : ends[rank + 1]] for rank in range(orders.pp)]
