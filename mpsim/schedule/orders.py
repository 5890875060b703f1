"""Orders: what each rank does, one action after the other, and nothing about time.

Shapes: N actions over all ranks, P ranks, S stages = P x virtual stages, M microbatches.

An action is a token ``<stage><F|B|I|W><microbatch>``, as PyTorch writes it: ``3F0`` is the forward
of microbatch 0 through stage 3. Stages are numbered through the whole model.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Flags, Ints
from mpsim.errors import ScheduleError
from mpsim.shipped import say


class Action(enum.IntEnum):
    """Kinds of action, with the letter of their token."""

    F = 0  # forward
    B = 1  # full backward: input and weight gradient in one
    I = 2  # input gradient alone; the field's own letter
    W = 3  # weight gradient alone


_LIKE = re.compile(r"[\w();-]{1,24}")  # tokens that are shown
_TOKEN = re.compile(rf"(\d+)([{''.join(Action.__members__)}])(\d+)")
_BLOCK = re.compile(r"\(([^;]+);([^;]+)\)OVERLAP_F_B")
_NAMED_AT_MOST = 5


@structs.dataclass(frozen=True, slots=True, eq=False)
class Orders:
    """The action order of every rank, columnar.

    Shapes: N actions over all ranks, P ranks, S = P x virtual stages.
    """

    schedule: str  # name it was made by
    pp: int
    microbatches: int
    virtual_stages: int
    # int32[S], which rank holds each stage; stage s feeds stage s + 1
    stage_rank: NDArray[np.int32]
    # int64[P + 1], actions of rank r are rows ``rank_ptr[r]:rank_ptr[r + 1]``, in order
    rank_ptr: Ints
    kind: NDArray[np.int8]  # int8[N], `Action` values
    stage: NDArray[np.int32]  # stage, microbatch: int32[N]
    microbatch: NDArray[np.int32]
    # bool[N], optional, whether an action and its rank's next are one block; none by default
    fused: Flags = None  # type: ignore[assignment] # filled in below
    # int32[S], optional, which part of the model each stage is, counted from 0; stage s feeds s + 1
    # when the part of s + 1 follows that of s. By default all stages are one chain; two pipelines
    # in opposite directions are two chains, each with a copy of the weights, and every microbatch
    # goes through one of them
    model_stage: NDArray[np.int32] = None  # type: ignore[assignment] # filled in below
    forward_only: bool = False  # an evaluation step: no backward is missing
    # whether frameworks with blocking communication run it as exchanges between two neighbours at a
    # time, at both ends, as Megatron-LM and PyTorch's loops run GPipe and 1F1B
    exchanges: bool = False
    flushes: int = 1  # whole schedules one after another, each with its own share of microbatches

    def __post_init__(self) -> None:
        if self.fused is None:
            object.__setattr__(self, "fused", np.zeros(len(self.kind), dtype=bool))
        if self.model_stage is None:
            every = np.arange(len(self.stage_rank), dtype=np.int32)
            object.__setattr__(self, "model_stage", every)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def rank(self) -> NDArray[np.int32]:
        """Rank of each action, int32[N]."""
        ranks = np.arange(self.pp, dtype=np.int32)
        return np.repeat(ranks, np.diff(self.rank_ptr))

    @property
    def stages(self) -> int:
        """Stages over all ranks, copies of the weights included."""
        return len(self.stage_rank)

    @property
    def feeds(self) -> Flags:
        """Whether stage s hands its output to stage s + 1, bool[S]."""
        return np.append(np.diff(self.model_stage) == 1, False)

    @property
    def chain(self) -> Ints:
        """Which chain each stage belongs to, int64[S]: 0 unless there are copies of the weights."""
        return np.concatenate([[0], np.cumsum(~self.feeds)[:-1]])

    @property
    def stage_chunk(self) -> NDArray[np.int32]:
        """Which of its rank's chunks (virtual stages) each stage is, in stage order, int32[S]."""
        by_rank = np.argsort(self.stage_rank, kind="stable")
        first = np.searchsorted(self.stage_rank[by_rank], self.stage_rank[by_rank])
        chunk = np.empty_like(self.stage_rank)
        chunk[by_rank] = np.arange(len(by_rank)) - first
        return chunk

    def tokens(self) -> list[list[str]]:
        """Write every rank's order as a list of tokens.

        Examples
        --------
        >>> from mpsim.schedule import make_orders
        >>> make_orders("1f1b", pp=2, microbatches=2).tokens()
        [['0F0', '0F1', '0B0', '0B1'], ['1F0', '1B0', '1F1', '1B1']]
        """
        letters = [action.name for action in Action]
        rows = zip(self.stage.tolist(), self.kind.tolist(), self.microbatch.tolist(), strict=True)
        flat = [f"{stage}{letters[kind]}{microbatch}" for stage, kind, microbatch in rows]
        ends = self.rank_ptr.tolist()
        if not self.fused.any():
            return [flat[start:end] for start, end in itertools.pairwise(ends)]
        fused = self.fused.tolist()
        return [_with_blocks(flat, fused, start, end) for start, end in itertools.pairwise(ends)]

    @classmethod
    def from_tokens(
        cls, tokens: Sequence[Sequence[str]], *, schedule: str = "from tokens"
    ) -> Orders:
        """Read an order from one list of tokens a rank, rank 0 first.

        The stage map, the number of stages and of microbatches are what the tokens mention; call
        `validate` to know that the order is a whole training step. ScheduleError if a token cannot
        be read, there is none, the ranks hold different numbers of stages, or a stage of those
        between the first and the last is on no rank.
        """
        rows = np.array(
            [
                (rank, *action)
                for rank, order in enumerate(tokens)
                for place, token in enumerate(order)
                for action in _parse(token, rank, place)
            ],
            dtype=np.int32,
        ).reshape(-1, 5)
        if not len(rows):
            raise ScheduleError("got no action at all; needed at least one token such as '0F0'")
        rank, stage, kind, microbatch, fused = rows.T
        stage_rank = _stage_rank(rank, stage)
        if len(stage_rank) % len(tokens):
            raise ScheduleError(
                say("schedule.stages_of_ranks", stages=len(stage_rank), ranks=len(tokens))
            )
        return cls(
            schedule=schedule,
            pp=len(tokens),
            microbatches=int(microbatch.max()) + 1,
            virtual_stages=len(stage_rank) // len(tokens),
            stage_rank=stage_rank,
            rank_ptr=np.searchsorted(rank, np.arange(len(tokens) + 1)).astype(np.int64),
            kind=kind.astype(np.int8),
            stage=stage.copy(),
            microbatch=microbatch.copy(),
            fused=fused.astype(bool),
        )

    def repeated(self, times: int) -> Orders:
        """The same orders so many times over, each time with the next microbatches.

        Every rank goes on to the next schedule when it is done with its own part of the last.

        Examples
        --------
        >>> from mpsim.schedule import make_orders
        >>> make_orders("1f1b", pp=2, microbatches=1).repeated(2).tokens()
        [['0F0', '0B0', '0F1', '0B1'], ['1F0', '1B0', '1F1', '1B1']]
        """
        if times == 1:
            return self
        ranks = [np.arange(start, end) for start, end in itertools.pairwise(self.rank_ptr.tolist())]
        rows = np.concatenate([np.tile(rank, times) for rank in ranks])
        turn = np.concatenate([np.repeat(np.arange(times), len(rank)) for rank in ranks])
        return structs.replace(
            self,
            microbatches=self.microbatches * times,
            rank_ptr=self.rank_ptr * times,
            kind=self.kind[rows],
            stage=self.stage[rows],
            microbatch=(self.microbatch[rows] + turn * self.microbatches).astype(np.int32),
            fused=self.fused[rows],
            flushes=self.flushes * times,
        )

    def validate(self) -> Orders:
        """Prove that this is one whole training step: every action once, where and after what it
        must.

        ScheduleError if an action is missing, doubled, on a rank that does not hold its stage, or
        before the action of its own stage and microbatch that it needs; Orders that deadlock across
        ranks are found by the engine, not here.

        Returns
        -------
        Orders
            Itself.
        """
        self._check_ranks()
        count = self._count()
        self._check_doubled(count)
        self._check_missing(count)
        self._check_local_order()
        return self

    def peak_inflight(self) -> list[int]:
        """Most (chunk, microbatch) pairs held at once by each rank, from F until B or W [count].

        Depends on the order alone, never on times. The unit is one chunk.
        """
        return self._peak(released_by=(Action.B, Action.W))

    def peak_until_input_grad(self) -> list[int]:
        """Like `peak_inflight`, but held only until B or I [count]."""
        return self._peak(released_by=(Action.B, Action.I))

    def _peak(self, *, released_by: tuple[Action, Action]) -> list[int]:
        change = (self.kind == Action.F).astype(np.int64) - np.isin(self.kind, released_by)
        held = np.concatenate([[0], np.cumsum(change)])
        ends = self.rank_ptr.tolist()
        return [
            int(held[start : end + 1].max() - held[start])
            for start, end in itertools.pairwise(ends)
        ]

    def _count(self) -> Ints:
        """How often each action occurs, int64[kind, S, M]."""
        shape = (len(Action), len(self.stage_rank), self.microbatches)
        place = np.ravel_multi_index((self.kind, self.stage, self.microbatch), shape)
        return np.bincount(place, minlength=int(np.prod(shape))).reshape(shape)

    def _check_ranks(self) -> None:
        """Stages and microbatches exist, and every action sits on the rank that holds its stage."""
        stages = len(self.stage_rank)
        unknown = (self.stage < 0) | (self.stage >= stages)
        unknown |= (self.microbatch < 0) | (self.microbatch >= self.microbatches)
        if unknown.any():
            raise ScheduleError(
                f"got {self._named(np.flatnonzero(unknown))}; needed stages 0 to {stages - 1} and "
                f"microbatches 0 to {self.microbatches - 1}; remove these actions"
            )
        home = self.stage_rank[self.stage]
        wrong = np.flatnonzero(home != self.rank)
        if len(wrong):
            first = wrong[0]
            raise ScheduleError(
                f"got {self._named(wrong)} on a rank that does not hold the stage; needed stage"
                f" {self.stage[first]} on rank {home[first]} only; move the action to rank"
                f" {home[first]}"
            )

    def _check_doubled(self, count: Ints) -> None:
        """No action occurs twice, and no gradient is computed both by B and by I or W."""
        twice = np.argwhere(count > 1)
        if len(twice):
            raise ScheduleError(say("schedule.twice", actions=_names(twice)))
        parts = count[Action.I] + count[Action.W]
        both = np.argwhere((count[Action.B] > 0) & (parts > 0))
        if len(both):
            actions = _names((Action.B, stage, microbatch) for stage, microbatch in both)
            raise ScheduleError(say("schedule.mixed_backward", actions=actions))

    def _check_missing(self, count: Ints) -> None:
        """Every stage of its chain runs F and either B, or I and W, for every microbatch."""
        missing = (count == 0) & self._expected(count)
        if self.forward_only:
            missing[Action.B :] = False
        split = (count[Action.I] + count[Action.W]) > 0
        missing[Action.B] &= ~split
        missing[Action.I] &= split
        missing[Action.W] &= split
        absent = np.argwhere(missing)
        if len(absent):
            raise ScheduleError(
                f"{_names(absent)} missing; needed F and B (or I and W) of every one of "
                f"{len(self.stage_rank)} stages and {self.microbatches} microbatches; add "
                f"{'it' if len(absent) == 1 else 'them'} to rank "
                f"{self.stage_rank[absent[0][1]]} and so on"
            )

    def _expected(self, count: Ints) -> Flags:
        """Which (stage, microbatch) pairs a step has: a chain a microbatch, bool[S, M]."""
        chains = self.chain
        shape = (int(chains[-1]) + 1, self.microbatches)
        runs = np.zeros(shape, dtype=bool)
        np.logical_or.at(runs, chains, count.any(axis=0))
        twice = np.flatnonzero(runs.sum(axis=0) > 1)
        if len(twice):
            raise ScheduleError(say("schedule.both_ways", microbatch=twice[0]))
        runs[0] |= ~runs.any(axis=0)
        expected: Flags = runs[chains]
        return expected

    def _check_local_order(self) -> None:
        """F before B and I, and I before W, of the same stage and microbatch."""
        shape = (len(Action), len(self.stage_rank), self.microbatches)
        place = np.full(shape, -1, dtype=np.int64)
        place[self.kind, self.stage, self.microbatch] = np.arange(len(self.kind))
        for before, after in ((Action.F, Action.B), (Action.F, Action.I), (Action.I, Action.W)):
            early = np.argwhere((place[after] >= 0) & (place[after] < place[before]))
            if len(early):
                stage, microbatch = early[0]
                rank = self.stage_rank[stage]
                got = place[after, stage, microbatch] - self.rank_ptr[rank]
                need = place[before, stage, microbatch] - self.rank_ptr[rank]
                raise ScheduleError(
                    f"rank {rank} got {stage}{after.name}{microbatch} at place {got}, before"
                    f" {stage}{before.name}{microbatch} at place {need} (places count from 0);"
                    f" needed {before.name} before {after.name}; exchange them"
                )

    def _named(self, rows: Ints) -> str:
        ranks = self.rank
        shown = [
            f"{self.stage[row]}{Action(self.kind[row]).name}{self.microbatch[row]} on rank"
            f" {ranks[row]}"
            for row in rows[:_NAMED_AT_MOST]
        ]
        return _joined(shown, len(rows))


