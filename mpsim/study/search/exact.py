"""Exact step times of many layouts: Programs whose insides are summed, replayed together where their structure is the same."""

from __future__ import annotations

from collections.abc import Sequence

from mpsim.hardware.routes import routes_of
from mpsim.program.program import TICK, Program
from mpsim.scenario import Scenario
from mpsim.simulate import prepare
from mpsim.study.search.bound import Bounder
from mpsim.study.search.space import Layout
from mpsim.study.together import Graphs
from mpsim.training.blocks import Blocks
from mpsim.training.build import build_program

__all__ = ["Timer"]


class Timer:
    """Times layouts of one scenario.

    Parameters
    ----------
    bounder : Bounder
        Whose cost models and templates serve here too.
    scenario : Scenario
        With all but the layouts.
    """

    def __init__(self, bounder: Bounder, scenario: Scenario) -> None:
        self._bounder, self._scenario = bounder, scenario
        self._graphs = Graphs()

    def seconds(self, layouts: Sequence[Layout]) -> list[float]:
        """Step time of each layout [s], that of `mpsim.simulate` bit for bit.

        Raises
        ------
        DeadlockError
            If an order cannot run.
        """
        simulation = self._scenario.simulation
        if simulation.network != "analytic" or simulation.interference:
            # rates change while a step runs: each is simulated by itself
            scenarios = [self._scenario.with_values(layout.values()) for layout in layouts]
            return [prepare(scenario).timeline().step_time_s for scenario in scenarios]
        programs = [self._program(layout) for layout in layouts]
        return [span * TICK for span in self._graphs.makespans(programs)]

    def _program(self, layout: Layout) -> Program:
        plan = self._bounder.plan(layout, self._bounder.order(layout).orders())
        shapes = self._bounder.shapes
        costs = shapes.costs(plan)
        # where links of the fabric may be too thin, the kernels that send have to be known one by one
        sums = not routes_of(plan.layout.cluster).names
        blocks = Blocks(plan, costs, like=shapes.blocks(plan, costs), sums=sums)
        return build_program(plan, costs, blocks=blocks)
