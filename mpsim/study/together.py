"""Many programs at once: work that points of a study have in common is done once, and programs of
one structure are replayed together.

What they share of their templates, `mpsim.training.blocks` knows, of their graphs
`mpsim.training.build`, of their memory `mpsim.training.memory.account`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from mpsim.engine import Timeline, run
from mpsim.engine.lanes import lanes_of
from mpsim.engine.structure import Structure, digests_of
from mpsim.engine.timeline import Step
from mpsim.errors import MpsimError
from mpsim.limits import unlimited
from mpsim.memo import Memo
from mpsim.program.program import Program
from mpsim.result import JobResult, Result
from mpsim.result.figures import price_of
from mpsim.result.words import Figures, of_capacity
from mpsim.scenario import Scenario
from mpsim.simulate import Prepared, long_step, prepare, simulate, simulate_step
from mpsim.study.journal import Entry
from mpsim.study.rows import reason_of

_POINTS = 256  # scenarios that stay ready from their naming to their turn
_KEPT = 64  # summaries and structures that stay ready
_PRICE = "cluster.price_per_hour"

T = TypeVar("T")

_MET = 4096  # graphs whose programs are counted
_TOGETHER = 3  # vectors from which ordering a structure pays: it costs two replays (measured)


class Graphs:
    """Structures of programs met so far, by the digest of their graph."""

    def __init__(self) -> None:
        self._structures = Memo[str, Structure](_KEPT)
        self._met = Memo[str, int](_MET)

    def makespans(self, programs: Sequence[Program]) -> list[float]:
        """End of the last row of each program [ticks]."""
        return self._each(programs, lambda program: run(program, "replay").makespan, _makespans)

    def timelines(self, programs: Sequence[Program]) -> list[Timeline]:
        """The timeline of each program."""
        return self._each(programs, lambda program: run(program, "replay"), _timelines)

    def _each(
        self,
        programs: Sequence[Program],
        alone: Callable[[Program], T],
        together: Callable[[Structure, Sequence[Program]], list[T]],
    ) -> list[T]:
        groups: dict[str, list[int]] = {}
        for place, graph in enumerate(digests_of(programs)):
            groups.setdefault(graph, []).append(place)
        result: dict[int, T] = {}
        for graph, places in groups.items():
            same = [programs[place] for place in places]
            structure = self._structure(graph, same)
            made = together(structure, same) if structure else [alone(program) for program in same]
            result.update(zip(places, made, strict=True))
        return [result[place] for place in range(len(programs))]

    def _structure(self, graph: str, programs: Sequence[Program]) -> Structure | None:
        """The structure of a graph, None while ordering it would not pay."""
        self._met[graph] = self._met.get(graph, 0) + len(programs)
        if graph not in self._structures and self._met[graph] >= _TOGETHER:
            self._structures[graph] = Structure.of(programs[0])
        return self._structures.get(graph)


class Together:
    """Simulates many scenarios, and keeps what the next ones may have in common with them."""

    def __init__(self) -> None:
        self._graphs = Graphs()
        self._summaries = Memo[str, Entry](_KEPT)
        self._points = Memo[str, Scenario](_POINTS)

    def named(self, scenario: Scenario, values: Mapping[str, object]) -> Scenario:
        """`Scenario.with_values`, kept until its turn comes."""
        self._points[repr(sorted(values.items()))] = point = scenario.with_values(values)
        return point

    def point(self, scenario: Scenario, values: Mapping[str, object]) -> Scenario:
        """A point that was checked when it was named, here or elsewhere."""
        # once, as files that it names may change before the next sweep
        known = self._points.pop(repr(sorted(values.items())), None)
        if known is None:
            known = scenario.with_values(values, sound=True)
        return known

    def summaries(
        self, scenarios: Sequence[Scenario], points: Sequence[Mapping[str, object]]
    ) -> list[Entry | MpsimError]:
        """The summary of each scenario, or the mistake that it raised; of those that differ in a
        price alone, one is simulated.

        `points`: values that make each scenario from one that they share.
        """
        names = [_name(*pair) for pair in zip(scenarios, points, strict=True)]
        first: dict[str, int] = {}
        for place, name in enumerate(names):
            if name not in self._summaries:
                first.setdefault(name, place)
        fresh = list(first.values())
        outcomes = self.simulate([scenarios[place] for place in fresh])
        found = {name: self._summaries[name] for name in names if name in self._summaries}
        failed: dict[str, MpsimError] = {}
        for name, outcome in zip(first, outcomes, strict=True):
            if isinstance(outcome, MpsimError):
                failed[name] = outcome
            else:
                found[name] = self._summaries[name] = _figures(outcome.summary)
        return [
            failed[name] if name in failed else _at_price(found[name], scenario)
            for name, scenario in zip(names, scenarios, strict=True)
        ]

    def simulate(self, scenarios: Sequence[Scenario]) -> list[Result | MpsimError]:
        """`mpsim.simulate` of each scenario, or the mistake that it raised.

        Notes
        -----
        The same figures, bit for bit: programs of one structure share its order, and are replayed
        at once; all are measured side by side.
        """
        outcomes: dict[int, Result | MpsimError] = {}
        ready: dict[int, Prepared] = {}
        for place, scenario in enumerate(scenarios):
            try:
                if long := long_step(scenario):
                    outcomes[place] = long
                    continue
                prepared = prepare(scenario)
                if prepared.replays and prepared.plan.engine != "simpy":
                    ready[place] = prepared
                else:
                    outcomes[place] = prepared.run()
            except MpsimError as error:
                outcomes[place] = error
        try:
            timelines = self._graphs.timelines([prepared.program for prepared in ready.values()])
        except MpsimError:  # one of them cannot run: find out which
            each = enumerate(scenarios)
            return [outcomes[i] if i in outcomes else _outcome(simulate_step, s) for i, s in each]
        clusters = (prepared.plan.class_clusters for prepared in ready.values())
        steps = [Step(t, t.program, each) for t, each in zip(timelines, clusters, strict=True)]
        for (place, prepared), step, lane in zip(
            ready.items(), steps, lanes_of(steps), strict=True
        ):
            outcomes[place] = prepared.result(step.timeline, lane)
        return [outcomes[place] for place in range(len(scenarios))]


def _name(scenario: Scenario, values: Mapping[str, object]) -> str:
    """All that decides a point's summary but the price of its accelerators, if alike."""
    own = "" if scenario.is_mixed else _PRICE
    return repr(sorted(item for item in values.items() if item[0] != own))


