"""Work that points of a study have in common, done once.

Points of one *kind* differ in their links and prices only. They run the same kernels; while the collectives inside their actions take the same
time too, they share every template, and only what crosses the links that differ is worked out again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from mpsim.memo import Memo
from mpsim.parallel import Communication, Item, Waits
from mpsim.program.program import Program
from mpsim.result import Memory
from mpsim.training.blocks import Blocks
from mpsim.training.build import build_program
from mpsim.training.costs import PlanCosts, StageCosts
from mpsim.training.memory import account_memory
from mpsim.training.plan import Plan
from mpsim.workload import Phase

__all__ = ["Shared", "kind_of"]

Answers: TypeAlias = tuple[object, ...]

_KEPT = 64  # kinds, and sets of blocks, that stay ready
_LINKS = ("cluster.nic", "cluster.scale_up", "cluster.fabric", "cluster.price_per_hour")


def kind_of(values: Mapping[str, object]) -> str:
    """Values that decide the kernels of a point of a sweep: all but those of links and prices.

    Examples
    --------
    >>> kind_of({"cluster.nic.bandwidth": "200 Gb/s", "parallelism.tp": 2})
    "[('parallelism.tp', 2)]"
    """
    return repr(sorted((key, value) for key, value in values.items() if not _is_link(key)))


def _is_link(key: str) -> bool:
    return any(key == link or key.startswith(f"{link}.") for link in _LINKS)


class Shared:
    """Builds programs of points, and keeps what later points of the same kind can use."""

    def __init__(self) -> None:
        self._kinds = Memo[str, _Kind](_KEPT)
        self._blocks: Known = Memo(_KEPT)

    def build(self, kind: str, plan: Plan, costs: PlanCosts) -> tuple[Program, Memory]:
        """`build_program` and `account_memory` of a point, bit for bit.

        Parameters
        ----------
        kind : str
            See `kind_of`.
        plan : Plan
            Whose ranks and replicas have nodes of one sort.
        costs : PlanCosts
            Gets the kernel model of an earlier point of its kind.
        """
        own = self._kinds.get_or(kind, lambda: _Kind(kind, plan, self._blocks))
        return own.build(plan, costs), own.memory


class _Kind:
    """Blocks of the points of one kind, by what the links inside their actions answer."""

    def __init__(self, name: str, plan: Plan, known: Known) -> None:
        self._name = name
        self._known = known
        self._asked: dict[tuple[object, Communication], None] = {}
        self.memory: Memory = account_memory(plan)

    def build(self, plan: Plan, costs: PlanCosts) -> Program:
        """Build the program of a point, with the blocks of another one where it can."""
        answers = self._answers(costs)
        if answers in self._known:
            blocks, questions, other = self._known[answers]
            timed, kernels = questions.timed, costs.kernels
            costs.kernels = other.kernels
            program = build_program(plan, costs, blocks=blocks)
            if questions.timed == timed:
                return program
            costs.kernels = kernels  # it has blocks that the other had not
        questions = _Questions(self._asked)
        own = Blocks(plan, costs, watch=questions)
        program = build_program(plan, costs, blocks=own)
        self._known[self._answers(costs)] = own, questions, costs
        return program

    def _answers(self, costs: PlanCosts) -> Answers:
        """Places of the groups of a point, and their answers to everything that was asked so far."""
        stages = {stage.key: stage for stage in map(costs.stage, np.unique(costs.alike).tolist())}
        answers = (
            stages[key].collective(question) for key, question in self._asked if key in stages
        )
        return (self._name, costs.alike.tobytes(), *stages, *answers)


class _Questions:
    """Collectives that blocks ask the price of, and the number of templates they have timed; see `Blocks`."""

    def __init__(self, asked: dict[tuple[object, Communication], None]) -> None:
        self._asked = asked
        self.timed = 0

    def __call__(self, costs: StageCosts, items: Sequence[Item]) -> None:
        self.timed += 1
        for item in items:
            if isinstance(item, Communication):
                self._asked[costs.key, _question(item)] = None


def _question(item: Communication) -> Communication:
    """A collective without its place among others, which does not decide its time."""
    return Communication(
        "", item.axis, item.kind, item.size, Waits.ALL, Phase.FORWARD, across=item.across
    )


Known: TypeAlias = Memo[Answers, tuple[Blocks, _Questions, PlanCosts]]
