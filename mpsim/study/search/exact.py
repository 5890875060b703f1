"""Exact step times of many layouts: Programs whose insides are summed, replayed together where their structure is the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mpsim.program.program import TICK, Program, Template
from mpsim.schedule import Action
from mpsim.study.search.bound import Bounder
from mpsim.study.search.space import Layout
from mpsim.study.together import Graphs
from mpsim.training.blocks import Block, Blocks
from mpsim.training.build import build_program

__all__ = ["Timer"]


class SummedBlocks(Blocks):
    """Blocks whose rows are sums: the time of an action without the kernels inside."""

    def join(self, action: Action, blocks: Sequence[Block]) -> Template:
        """One template that takes and sends as much as `blocks` do; equal rows share one."""
        key = (action, *(id(one.template) for one in blocks))
        if key not in self._joined:
            inside = [one.template for one in blocks]
            self._joined[key] = dataclasses.replace(
                inside[0],
                parts=np.sum([one.parts for one in inside], axis=0),
                up_bytes=np.array([sum(one.up_bytes.sum() for one in inside)]),
                out_bytes=np.array([sum(one.out_bytes.sum() for one in inside)]),
            )
        return self._joined[key]


class Timer:
    """Times layouts of one scenario.

    Parameters
    ----------
    bounder : Bounder
        Whose cost models and templates serve here too.
    """

    def __init__(self, bounder: Bounder) -> None:
        self._bounder = bounder
        self._graphs = Graphs()

    def seconds(self, layouts: Sequence[Layout]) -> list[float]:
        """Step time of each layout [s], that of `mpsim.simulate` bit for bit.

        Raises
        ------
        DeadlockError
            If an order cannot run.
        """
        programs = [self._program(one) for one in layouts]
        return [span * TICK for span in self._graphs.makespans(programs)]

    def _program(self, layout: Layout) -> Program:
        plan = self._bounder.plan(layout, self._bounder.order(layout).orders())
        shapes = self._bounder.shapes
        costs = shapes.costs(plan)
        blocks = SummedBlocks(plan, costs, like=shapes.blocks(plan, costs))
        return build_program(plan, costs, blocks=blocks)
