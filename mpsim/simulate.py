"""From a Scenario to a Result: the one door for commands and studies.

`simulate` goes the whole way. `prepare` stops before the engine: a study changes costs or durations
of what was prepared and lets it run as often as it likes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpsim import structs
from mpsim.cost import Constant, Constants
from mpsim.engine import Timeline, run, run_interfering
from mpsim.engine.steady import Fold
from mpsim.errors import DeadlockError, MpsimError, Problem, ScenarioError, nearest
from mpsim.framework import BlockingSends
from mpsim.program.links import links_of
from mpsim.program.program import Program
from mpsim.result import JobResult, Result
from mpsim.scenario import Scenario
from mpsim.scenario.extent import refuse_large_scenario
from mpsim.schedule import schedule
from mpsim.training.build import build_program
from mpsim.training.long_step import LongResult, lengths_of
from mpsim.training.pipeline import from_orders
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.planning import make_plan
from mpsim.training.result import TrainingResult

if TYPE_CHECKING:
    from mpsim.engine.lanes import Lane
    from mpsim.program.devices import Devices
    from mpsim.serving import ServicePlan, ServiceResult


@structs.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prepared:
    """A step that is ready to run."""

    scenario: Scenario
    plan: Plan
    costs: PlanCosts
    program: Program  # of the plan at these costs

    def __repr__(self) -> str:
        return f"Prepared({self.plan!r}, {self.program!r})"

    @classmethod
    def of(cls, result: Result) -> Prepared:
        """The prepared step that a result was simulated from."""
        return cls(result.scenario, result.plan, PlanCosts(result.plan), result.program)

    def run(self) -> TrainingResult:
        """Simulate the step."""
        return self.result(self.timeline())

    def timeline(self) -> Timeline:
        """Run the program on the engine that the scenario asks for. ScenarioError if operations
        wait for each other, as where messages block in the wrong schedule.
        """
        try:
            return self._run()
        except DeadlockError as error:
            self.check_order()  # which names actions, where the run was of kernels
            raise self._stuck(error) from None

    def check_order(self) -> None:
        """Refuse, as `timeline` does, a step whose operations wait for each other, without
        simulating anything else.
        """
        try:
            run(self.program, "replay")
        except DeadlockError as error:
            raise self._stuck(error) from None

    def _stuck(self, error: DeadlockError) -> ScenarioError:
        """The refusal of an order of actions, at its place in the file."""
        sends = self.plan.layout.framework.pipeline.blocking_sends
        mend = ""
        if sends is not BlockingSends.NEVER:
            mend = (
                f"\n{self.plan.layout.framework.name} lets a rank wait for its messages"
                f" (blocking_sends: {sends}), which this order was not made for: set"
                " framework.blocking_sends to never, or take another schedule, such as 1f1b"
            )
        problem = Problem(f"the order cannot run: {error}{mend}", key="schedule")
        return ScenarioError(self.scenario.locate([problem]))

    def _run(self) -> Timeline:
        program, plan = self.program, self.plan
        if plan.interference:
            shared = self.devices()
            analytic = plan.network == "analytic"
            return run_interfering(shared, None if analytic else links_of(shared.program, plan))
        if plan.network == "analytic":
            return run(program, plan.engine)
        # what sends over NICs inside an action has to be a row to meet the rest there
        if any(template.out_bytes.any() for template in program.templates):
            from mpsim.program.expand import expand

            program = expand(program)
        return run(program, plan.engine, links_of(program, plan))

    def devices(self) -> Devices:
        """Rows as devices see them; a row loses at least the average without interference."""
        from mpsim.program.devices import devices_of

        usual = structs.replace(self.plan, interference=False)
        costs = PlanCosts(usual, like=self.costs)
        return devices_of(self.program, self.plan, build_program(usual, costs))

    def result(self, timeline: Timeline, lane: Lane | None = None) -> TrainingResult:
        """The result of a run of this step. `lane`: where it was simulated with others."""
        devices: tuple[Constant, ...] = ()
        if self.plan.interference:
            from mpsim.program.devices import interference_constants

            devices = interference_constants(self.plan)
        return TrainingResult(
            scenario=self.scenario,
            timeline=timeline,
            constants=Constants((*self.costs.provenance(), *devices)),
            program=self.program,
            plan=self.plan,
            lane=lane,
        )

    def at(self, costs: PlanCosts) -> Prepared:
        """The same actions in the same order at other costs."""
        return Prepared(self.scenario, costs.plan, costs, build_program(costs.plan, costs))

    @property
    def replays(self) -> bool:
        """Whether every duration is known before the step: many steps are one array operation."""
        return self.plan.network == "analytic" and not self.plan.interference


def prepare(scenario: Scenario) -> Prepared:
    """Resolve a scenario, cost it, build its program; ScenarioError with every problem."""
    plan = resolve(scenario)
    try:
        costs = PlanCosts(plan)
        if plan.schedule and schedule(plan.schedule).is_timed:
            from mpsim.training.pipeline import with_timed_orders

            plan = with_timed_orders(plan, costs)
            if plan.classes:
                costs = PlanCosts(plan)  # those of its classes of replicas go with their orders
        return Prepared(scenario, plan, costs, build_program(plan, costs))
    except ScenarioError:
        raise
    except MpsimError as error:
        raise ScenarioError(f"{plan.name}: {error}") from error


def ready(scenario: Scenario) -> Prepared | ServicePlan:
    """Go as far as it takes to refuse what `simulate` refuses: what ``mpsim check`` does."""
    if scenario.serves:
        from mpsim.serving import make_service

        plan = make_service(scenario)
        refuse_large_scenario(scenario, len(plan.requests()))
        for pool in plan.pools.values():
            _ = pool.prices  # which no library or rate may be missing for
        return plan
    prepared = prepare(scenario)
    prepared.check_order()
    return prepared


def simulate(
    scenario: Scenario, *, progress: Callable[[int, int], None] = lambda *_: None
) -> Result | ServiceResult:
    """Simulate what a scenario asks for: a training step, or a service, which reports requests that
    have ended and all there are to `progress`. ScenarioError with every problem of the scenario.
    """
    if not scenario.serves:
        return simulate_step(scenario)
    # with simpy, which most training steps do without
    from mpsim.serving import make_service, run_service

    return run_service(scenario, make_service(scenario), progress=progress)


def simulate_step(scenario: Scenario) -> Result:
    """Simulate one training step: Scenario, Plan, Program, Timeline, Result.

    Raises ScenarioError: with every problem of the scenario. Raises DeadlockError: if the
    schedule's operations wait for each other.
    """
    return long_step(scenario) or prepare(scenario).run()


def long_step(scenario: Scenario) -> Result | None:
    """A step of so many microbatches that its first and last tell of all; None of others."""
    ways = list(lengths_of(scenario))
    if not ways or scenario.problems:
        return None
    for lengths in ways:
        plan = make_plan(scenario, lengths.short)
        costs = PlanCosts(plan)
        short = Prepared(scenario, plan, costs, build_program(plan, costs)).run()
        if long := LongResult.of(short, lengths, functools.partial(_whole_step, scenario)):
            return long
    return None


def _whole_step(scenario: Scenario, fold: Fold, further: int) -> TrainingResult:
    """A step as a fold of a short one tells it."""
    prepared = prepare(scenario)
    return prepared.result(fold.whole(prepared.program, further))


def resolve(scenario: Scenario) -> Plan:
    """Work out the Plan of a scenario, and refuse orders that cannot run."""
    plan = make_plan(scenario)
    if plan.schedule:
        return plan
    try:  # orders from a file
        run(from_orders(plan.orders, forward=1, backward=1, weight=1), "replay")
    except DeadlockError as error:
        problem = Problem(f"the order cannot run: {error}", key="schedule.file")
        raise ScenarioError(scenario.locate([problem])) from None
    return plan


def result_class(kind: str) -> type[JobResult]:
    """The class of the results of a kind of job. Raises ScenarioError: if there is no such kind."""
    if kind == TrainingResult.kind:
        return TrainingResult
    from mpsim.serving import ServiceResult

    if kind == ServiceResult.kind:
        return ServiceResult
    kinds = (TrainingResult.kind, ServiceResult.kind)
    raise ScenarioError(f"got a job of kind {kind!r}; {nearest(kind, kinds)}")
