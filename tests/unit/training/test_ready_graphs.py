"""Graphs of steps that stay ready for others of their shape."""

from __future__ import annotations

import pytest

from mpsim import memo, structs
from mpsim.schedule import Action
from mpsim.training import build
from mpsim.training.blocks import Blocks
from mpsim.training.plan import Plan, PlanCosts
from tests.plans import small_plan


def test_graphs_stay_ready_by_their_rows_not_by_their_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first step is not laid out again after 17 small ones, and is where no two of them fit."""
    made = []
    lay_out = build._lay_out

    def counted(shape: build._Shape) -> build._StepGraph:
        made.append(shape)
        return lay_out(shape)

    monkeypatch.setattr(build, "_lay_out", counted)
    plans = [small_plan(pp=1, dp=1, microbatches=count) for count in range(1, 19)]
    memo.forget()
    for plan in [*plans, plans[0]]:
        build.build_program(plan)
    assert len(made) == len(plans)
    monkeypatch.setattr(build, "_ROWS", build._EACH)
    memo.forget()
    for plan in plans[:2] * 2:
        build.build_program(plan)
    assert len(made) == len(plans) + 4


def _at_nic(plan: Plan, bandwidth: float) -> Plan:
    """The plan with other NICs."""
    cluster = plan.layout.cluster
    nic = structs.replace(cluster.node.nic, bandwidth=bandwidth)
    faster = structs.replace(cluster, node=structs.replace(cluster.node, nic=nic))
    return plan.on(structs.replace(plan.layout, cluster=faster))


@pytest.mark.parametrize(("cp", "shared"), [(1, True), (8, False)])
def test_rows_of_blocks_are_those_of_plans_that_price_them_alike(cp: int, shared: bool) -> None:
    """Other NICs change the price of a row only where collectives inside layers cross them."""
    plan = small_plan(dp=8 // cp, cp=cp, preset="megatron-core")
    plans = plan, _at_nic(plan, 7e10)
    rows = [Blocks(one, PlanCosts(one)).of(one.layout.stages[0], Action.B) for one in plans]
    assert (rows[0] is rows[1]) == shared


def test_a_row_that_another_plan_made_accounts_for_its_constants() -> None:
    """A second plan asks its models for nothing, and has the constants of one that is alone."""
    plan = small_plan()
    memo.forget()
    costs = [PlanCosts(plan), PlanCosts(plan)]
    for own in costs:
        for stage in plan.layout.stages:
            Blocks(plan, own).of(stage, Action.B)
            Blocks(plan, own).of(stage, Action.F)
    assert costs[1].provenance() == costs[0].provenance()
    again = PlanCosts(plan)
    Blocks(plan, again).of(plan.layout.stages[1], Action.F)
    memo.forget()
    alone = PlanCosts(plan)
    Blocks(plan, alone).of(plan.layout.stages[1], Action.F)
    assert again.provenance() == alone.provenance()
