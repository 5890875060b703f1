"""Checks of expert parallelism: experts have ranks to live on, and tokens a way to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.errors import Problem
from mpsim.framework import ExpertOverlap
from mpsim.scenario.checks.near import divisors_near
from mpsim.scenario.sections import OF_STAGE, factors
from mpsim.schedule import schedule, schedules

if TYPE_CHECKING:
    from mpsim.scenario.written import Written


def check_experts(scenario: Written) -> Iterator[Problem]:
    """Expert parallelism has experts to divide, and divides them."""
    p, moe = scenario.parallelism, scenario.transformer.moe
    if moe is None:
        if p.ep > 1:
            yield Problem(f"got {p.ep}, but the model is dense; set ep to 1", "parallelism.ep")
        if p.etp not in (None, p.tp):
            message = f"got {p.etp}, but the model is dense; set etp to nothing"
            yield Problem(message, "parallelism.etp")
        return
    if moe.experts % p.ep:
        ranks = math.prod(_degrees(scenario).values())  # 0 where the world does not divide
        near = divisors_near(math.gcd(moe.experts, ranks or moe.experts), p.ep)
        message = f"{moe.experts} experts do not divide by ep {p.ep}; set ep to {near}"
        yield Problem(message, "parallelism.ep")
    etp = p.etp or p.tp
    if moe.ffn_hidden % etp:
        near = divisors_near(moe.ffn_hidden, etp)
        message = f"moe.ffn_hidden {moe.ffn_hidden} does not divide by etp {etp}; set etp to {near}"
        yield Problem(message, "parallelism.etp" if p.etp else "parallelism.tp")


def check_expert_ranks(scenario: Written) -> Iterator[Problem]:
    """The ranks of a pipeline stage form whole groups that hold every expert once."""
    p, moe, degrees = scenario.parallelism, scenario.transformer.moe, _degrees(scenario)
    ranks, etp = math.prod(degrees.values()), p.etp or p.tp
    if moe is None or ranks < 1 or ranks % (etp * p.ep) == 0:
        return
    have = f"{factors(degrees)} = {ranks} ranks of a stage"
    if ranks % etp:
        near = divisors_near(ranks, etp)
        message = f"got {etp}, but {have} do not divide by it; set etp to {near}"
        yield Problem(message, "parallelism.etp")
        return
    near = divisors_near(math.gcd(moe.experts, ranks // etp), p.ep)
    message = f"etp {etp} x ep {p.ep} = {etp * p.ep} does not divide {have}; set ep to {near}"
    mend = ", or etp to 1" if etp > 1 and ranks % p.ep == 0 else ""
    yield Problem(message + mend, "parallelism.ep")


def check_expert_tokens(scenario: Written) -> Iterator[Problem]:
    """Tensor-parallel ranks route different tokens."""
    p = scenario.parallelism
    if scenario.transformer.moe is not None and p.tp > 1 and not p.sequence_parallel:
        message = (
            f"got false, but with tp {p.tp} a mixture of experts needs it: each rank routes its own 1/{p.tp} of the tokens, "
            "and without it all would route the same ones; set sequence_parallel to true, or tp to 1"
        )
        yield Problem(message, "parallelism.sequence_parallel")


def check_expert_overlap(scenario: Written) -> Iterator[Problem]:
    """Dispatch and combine that overlap another microbatch have one to run beside."""
    software, name = scenario.software, scenario.schedule.name
    beside = software.experts.expert_overlap is ExpertOverlap.MICROBATCH
    if scenario.transformer.moe is None or not beside:
        return
    pp, faults = scenario.parallelism.pp, []
    if name is None or not schedule(name).fuses_on(pp):
        where = f"schedule {name or 'from a file'} on pp {pp}"
        faults.append(f"in {where} every one waits for the other")
    if scenario.training_step.recompute == "full":
        faults.append("with full recomputation the backward has a forward of its own")
    if not faults:
        return
    fusing = " or ".join(known.name for known in schedules() if known.fuses)
    alone = " or ".join(known.name for known in schedules() if known.fuses_alone)
    message = (
        f"got {ExpertOverlap.MICROBATCH.value}, which runs a forward beside a backward, but {' and '.join(faults)}; take "
        f"schedule {fusing} (or {alone} on pp 1) without full recomputation, or set expert_overlap to none"
    )
    yield Problem(message, "framework.expert_overlap")


def _degrees(scenario: Written) -> dict[str, int]:
    """Degrees of the axes whose ranks make a pipeline stage."""
    return {axis: scenario.degrees[axis] for axis in OF_STAGE}
