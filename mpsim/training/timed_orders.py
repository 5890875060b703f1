"""Orders searched for the times of a Plan: the schedules that ask how long their actions take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpsim import dataclasses
from mpsim.schedule import Action, make_orders, schedule
from mpsim.training.blocks import Blocks
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import Plan


class ActionTimes(NamedTuple):
    """Mean ticks over stages of a forward, input gradient, weight gradient, message."""

    forward: float
    backward: float
    weight: float
    send: float


def action_times(plan: Plan, costs: PlanCosts) -> ActionTimes:
    """Measure the actions of a Plan."""
    blocks = Blocks(plan, costs)

    def mean(action: Action) -> float:
        ticks = [
            sum(block.template.parts.sum() for block in blocks.of(stage, action))
            for stage in plan.layout.stages
        ]
        return float(np.mean(ticks))

    sends = np.stack([messages.duration for messages in costs.sends()])
    sent = sends[sends > 0]
    send = float(sent.mean()) if len(sent) else 0.0
    return ActionTimes(mean(Action.F), mean(Action.I), mean(Action.W), send)


def with_timed_orders(plan: Plan, costs: PlanCosts) -> Plan:
    """Search the orders again for the plan's own times. `plan`: of a schedule that asks for times
    (`Schedule.is_timed`), with orders searched for equal ones.

    Returns Plan: with other orders of the same actions.
    """
    orders = plan.orders
    if plan.classes:
        searched_parts = [with_timed_orders(part.plan, part).orders for part in costs.parts]
        classes = tuple(
            dataclasses.replace(replicas, orders=orders)
            for replicas, orders in zip(plan.classes, searched_parts, strict=True)
        )
        return dataclasses.replace(plan, classes=classes, orders=classes[0].orders)
    times = action_times(plan, costs)
    options: dict[str, object] = {"times": times[:3]}
    if "send" in schedule(plan.schedule).options:
        options["send"] = times.send
    searched = make_orders(
        plan.schedule,
        pp=orders.pp,
        microbatches=orders.microbatches,
        virtual_stages=orders.virtual_stages,
        flushes=orders.flushes,
        **options,  # type: ignore[arg-type]
    )
    return dataclasses.replace(plan, orders=searched.validate())
