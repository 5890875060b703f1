"""The glue between the layers, solved by hand: messages, tied embeddings, launches, uneven stages.

What an optimizer waits for has a page of its own (`test_step_end`).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.parallel import partition_layers, placed_stages
from mpsim.program import TICK, Program, Stream
from mpsim.schedule import Action
from mpsim.training.blocks import Blocks
from mpsim.training.build import build_program
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.recompute import Recompute
from mpsim.training.vocabulary import Kind
from tests.plans import small_plan

# GPT 1.7B: 24 layers of hidden size 2304, 2,048 tokens in a microbatch, 2 bytes a value between stages.
HIDDEN, TOKENS = 2304, 2048
MESSAGE = 2 * TOKENS * HIDDEN  # 9,437,184 B

# DGX A100 of 8: NVLink at 300 GB/s and HDR InfiniBand at 200 Gb/s, 91 % and 97 % of which a message reaches.
NVLINK, INFINIBAND = 0.91 * 300e9, 0.97 * 25e9


def _by_label(program: Program, label: str) -> np.ndarray:
    return np.flatnonzero(np.array(program.labels)[program.label] == label)


def _constant(costs: PlanCosts, name: str) -> float:
    return next(used.value for used in costs.collectives.provenance() if used.name.endswith(name))


def test_a_message_across_nodes_takes_its_latencies_and_its_bytes_over_one_nic() -> None:
    """Two stages of 8 ranks on two nodes: every rank has a NIC of its own and sends the whole activation over it.

        t = protocol + NIC + one leaf switch + 2 B x tokens x hidden / (0.97 x 25 GB/s)
          = 19.7 us + 2.7 us + 0.25 us + 389.16 us

    It starts when the forward of the first stage ends; the second stage starts when it has arrived.
    """
    plan = small_plan(tp=8, pp=2, dp=1, preset="torch-ddp", microbatches=1, recompute="none")
    costs = PlanCosts(plan)
    timeline = run(build_program(plan, costs))
    program = timeline.program
    (send,) = _by_label(program, "send activation")
    assert program.out_bytes[send] == MESSAGE
    assert program.up_bytes[send] == 0
    fixed = _constant(costs, "send_latency") + _constant(costs, "ib-hdr.latency") + 0.25e-6
    assert program.duration[send] * TICK == pytest.approx(fixed + MESSAGE / INFINIBAND, abs=1e-12)
    forward = [
        int(np.flatnonzero((program.kind == Kind.FORWARD) & (program.stage == stage))[0])
        for stage in range(2)
    ]
    assert timeline.start[send] == timeline.end[forward[0]]
    assert timeline.start[forward[1]] == timeline.end[send]


def test_messages_that_announce_another_pay_the_same_way_without_its_bytes() -> None:
    """Three messages for one, two of them without bytes: two more times 19.7 + 2.7 + 0.25 = 22.65 us between nodes, 10.8 us inside one."""
    for tp, latency in ((8, 22.65e-6), (4, 10.8e-6)):
        costs = [
            PlanCosts(
                small_plan(
                    tp=tp, pp=2, dp=1, preset="torch-ddp", overrides={"send_messages": messages}
                )
            )
            for messages in (1, 3)
        ]
        alone, announced = (cost.message(0, 1, MESSAGE)[0] for cost in costs)
        assert announced - alone == pytest.approx(2 * latency, rel=1e-3)
        assert costs[1].message(0, 1, MESSAGE)[1:] == costs[0].message(0, 1, MESSAGE)[1:]


def test_scattered_messages_cross_in_parts_and_are_gathered_inside_the_node() -> None:
    """Scatter/gather over 8 ranks: each sends 1/8 through its NIC, and 7/8 reach every rank from its neighbours over NVLink.

    t = 22.65 us + 9,437,184 B / 8 / (0.97 x 25 GB/s) = 71.29 us, and an all-gather of the whole message.
    """
    plan = small_plan(tp=8, pp=2, dp=1, preset="torch-ddp", overrides={"scatter_gather": True})
    costs = PlanCosts(plan)
    seconds, up, out = costs.message(0, 1, MESSAGE)
    assert (up, out) == (MESSAGE * 7 / 8, MESSAGE / 8)
    gather = float(costs.collectives.seconds("all_gather", MESSAGE, costs.group(("tp",), 1)))
    assert seconds - gather == pytest.approx(22.65e-6 + MESSAGE / 8 / INFINIBAND, rel=1e-4)


def test_a_tied_embedding_moves_its_table_once_each_way() -> None:
    """The first and the last of 4 pipeline ranks hold the table; they sum its gradients before the step.

    51,200 words (a multiple of 128 x 2) x 2,304 / 2 tensor-parallel ranks = 58,982,400 parameters on a rank, whose gradients have 2 B. Each of the two
    ranks sends half of them and then half of the sums: as many bytes as all gradients of the table, 117,964,800 B, out of the node
    or not.
    """
    plan = small_plan(tp=2, pp=4, dp=1, preset="torch-ddp", microbatches=4)
    layout = plan.layout
    assert layout.embedding_ends == (0, 3)
    table = 51_200 * HIDDEN // 2
    program = build_program(plan)
    (row,) = _by_label(program, "all-reduce tied embedding")
    assert program.up_bytes[row] == 2 * table  # 4 stages of 2 ranks: one node
    across = build_program(small_plan(tp=8, pp=2, dp=1, preset="torch-ddp", microbatches=4))
    (row,) = _by_label(across, "all-reduce tied embedding")
    assert across.out_bytes[row] == 2 * table // 4
    # six layers each; the ends have the table too, the first learned positions and the last a norm beside it
    first, *middle, last = layout.rank_parameters.tolist()
    assert middle[0] == middle[1]
    assert first - middle[0] == table + layout.model.max_positions * HIDDEN
    assert last - middle[0] == table + 2 * HIDDEN


@pytest.mark.parametrize(
    ("recompute", "again"),
    [("none", 0.0), ("selective", 3 / 15), ("full", 3.0)],
)
def test_recomputed_layers_launch_their_forward_again(recompute: str, again: float) -> None:
    """A launch takes 1 s and kernels far less, so a layer takes as long as its launches: 3 forward, 5 backward.

    Full recomputation launches the 3 of the forward again, selective one of its 15 kernels (core attention), so 3 / 15. An input
    gradient has half of the 5 and all that runs again; a weight gradient the other half alone.
    """
    plan = small_plan(
        tp=1,
        pp=1,
        dp=1,
        preset="torch-ddp",
        microbatches=1,
        recompute=recompute,
        overrides={
            "launch_cost": "1 s",
            "layer_launches_forward": 3,
            "layer_launches_backward": 5,
        },
    )
    blocks, stage = Blocks(plan, PlanCosts(plan)), plan.layout.stages[0]

    def seconds(action: Action) -> float:
        layer = next(block for block in blocks.of(stage, action).blocks if block.layer == 7)
        return float(layer.template.parts.sum()) * TICK

    assert seconds(Action.F) == 3
    assert seconds(Action.B) == pytest.approx(5 + again)
    assert seconds(Action.I) == pytest.approx(2.5 + again)
    assert seconds(Action.W) == 2.5


def test_layers_that_run_again_together_launch_as_often() -> None:
    """Chunks of two layers: 3 launches again for each of 24 layers, in blocks of their own, and 5 for each backward."""
    overrides = {"launch_cost": "1 s", "layer_launches_forward": 3, "layer_launches_backward": 5}
    plan = small_plan(
        tp=1,
        pp=1,
        dp=1,
        preset="torch-ddp",
        microbatches=1,
        recompute=Recompute("full", method="uniform", layers=2),
        overrides=overrides,
    )
    blocks = Blocks(plan, PlanCosts(plan)).of(plan.layout.stages[0], Action.B).blocks
    took = [round(float(block.template.parts.sum()) * TICK, 9) for block in blocks]
    assert (took.count(3), took.count(5)) == (24, 24)


def _uneven() -> Plan:
    """24 layers as 9, 3, 7, 5 on four stages of 4 ranks, of which two fit a node."""
    plan = small_plan(tp=4, pp=4, dp=1, preset="torch-ddp", microbatches=1, recompute="none")
    parts = partition_layers(24, 4, given=(9, 3, 7, 5))
    orders = plan.orders
    stages = placed_stages(parts, orders.model_stage.tolist(), orders.stage_rank.tolist())
    return dataclasses.replace(plan, layout=dataclasses.replace(plan.layout, stages=stages))


def test_uneven_stages_start_after_the_layers_and_the_messages_before_them() -> None:
    """Stages 0 and 1 share a node, 2 and 3 the next: the second of three messages leaves a node, the others do not.

        start of stage s = overhead + embedding + f (layers before s) + messages before s
        in a node         m = 10.8 us + 9,437,184 B / (0.91 x 300 GB/s) = 45.37 us
        between nodes     M = 22.65 us + 9,437,184 B / (0.97 x 25 GB/s) = 411.81 us

    with f the forward of a layer, which is the same everywhere. The gradient comes back over the same three links.
    """
    plan = _uneven()
    costs = PlanCosts(plan)
    timeline = run(build_program(plan, costs))
    program = timeline.program
    sends = {
        label: program.duration[_by_label(program, label)] * TICK
        for label in ("send activation", "send gradient")
    }
    near = _constant(costs, "nvlink3.send_latency") + MESSAGE / NVLINK
    far = _constant(costs, "loaded.send_latency") + _constant(costs, "ib-hdr.latency") + 0.25e-6
    far += MESSAGE / INFINIBAND
    assert sends["send activation"] == pytest.approx([near, far, near], abs=1e-12)
    assert sorted(sends["send gradient"]) == pytest.approx([near, near, far], abs=1e-12)

    blocks = Blocks(plan, costs)

    def part(stage: int, layer: int) -> float:
        row = blocks.of(plan.layout.stages[stage], Action.F)
        block = next(block for block in row.blocks if block.layer == layer)
        return float(block.template.parts.sum())

    embedding, layer = part(0, -1), part(0, 0)
    overhead = float(timeline.end[_by_label(program, "step overhead")[0]])
    forward = (program.kind == Kind.FORWARD) & (program.stream == Stream.COMPUTE)
    starts = [float(timeline.start[forward & (program.stage == stage)][0]) for stage in range(4)]
    m, far_ticks = (np.rint(seconds / TICK) for seconds in (near, far))
    before = overhead + embedding
    assert starts == [
        overhead,
        before + 9 * layer + m,
        before + 12 * layer + m + far_ticks,
        before + 19 * layer + m + far_ticks + m,
    ]