def _at_price(summary: Entry, scenario: Scenario) -> Entry:
    """The summary of a step at the price that a scenario has."""
    if scenario.is_mixed:
        return summary
    each = scenario.hardware.accelerator.price_per_hour
    return {**summary, "cost_per_step": price_of(each, scenario.world_size, summary["step_time_s"])}


def _outcome(run: Callable[[Scenario], T], scenario: Scenario) -> T | MpsimError:
    try:
        return run(scenario)
    except MpsimError as error:
        return error


def _makespans(structure: Structure, programs: Sequence[Program]) -> list[float]:
    spans = structure.makespans(np.stack([program.duration for program in programs]))
    held: list[float] = np.maximum(spans, [program.least for program in programs]).tolist()
    return held


def _timelines(structure: Structure, programs: Sequence[Program]) -> list[Timeline]:
    times = zip(*structure.replay(np.stack([p.duration for p in programs])), strict=True)
    return [Timeline(p, *when, engine="replay") for p, when in zip(programs, times, strict=True)]


def compute_rows(
    scenario: Scenario,
    points: Sequence[tuple[Mapping[str, object], str | None]],
    any_size: bool = False,
) -> list[Entry]:
    """Simulate points of a sweep together; runs wherever an executor likes.

    `points`: values of each, and why it is none if that is known. `any_size`: whether points above
    the limits are meant (`mpsim.limits`); else they are rows with a reason.

    Returns: ``summary`` and ``reason`` of each.
    """
    rows: list[Entry] = []
    with unlimited() if any_size else contextlib.nullcontext():
        chosen = [values for values, wrong in points if wrong is None]
        together = points_of(scenario)
        scenarios = [together.point(scenario, values) for values in chosen]
        if any(point.serves for point in scenarios):
            outcomes: Iterator[JobResult | Entry | MpsimError] = (
                _outcome(simulate, point) for point in scenarios
            )
        else:
            outcomes = iter(together.summaries(scenarios, chosen))
        for _, wrong in points:
            outcome = None if wrong is not None else next(outcomes)
            if outcome is None or isinstance(outcome, MpsimError):
                reason = wrong if outcome is None else reason_of(outcome)
                rows.append({"summary": None, "reason": reason})
            elif isinstance(outcome, JobResult):  # of a service
                rows.append({"summary": outcome.summary, "reason": None})
            else:
                rows.append({"summary": outcome, "reason": _does_not_fit(outcome)})
    return rows


class _Own(threading.local):
    """Work that a thread shares among points of the scenario it computes."""

    content: tuple[str, ...] = ()
    together = Together()


_OWN = _Own()


def points_of(scenario: Scenario, *, begin: bool = False) -> Together:
    """Work that this thread shares among points of a scenario, from the `begin` of a sweep on."""
    content = scenario.digest, scenario.name, scenario.source.file
    if begin or _OWN.content != content:
        _OWN.content, _OWN.together = content, Together()
    return _OWN.together


def _figures(summary: Figures) -> Entry:
    """A summary without the sources of its constants: nine tenths, the same in most rows."""
    calibration = {key: own for key, own in summary["calibration"].items() if key != "constants"}
    return {**summary, "calibration": calibration}


def _does_not_fit(summary: Mapping[str, object]) -> str | None:
    if summary["fits_memory"]:
        return None
    memory = summary["memory"]
    assert isinstance(memory, Mapping)
    return f"does not fit: rank {memory['rank']} needs {of_capacity(memory)}"
