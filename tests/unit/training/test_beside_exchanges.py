"""Kernels beside gathers and reductions of data parallelism are longer by what the collectives take of the device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.cost import interference_of
from mpsim.program import TICK, Program, Stream
from mpsim.program.template import stretched
from mpsim.training import build_program
from mpsim.training.blocks import Blocks
from mpsim.training.build import exchanges_beside
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.replicas.groups import exchange_times, replica_groups
from mpsim.training.replicas.segments import Bucket, cut_actions
from mpsim.training.vocabulary import PARTS
from tests.unit.training.test_sharded_data import labelled, plan_of, step, unhindered

HOST = PARTS.index("host")


def _pieces(plan: Plan) -> tuple[Program, np.ndarray]:
    """The program and the seconds of every piece on the compute stream, in order."""
    program = build_program(plan)
    rows = program.template >= 0
    return program, program.duration[rows] * TICK


def _lost(plan: Plan) -> float:
    """What kernels lose beside the gather of a layer: 0.43 of their rate at 170 GB/s or more, less in proportion below."""
    costs, layer = PlanCosts(plan), plan.layout.layer_parameters["dense"].per_rank(1)
    groups, bucket = replica_groups(plan, costs), Bucket(layer, 0.0)
    ((_, rate),) = exchange_times(plan, costs, groups, bucket, gather=True, rank=0)
    taken = interference_of(plan.layout.framework.name, plan.layout.cluster.accelerator)
    share = taken.lost_at("dp", rate)
    assert share == max(taken.held["dp"], 0.43 * min(1.0, rate / 170e9))
    return share


def test_a_unit_of_a_forward_loses_a_share_of_the_gather_beside_it() -> None:
    """FSDP: while the next unit is gathered kernels lose a share of their rate, so a unit is longer by that share of the gather."""
    plan = plan_of(micro_batch=4, recompute="none")
    program, seconds = _pieces(plan)
    _, alone = _pieces(unhindered(plan))
    gathers = program.duration[labelled(program, "gather")] * TICK
    longer = (seconds - alone)[2:10]  # pieces of a forward: embedding, then layers
    assert longer == pytest.approx(_lost(plan) * gathers[3], rel=1e-6)


def test_a_unit_whose_gather_outlasts_it_is_slow_to_its_end() -> None:
    """A unit that is shorter than the collectives beside it takes 1 / (1 - share) times as long and no more, so what bounds the step stays."""
    plan = plan_of(sequence_length=128)
    _, seconds = _pieces(plan)
    _, alone = _pieces(unhindered(plan))
    ratio = (seconds / alone)[2:10]
    assert ratio == pytest.approx(1.0 / (1.0 - _lost(plan)), rel=1e-6)


def test_engines_agree_on_stretched_pieces_and_on_the_kernels_in_them() -> None:
    """Parts of a stretched template sum to its duration, kernels follow each other without gaps, both engines give every end."""
    timeline = step(plan_of(tp=2, dp=8, micro_batch=4))
    for template in timeline.program.templates:
        ends = template.start + template.duration
        assert template.parts.sum() == ends.max()
        kernels = template.stream == Stream.COMPUTE
        assert (template.start[kernels][1:] >= ends[kernels][:-1]).all()


def test_nothing_is_longer_where_nothing_runs_beside_it() -> None:
    """Blocked launches, reductions after the backward, and a single replica leave every kernel alone."""
    cases = (
        plan_of(overrides={"launch_blocking": True}),
        plan_of(zero=1, overrides={"gradient_overlap": "never", "parameter_gather_overlap": False}),
        plan_of(dp=1),
    )
    for plan in cases:
        _, seconds = _pieces(plan)
        _, alone = _pieces(unhindered(plan))
        assert (seconds == alone).all()


def test_a_reduction_slows_the_backward_of_the_layers_before() -> None:
    """DDP: the first bucket of a backward has nothing beside it, the next ones have the buckets before."""
    plan = plan_of(zero=0, overrides={"bucket_bytes": "25 MiB"})
    _, seconds = _pieces(plan)
    _, alone = _pieces(unhindered(plan))
    backward = (seconds / alone)[1:]
    assert seconds[0] == alone[0]  # the forward
    assert backward[0] == 1.0
    assert (backward[1:] > 1.0).all()


def test_a_device_that_waits_for_its_host_loses_nothing() -> None:
    """Kernels that end before the host has launched the layer may be slower without the layer being longer."""
    slow = plan_of(overrides={"launch_cost": "10 ms"})
    _, seconds = _pieces(slow)
    _, alone = _pieces(unhindered(slow))
    assert seconds[2:10] == pytest.approx(alone[2:10], rel=1e-12)


def test_an_exchange_is_as_long_beside_as_in_its_row() -> None:
    """Estimates of what runs beside a piece come from the same costs as the rows of the exchanges."""
    plan = plan_of(zero=3)
    program = build_program(plan)
    layer = plan.layout.layer_parameters["dense"].per_rank(1)
    for label, gather in (("gather", True), ("reduce-scatter", False)):
        rows = labelled(program, label)
        costs = PlanCosts(plan)
        groups = replica_groups(plan, costs)
        ((seconds, _),) = exchange_times(
            plan, costs, groups, Bucket(layer, 0.0), gather=gather, rank=0
        )
        assert np.isclose(program.duration[rows] * TICK, seconds, rtol=1e-6).any()


def test_stretching_keeps_what_waits_for_what() -> None:
    """What began when something ended still does, to the tick."""
    template = build_program(unhindered(plan_of(tp=2, dp=8))).templates[-1]
    longer = stretched(template, 1.2345)
    ends, new = template.start + template.duration, longer.start + longer.duration
    for place, start in enumerate(template.start):
        assert (new[ends == start] == longer.start[place]).all()
    assert (
        dataclasses.replace(longer, start=template.start, duration=template.duration).parts.sum()
        == new.max()
    )


def test_a_result_names_the_constants_of_what_runs_beside_layers() -> None:
    """Where layers are slower for it, the share they lose, the rate it belongs to and what is held at least are among the constants; elsewhere they are not."""

    def named(plan: Plan) -> set[str]:
        names = {one.name for one in PlanCosts(plan).provenance()}
        return {one for one in names if one.startswith("interference")}

    leaves = ("lost", "full_rate", "units_dp")
    assert named(plan_of()) == {f"interference.any.nccl.{leaf}" for leaf in leaves}
    assert named(plan_of(dp=1)) == named(unhindered(plan_of())) == set()


def test_the_reduction_beside_a_piece_is_that_of_the_piece_before() -> None:
    """In a backward the layer behind the head has the head's reduction beside it, which is longer than a layer's, and the layers behind it a layer's."""
    plan = plan_of(zero=2, overrides={"parameter_gather_overlap": False})
    costs = PlanCosts(plan)
    cuts = cut_actions(plan, costs, Blocks(plan, costs))
    loads = exchanges_beside(plan, costs, cuts)
    backward = next(
        (cut.segments, load)
        for cut, load in zip(cuts.distinct, loads, strict=True)
        if any(segment.reduces for segment in cut.segments)
    )
    segments, beside = backward
    assert beside[0].seconds == 0.0
    for before, load in zip(segments[:-1], beside[1:], strict=True):
        own = [
            seconds
            for bucket in before.reduces
            for seconds, _ in exchange_times(
                plan, costs, replica_groups(plan, costs), bucket, gather=False, rank=0
            )
        ]
        assert load.seconds == pytest.approx(sum(own), rel=1e-9)
    assert len({load.seconds for load in beside}) > 2
