"""One search for clusters that differ in their links alone: the layouts of the search on the best
links of all are timed again on each of them.

No step is shorter on thinner links: a layout's time, or bound, on the best of all links bounds it
on every other. So layouts are bounded anew and timed in that order until none that is left can beat
the best, and the answer is that of a search on each cluster.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mpsim.errors import MpsimError, ScenarioError
from mpsim.scenario import Scenario
from mpsim.simulate import resolve
from mpsim.study.journal import Journal
from mpsim.study.search.bound import Bounder
from mpsim.study.search.branch_and_bound import BranchAndBound, Labels
from mpsim.study.search.given import Clock, ranked_by
from mpsim.study.search.outcome import REASONS
from mpsim.study.search.trainings import Candidate, Timer, Trainings, seconds_of
from mpsim.study.together import Graphs
from mpsim.training.planning import Division, has_parts, recompute_of

LINKS = ("cluster.nics_per_node", "cluster.nic", "cluster.fabric")
"""Keys of the network between nodes."""


class Best(NamedTuple):
    """The best layout on one cluster."""

    values: Mapping[str, object]  # by dotted key
    step_time_s: float  # simulated [s]
    # whether no other layout can be better; a search that a budget cut short proves nothing
    proved: bool


def best_layouts(
    scenarios: Sequence[Scenario], *, budget: float | None = None
) -> list[Best | MpsimError]:
    """The best layout of each scenario, whose networks alone differ; an error where none is."""
    known = None
    if len(scenarios) > 1 and not any(has_parts(scenario) for scenario in scenarios):
        with contextlib.suppress(MpsimError):  # where no envelope is legal, one of them may be
            known = _known(_envelope(scenarios), budget)
    answers: list[Best | MpsimError] = []
    graphs = Graphs()  # links change what rows take, not which there are
    for scenario in scenarios:
        try:
            answers.append(_timed(scenario, known or _known(scenario, budget), graphs))
        except MpsimError as error:
            answers.append(error)
    return answers


class _Fastest(Trainings):
    """A search for the best layout alone: nobody asks for ties."""

    def labellings(self) -> Iterator[Labels[Candidate]]:
        """No further questions."""
        return iter(())


class _Known(NamedTuple):
    """Layouts that fit by their least ranked seconds, whether these are all, words for none."""

    layouts: list[tuple[float, Candidate]]
    whole: bool
    nothing: str


def _known(scenario: Scenario, budget: float | None) -> _Known:
    space = _Fastest(scenario=scenario, front=False, clock=Clock(budget))
    run = BranchAndBound(space, top=1, journal=Journal(None))
    run.run()
    if run.interrupted:  # what was not looked at may be better than what was found
        raise KeyboardInterrupt
    timed = [(ranked_by(took, candidate.odds), candidate) for candidate, took in space.timed]
    bounded = [(ranked_by(candidate.bound, candidate.odds), candidate) for candidate in run.left]
    counted = "; ".join(f"{n:,} {REASONS[name]}" for name, n in space.counts.items() if n)
    nothing = f"{scenario.name}: no layout fits ({counted})"
    layouts = sorted([*timed, *bounded], key=lambda pair: pair[0])
    return _Known(layouts, run.complete, nothing)


def _timed(scenario: Scenario, known: _Known, graphs: Graphs) -> Best:
    """The best of known layouts on the cluster of a scenario."""
    if not known.layouts:
        raise ScenarioError(known.nothing)
    values = known.layouts[0][1].layout.values()
    plan = resolve(scenario.with_values(values))
    whole = None if has_parts(scenario) else scenario.hardware
    bounder = Bounder(plan, Division.of(scenario), recompute_of(scenario), whole)
    timer = Timer(bounder, scenario, graphs)
    best, step = (math.inf, math.inf, ""), math.inf
    # what is known holds for any links: bounded on these first, the most promising first
    waiting = [(least, place, False) for place, (least, _) in enumerate(known.layouts)]
    while waiting and waiting[0][0] <= best[0]:
        least, place, is_bounded = heapq.heappop(waiting)
        candidate = known.layouts[place][1]
        if not is_bounded:
            bound = float(bounder.bound([candidate.layout]).bound[0])
            entry = max(least, ranked_by(bound, candidate.odds)), place, True
            heapq.heappush(waiting, entry)
            continue
        (seconds,) = seconds_of(timer, [candidate.layout])
        if seconds is None:
            continue
        # of equal ones the leanest, then by name, whatever else was looked at
        mine = candidate.layout.values()
        ranked = ranked_by(seconds, candidate.odds), candidate.memory, str(mine)
        if ranked < best:
            best, step, values = ranked, seconds, mine
    if step == math.inf:
        raise ScenarioError(f"{scenario.name}: every layout that fits would deadlock")
    return Best(values, step, known.whole)


def _envelope(scenarios: Sequence[Scenario]) -> Scenario:
    """A scenario with a network as good as each: the fastest NICs, one switch without latency."""
    machines = [scenario.hardware for scenario in scenarios]
    fastest = max(machines, key=lambda machine: machine.node.nic_bandwidth)
    place = machines.index(fastest)
    latency = min(machine.node.nic.latency for machine in machines)
    values: dict[str, object] = {
        "cluster.nics_per_node": max(machine.node.nics for machine in machines),
        "cluster.nic.bandwidth": f"{max(m.node.nic.bandwidth for m in machines)!r} B/s",
        "cluster.nic.latency": f"{latency!r} s",
        "cluster.fabric": {"kind": "single-switch", "oversubscription": 1, "hop_latency": "0 s"},
    }
    return scenarios[place].with_values(values, checked=False)
