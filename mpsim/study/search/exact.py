"""Exact step times of many layouts: Programs whose insides are summed, replayed together where their structure is the same.

Shapes: K layouts, N rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from mpsim.engine import Structure
from mpsim.engine import run as run_program
from mpsim.program.blocks import Block, Blocks
from mpsim.program.build import build_program
from mpsim.program.program import TICK, Program, Template
from mpsim.schedule import Action
from mpsim.study.search.bound import Bounder
from mpsim.study.search.space import Layout

__all__ = ["Timer"]

_KEPT = 64  # structures that stay ready
_TOGETHER = 3  # from so many vectors ordering a structure pays (it costs about two replays)


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
        self._structures: dict[str, Structure] = {}
        self._met: dict[str, int] = {}

    def seconds(self, layouts: Sequence[Layout]) -> list[float]:
        """Step time of each layout [s], that of `mpsim.simulate` bit for bit.

        Raises
        ------
        DeadlockError
            If an order cannot run.
        """
        programs = [self._program(one) for one in layouts]
        groups: dict[str, list[int]] = {}
        for place, program in enumerate(programs):
            groups.setdefault(_graph(program), []).append(place)
        result = [0.0] * len(layouts)
        for graph, places in groups.items():
            for place, took in zip(
                places, self._replay(graph, [programs[one] for one in places]), strict=True
            ):
                result[place] = took * TICK
        return result

    def _program(self, layout: Layout) -> Program:
        plan = self._bounder.plan(layout, self._bounder.order(layout).orders())
        shapes = self._bounder.shapes
        costs = shapes.costs(plan)
        blocks = SummedBlocks(plan, costs, like=shapes.blocks(plan, costs))
        return build_program(plan, costs, blocks=blocks)

    def _replay(self, graph: str, programs: list[Program]) -> list[float]:
        """Makespans of programs of one graph [ticks]."""
        self._met[graph] = self._met.get(graph, 0) + len(programs)
        if graph not in self._structures and self._met[graph] < _TOGETHER:
            return [run_program(one, "replay").makespan for one in programs]
        if graph not in self._structures:
            if len(self._structures) >= _KEPT:
                del self._structures[next(iter(self._structures))]
            self._structures[graph] = Structure.of(programs[0])
        durations = np.stack([one.duration for one in programs])
        spans: list[float] = self._structures[graph].makespans(durations).tolist()
        return spans


def _graph(program: Program) -> str:
    """Digest of what decides the structure of a program."""
    digest = hashlib.blake2b(digest_size=16)
    for column in (program.dep_ptr, program.dep, program.slot_ptr, program.slot):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()
