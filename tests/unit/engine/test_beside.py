"""Orders in which forwards run beside backwards."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.schedule import make_orders
from mpsim.training import build_program
from mpsim.training.planning import forwards_beside_backwards
from mpsim.workload import Experts
from tests.plans import small_plan


@pytest.mark.parametrize(
    ("pp", "virtual_stages", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 3, 12)]
)
def test_one_more_forward_in_warm_up_and_the_same_actions(
    pp: int, virtual_stages: int, microbatches: int
) -> None:
    """Each rank holds one chunk more at its peak; blocks are a forward and a backward of different chunks or microbatches."""
    plain = make_orders(
        "interleaved-1f1b", pp=pp, virtual_stages=virtual_stages, microbatches=microbatches
    )
    beside = forwards_beside_backwards(plain).validate()
    extra = np.subtract(beside.peak_inflight(), plain.peak_inflight())
    full = np.array(plain.peak_inflight()) == virtual_stages * microbatches
    assert (extra == np.where(full, 0, 1)).all()
    head = np.flatnonzero(beside.fused)
    assert len(head)
    assert (beside.kind[head] == 0).all()
    assert (beside.kind[head + 1] == 1).all()
    same = beside.stage[head] == beside.stage[head + 1]
    assert not (same & (beside.microbatch[head] == beside.microbatch[head + 1])).any()


def test_an_order_without_a_forward_after_a_backward_stays() -> None:
    """GPipe runs all forwards first."""
    plain = make_orders("gpipe", pp=2, microbatches=4)
    assert forwards_beside_backwards(plain).tokens() == plain.tokens()


@pytest.mark.parametrize(
    "overrides", [{}, {"overlap_warmup_flush": True}, {"blocking_sends": "always"}]
)
@pytest.mark.parametrize(("pp", "virtual_stages"), [(1, 1), (2, 2), (4, 2), (4, 3)])
def test_steps_of_such_orders_finish_sooner(
    pp: int, virtual_stages: int, overrides: dict[str, object]
) -> None:
    """Exchanges of experts across nodes hide, however messages between stages are waited for."""
    plan = small_plan(
        tp=1,
        pp=pp,
        dp=16,
        ep=16,
        virtual_stages=virtual_stages,
        microbatches=12,
        moe=Experts(experts=16, top_k=2, ffn_hidden=4096),
        preset="megatron-core",
        recompute="none",
        cluster="dgx-h100",
        # a host that waits for nothing: one that is behind hides the exchanges by itself
        overrides={"expert_overlap": "microbatch", "launch_cost": 0.0, **overrides},
    )
    beside = dataclasses.replace(plan, orders=forwards_beside_backwards(plan.orders))
    assert (
        run(build_program(beside), "replay").makespan < run(build_program(plan), "replay").makespan
    )
