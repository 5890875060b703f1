"""Search: the best layouts to train or serve a model; one branch and bound, two spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.study.journal import Journal
from mpsim.study.search.branch_and_bound import BranchAndBound, Progress
from mpsim.study.search.found import Found
from mpsim.study.search.given import Clock, Limits, defaults
from mpsim.study.search.outcome import Search
from mpsim.study.search.service_outcome import FoundService, ServiceSearch
from mpsim.study.search.trainings import Trainings

if TYPE_CHECKING:
    from mpsim.study.search.services import Services

__all__ = ["Found", "FoundService", "Search", "ServiceSearch", "search"]


def search(
    scenario: Scenario,
    over: Mapping[str, Sequence[object]] | None = None,
    *,
    also: Sequence[str] = (),
    objective: str | None = None,
    top: int | None = None,
    front: bool = True,
    explain: bool = False,
    pools: bool = False,
    prune: bool = True,
    max_memory: float | None = None,
    max_price: float | None = None,
    max_power: float | None = None,
    odds: float | None = None,
    budget: float | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Search | ServiceSearch:
    """Find the best layouts to train a model on a cluster, or to serve its requests.

    Parameters
    ----------
    scenario : Scenario
        Its model, cluster, batch or workload, and software; a training's own layout may be illegal.
    over : mapping of str to sequence, optional
        Values of single axes (``parallelism.tp``: [4, 8]) instead of all; other keys of a scenario
        (``cluster.nodes``) are searched as well.
    also : sequence of str
        Words of `FURTHER`: what is searched beside the layout's usual axes, or ``all`` (training).
    objective : str, optional
        Of a training ``time``: seconds a token, or ``cost``: dollars a token, for which the
        accelerators need a price. Of a service one of `SERVICE_OBJECTIVES`; ``gpus`` of a rate with
        limits, ``goodput`` of other limits, else ``throughput``.
    top : int, optional
        How many layouts to rank, 10 by default.
    front : bool
        Whether to simulate what no other beats in step time and memory at once, too (training).
    explain : bool
        Whether to find the best layout without each decision of the best one, too:
        `Search.decisions` (training).
    pools : bool
        Whether to look at prefill and decode on pools of their own, too (services).
    prune : bool
        Whether bounds rule services out; the ranking is the same without.
    max_memory : float, optional
        Of the fullest rank, or the accelerator's; of a service weights, activations, reserve [B].
    max_price : float, optional
        Of all accelerators; of a service of those that a layout uses [USD/h].
    max_power : float, optional
        Of all nodes by their nameplate; of a service its share [W].
    odds : float, optional
        Of fitting that a layout needs, by the interval of its predicted memory; left out, a
        predicted peak that fits is enough (training).
    budget : float, optional
        Wall-clock time after which what was found counts [s].
    resume : path, optional
        JSON-lines file of what was simulated: that is not simulated again, the rest appended.
    progress : callable, optional
        Called with (what is done, how many are done, how many there are).

    Returns Search or ServiceSearch: also when the budget ran out, or after a KeyboardInterrupt;
    `complete` says so. Raises ScenarioError: if no layout is legal, or an argument out of range.

    Examples
    --------
    >>> import mpsim
    >>> scenario = mpsim.load("scenarios/quickstart.yaml")  # doctest: +SKIP
    >>> mpsim.search(scenario, top=3).best.values["parallelism.tp"]  # doctest: +SKIP
    1
    """
    most = int(defaults("search")["top"]) if top is None else top
    shared: dict[str, Any] = {
        "scenario": scenario,
        "over": over or {},
        "objective": objective or "",
        "limits": Limits(max_memory=max_memory, max_price=max_price, max_power=max_power),
        "clock": Clock(budget),
    }
    space: Services | Trainings
    if scenario.serves:
        if scenario.problems:
            raise ScenarioError(scenario.problems)
        # serving is imported by those who serve
        from mpsim.study.search.services import Services as Space

        space = Space(**shared, pools=pools, prunes=prune)
    else:
        space = Trainings(**shared, also=also, front=front, explain=explain, odds=odds)
    journal = Journal(resume, what=space.what)
    run: BranchAndBound[Any] = BranchAndBound(space, top=most, journal=journal, report=progress)
    run.run()
    return space.outcome(run, top=most, remarks=journal.remarks)
