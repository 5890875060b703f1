"""Checks of expert parallelism: experts have ranks to live on, and tokens a way to them."""

from __future__ import annotations

import math

from mpsim.errors import Problem
from mpsim.framework import ExpertOverlap
from mpsim.scenario.checks.near import divisors_near
from mpsim.scenario.described import Described
from mpsim.scenario.sections import OF_STAGE, factors
from mpsim.schedule import schedule, schedules

__all__ = ["check_expert_overlap", "check_expert_ranks", "check_expert_tokens", "check_experts"]


def check_experts(scenario: Described) -> list[Problem]:
    """Expert parallelism has experts to divide, and divides them."""
    p, moe = scenario.parallelism, scenario.transformer.moe
    if moe is None:
        given = (("ep", p.ep, p.ep > 1, "1"), ("etp", p.etp, p.etp not in (None, p.tp), "nothing"))
        return [
            Problem(
                f"got {value}, but the model is dense; set {key} to {mend}",
                key=f"parallelism.{key}",
            )
            for key, value, wrong, mend in given
            if wrong
        ]
    problems = []
    if moe.experts % p.ep:
        near = divisors_near(math.gcd(moe.experts, _ranks(scenario) or moe.experts), p.ep)
        message = f"{moe.experts} experts do not divide by ep {p.ep}; set ep to {near}"
        problems.append(Problem(message, key="parallelism.ep"))
    etp = p.etp or p.tp
    if moe.ffn_hidden % etp:
        key = "parallelism.etp" if p.etp else "parallelism.tp"
        near = divisors_near(moe.ffn_hidden, etp)
        message = f"moe.ffn_hidden {moe.ffn_hidden} does not divide by etp {etp}; set etp to {near}"
        problems.append(Problem(message, key=key))
    return problems


def check_expert_ranks(scenario: Described) -> list[Problem]:
    """The ranks of a pipeline stage form whole groups that hold every expert once."""
    p, moe = scenario.parallelism, scenario.transformer.moe
    ranks, etp = _ranks(scenario), p.etp or p.tp
    if moe is None or ranks < 1 or ranks % (etp * p.ep) == 0:
        return []
    have = f"{factors(_degrees(scenario))} = {ranks} ranks of a stage"
    if ranks % etp:
        message = (
            f"got {etp}, but {have} do not divide by it; set etp to {divisors_near(ranks, etp)}"
        )
        return [Problem(message, key="parallelism.etp")]
    near = divisors_near(math.gcd(moe.experts, ranks // etp), p.ep)
    message = f"etp {etp} x ep {p.ep} = {etp * p.ep} does not divide {have}; set ep to {near}" + (
        ", or etp to 1" if etp > 1 and ranks % p.ep == 0 else ""
    )
    return [Problem(message, key="parallelism.ep")]


def check_expert_tokens(scenario: Described) -> list[Problem]:
    """Tensor-parallel ranks route different tokens."""
    p = scenario.parallelism
    if scenario.transformer.moe is None or p.tp == 1 or p.sequence_parallel:
        return []
    message = (
        f"got false, but with tp {p.tp} a mixture of experts needs it: each rank routes its own 1/{p.tp} of the tokens, "
        "and without it all would route the same ones; set sequence_parallel to true, or tp to 1"
    )
    return [Problem(message, key="parallelism.sequence_parallel")]


def check_expert_overlap(scenario: Described) -> list[Problem]:
    """Dispatch and combine that overlap another microbatch have one to run beside."""
    software, name = scenario.software, scenario.schedule.name
    beside = software.experts.expert_overlap is ExpertOverlap.MICROBATCH
    if scenario.transformer.moe is None or not beside:
        return []
    pp = scenario.parallelism.pp
    faults = []
    if name is None or not schedule(name).fuses_on(pp):
        faults.append(
            f"in schedule {name or 'from a file'} on pp {pp} every one waits for the other"
        )
    if scenario.training_step.recompute == "full":
        faults.append("with full recomputation the backward has a forward of its own")
    if not faults:
        return []
    fusing = " or ".join(known.name for known in schedules() if known.fuses)
    alone = " or ".join(known.name for known in schedules() if known.fuses_alone)
    message = (
        f"got {ExpertOverlap.MICROBATCH.value}, which runs a forward beside a backward, but {' and '.join(faults)}; take "
        f"schedule {fusing} (or {alone} on pp 1) without full recomputation, or set expert_overlap to none"
    )
    return [Problem(message, key="framework.expert_overlap")]


def _ranks(scenario: Described) -> int:
    """Ranks of a pipeline stage; 0 where the world does not divide."""
    return math.prod(_degrees(scenario).values())


def _degrees(scenario: Described) -> dict[str, int]:
    return {axis: scenario.degrees[axis] for axis in OF_STAGE}