def _shown(token: str) -> str:
    """A token in a message; what is no slip of one is of no schedule, and not shown."""
    return repr(token) if _LIKE.fullmatch(token) else "no action"


class _Token(NamedTuple):
    """An action as a token says it, and whether it is fused with the next."""

    stage: int
    kind: Action
    microbatch: int
    fused: bool


def _parse(token: str, rank: int, place: int) -> list[_Token]:
    """The action of a token; two of a block."""
    block = _BLOCK.fullmatch(token)
    parts = [block[1], block[2]] if block else [token]
    matches = [_TOKEN.fullmatch(part) for part in parts]
    actions = [
        _Token(int(match[1]), Action[match[2]], int(match[3]), block is not None and i == 0)
        for i, match in enumerate(matches)
        if match is not None
    ]
    if len(actions) < len(parts):
        raise ScheduleError(say("schedule.no_token", rank=rank, place=place, got=_shown(token)))
    return actions


def _with_blocks(flat: list[str], fused: list[bool], start: int, end: int) -> list[str]:
    """Tokens of one rank, with blocks written as one."""
    result = []
    row = start
    while row < end:
        width = 2 if fused[row] else 1
        inside = ";".join(flat[row : row + width])
        result.append(f"({inside})OVERLAP_F_B" if width == 2 else inside)
        row += width
    return result


def _stage_rank(rank: NDArray[np.int32], stage: NDArray[np.int32]) -> NDArray[np.int32]:
    """The rank on which each stage is mentioned first, int32[S]."""
    known, first = np.unique(stage, return_index=True)
    if known[-1] != len(known) - 1:
        absent = sorted(set(range(int(known[-1]))) - set(known.tolist()))
        raise ScheduleError(
            f"got stages up to {known[-1]} but nothing of"
            f" {', '.join(map(str, absent[:_NAMED_AT_MOST]))}; needed every stage on some rank;"
            " number the stages from 0 without gaps"
        )
    return rank[first].astype(np.int32)


def _names(actions: Iterable[Iterable[int]]) -> str:
    """Tokens of (kind, stage, microbatch) triples, the first few by name."""
    triples = [tuple(action) for action in actions]
    shown = [f"{stage}{Action(kind).name}{mb}" for kind, stage, mb in triples[:_NAMED_AT_MOST]]
    return _joined(shown, len(triples))


def _joined(shown: list[str], total: int) -> str:
    rest = f" and {total - len(shown)} more" if total > len(shown) else ""
    return ", ".join(shown) + rest
