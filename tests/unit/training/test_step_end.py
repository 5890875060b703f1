"""The end of a step: what the optimizer of each rank waits for."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.parallel import GroupShape
from mpsim.program import TICK, Program
from mpsim.training.build import build_program
from mpsim.training.plan import PlanCosts
from mpsim.training.vocabulary import Kind
from mpsim.workload import Experts
from tests.plans import small_plan


def _rows(program: Program, label: str) -> np.ndarray:
    return np.flatnonzero(np.array(program.labels)[program.label] == label)


def _reductions(program: Program) -> np.ndarray:
    names = [one for one in program.labels if one.startswith(("all-reduce", "reduce-scatter"))]
    return np.concatenate([_rows(program, name) for name in names])


def _waits_of(program: Program, row: int) -> list[int]:
    return program.dep[program.dep_ptr[row] : program.dep_ptr[row + 1]].tolist()


@pytest.mark.parametrize("offload", ["none", "optimizer"])
def test_without_a_global_norm_each_rank_waits_for_its_own_reductions(offload: str) -> None:
    """The first rank is done after its own pipeline; only what ranks share makes one wait for another."""
    plan = small_plan(
        pp=4, dp=2, overrides={"gradient_norm": False}, offload=offload, model_name="llama2-7b"
    )
    assert plan.layout.embedding_ends is None  # no tied embedding
    program = build_program(plan)
    first = "optimizer step" if offload == "none" else "optimizer step on host"
    for row in _rows(program, first):
        ranks = {int(program.rank[one]) for one in _waits_of(program, row)}
        assert ranks == {int(program.rank[row])}


def test_without_a_global_norm_the_last_rank_does_not_wait_for_the_first() -> None:
    """The flush ends on rank 0; the others have stepped by then.

    A gradient that leaves rank r at t reaches rank 0 after r more backwards and messages, so rank r has run its last backward B that much
    earlier. Its reduction R overlaps or follows: its optimizer starts at max(end of B, end of R), whatever other ranks still do.
    """
    plan = small_plan(pp=4, dp=2, overrides={"gradient_norm": False}, model_name="llama2-7b")
    timeline = run(build_program(plan))
    program = timeline.program
    steps = _rows(program, "optimizer step")
    start = timeline.start[steps[np.argsort(program.rank[steps])]]
    assert (np.diff(start) < 0).all()
    ends = np.array(
        [
            timeline.end[(program.rank == rank) & (program.kind == Kind.BACKWARD)].max()
            for rank in range(4)
        ]
    )
    reduced = np.array(
        [
            timeline.end[[row for row in _reductions(program) if program.rank[row] == rank]].max()
            for rank in range(4)
        ]
    )
    assert np.array_equal(start, np.maximum(ends, reduced))


def test_a_tied_embedding_joins_its_two_ranks_and_no_other() -> None:
    """Gradients of the shared table are summed between the first and the last rank, so both wait for the later of the two."""
    plan = small_plan(pp=4, dp=2, overrides={"gradient_norm": False}, model_name="gpt-1.7b")
    assert plan.layout.embedding_ends is not None
    program = build_program(plan)
    (tied,) = _rows(program, "all-reduce tied embedding")
    waiting = [
        int(program.rank[row])
        for row in _rows(program, "optimizer step")
        if tied in _waits_of(program, row)
    ]
    assert sorted(waiting) == [0, 3]


def test_with_a_global_norm_every_rank_waits_for_all() -> None:
    """One all-reduce after every reduction, and every optimizer after it."""
    plan = small_plan(pp=4, dp=2, overrides={"gradient_norm": True}, model_name="llama2-7b")
    program = build_program(plan)
    (norm,) = _rows(program, "all-reduce gradient norm")
    steps = _rows(program, "optimizer step")
    assert all(_waits_of(program, row) == [norm] for row in steps)
    timeline = run(program)
    assert len(set(timeline.start[steps].tolist())) == 1


def test_a_sharded_optimizer_updates_its_share_of_experts_and_of_the_rest() -> None:
    """ZeRO-1 on 8 replicas, experts divided among 4 of them: all 8 have the dense weights, 2 have the same experts.

        t = traffic (dense / 8 + experts / 2) / (0.8 x 2,039 GB/s)

    Every layer of 24 has 8 experts of two matrices of 2,304 x 1,024 with their biases; a rank has two of the eight.
    """
    plan = small_plan(
        tp=1, pp=1, dp=8, ep=4, zero=1, moe=Experts(experts=8, top_k=2, ffn_hidden=1024)
    )
    layout = plan.layout
    experts = 24 * 2 * (2 * 2304 * 1024 + 2304 + 1024)
    assert layout.parameter_kinds.experts.tolist() == [experts]
    dense = float(layout.parameter_kinds.dense[0])
    program = build_program(plan)
    (step,) = _rows(program, "optimizer step")
    owned = dense / 8 + experts / 2
    seconds = owned * layout.framework.optimizer.optimizer_traffic / (0.8 * 2039e9)
    assert program.duration[step] * TICK == pytest.approx(seconds, abs=TICK)


@pytest.mark.parametrize(
    ("zero", "group"),
    [(0, GroupShape(8, 8, 1)), (2, GroupShape(16, 8, 2))],
)
def test_the_norm_is_summed_among_those_that_share_a_copy_of_the_gradients(
    zero: int, group: GroupShape
) -> None:
    """tp 8 on each of two nodes: every replica has all gradients on its own node, or shares them with the other when they are sharded; 4 B each way."""
    plan = small_plan(tp=8, pp=1, dp=2, zero=zero)
    assert plan.layout.framework.optimizer.gradient_norm
    costs = PlanCosts(plan)
    program = build_program(plan, costs)
    (norm,) = _rows(program, "all-reduce gradient norm")
    seconds = float(costs.collectives.seconds("all_reduce", 4.0, group))
    assert program.duration[norm] * TICK == pytest.approx(seconds, abs=TICK)


def test_rank_classes_stand_for_every_accelerator() -> None:
    """A class a pipeline rank: tensor and data parallelism, 2 x 2 here, fold into each."""
    program = build_program(small_plan(tp=2, pp=4, dp=2))
    assert program.class_size.tolist() == [4.0] * 4
