"""Causes: why a recorded step is longer than the simulated one, in seconds of the step.

The rank whose own time is longest sets the pace, and the others wait for it. What all ranks share is a cause of all; what it has beyond them is a slow rank. Each cause is a part of the account
beyond what the simulated step has of it; what computes and the usual gaps between operators are held together against the simulated kernels, as these include their launches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.explain.account import PARTS, Account
from mpsim.program import COLLECTIVE, TICK
from mpsim.result import Result
from mpsim.result.intervals import busy_parts
from mpsim.shipped import read_shipped

__all__ = ["Cause", "Expected", "causes_of"]

_LEAST = 0.02  # of the step: less is said of nothing
_NOISE = 0.05  # of the step by which speed drifts on a healthy machine
_FEW = 4  # gaps of a step that hold most of the idle time: somebody stops the world
_MOST = 0.8
_LINK = 1.25  # ratio to the simulated above which a wire is slow
_DRIFT = 0.08  # of the step by which ranks that compute alike may drift apart


class Cause(NamedTuple):
    """One cause: seconds of the step, the ranks that have it, and words."""

    cause: str
    seconds: float
    ranks: tuple[int, ...]
    evidence: str
    mend: str


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """Figures of the simulated step that causes are held against [s].

    Parameters
    ----------
    compute : float64[R]
        Of each rank class: kernels, their launches and the optimizer.
    bubble : float
        Of the pipeline, mean over ranks.
    host : float
        Idle that it has: the host at work between kernels.
    exposed : float
        Communication that kernels wait for, mean over ranks.
    wire : float
        Collectives of a rank, hidden or not.
    classes : dict of str to float
        ``gemm`` and ``attention``, mean over ranks.
    """

    step: float
    compute: NDArray[np.float64]
    recompute: float
    exposed: float
    bubble: float
    host: float
    wire: float
    classes: dict[str, float]

    @classmethod
    def of(cls, result: Result) -> Expected:
        """Figures of a simulated step."""
        program, parts = result.timeline.program, result.breakdown
        names = program.vocabulary.parts
        computing = [n for n, name in enumerate(names) if not name.startswith("exposed_")]
        computing = [n for n in computing if names[n] not in ("bubble", "recompute")]
        compute = busy_parts(result.timeline)[:, computing].sum(axis=1) * TICK
        bare = (program.kind == COLLECTIVE) & (program.template < 0) & (program.size > 0)
        wire = float(program.duration[bare].sum()) * TICK / program.ranks
        classes = dict.fromkeys(("gemm", "attention"), 0.0)
        used = program.template[program.template >= 0]
        for template, count in zip(*np.unique(used, return_counts=True), strict=True):
            kernels, each = program.templates[template], TICK * count / program.ranks
            inside = kernels.collective >= 0
            wire += float(kernels.duration[inside].sum()) * each
            named = np.array(kernels.names)[kernels.name_index] == "attention"
            for kind, chosen in (("attention", named), ("gemm", ~named & (kernels.flops > 0))):
                classes[kind] += float(kernels.duration[chosen].sum()) * each
        return cls(
            step=float(result.timeline.step_time_s),
            compute=compute,
            recompute=parts.get("recompute", 0.0),
            exposed=sum(seconds for name, seconds in parts.items() if name.startswith("exposed_")),
            bubble=parts.get("bubble", 0.0),
            host=parts.get("host", 0.0),
            wire=wire,
            classes=classes,
        )


def causes_of(result: Result, account: Account) -> list[Cause]:
    """Causes of the difference, the largest first; what is left of it nobody explains."""
    expected = Expected.of(result)
    found: dict[str, Cause] = {}
    for each in _found(result, account, expected):  # of one cause told twice the first words stand
        before = found.get(each.cause)
        found[each.cause] = each if before is None else before._replace(seconds=before.seconds + each.seconds)  # fmt: skip
    step = float(account.steps.mean())
    return sorted((each for each in found.values() if each.seconds > _LEAST * step), key=lambda each: -each.seconds)  # fmt: skip


def _cause(
    name: str, seconds: float, ranks: Sequence[int], evidence: str, **words: object
) -> Cause:
    mend = str(read_shipped("mpsim.explain.data", "causes.yaml")[name]["mend"]).format(
        **{"rank": ranks[0] if ranks else "", "kind": "", **words}
    )
    return Cause(name, float(seconds), tuple(ranks), evidence, mend)


def _found(result: Result, account: Account, expected: Expected) -> Iterator[Cause]:  # fmt: skip
    step, every = float(account.steps.mean()), account.ranks
    means = {part: account.of(part) for part in PARTS}
    own = account.steps.mean(axis=1) - means["wait"] - means["wire"] - means["sync"]
    # stages of a pipeline wait for each other by design
    behind = None if len(expected.compute) > 1 else _behind(account, means, own, step)
    # the pace is set by the slowest; without one by all alike, whose mean is less noisy
    shared = np.array([n for n in range(len(every)) if n != behind])
    common = {part: float(values[shared].mean()) for part, values in means.items()}
    # what others reduce while they wait for the last rank, that one hides
    common["wire"] = float(means["wire"].min())
    if behind is not None:
        yield from _slow(account, means, common, own, behind, shared, step)
    if common["loader"] > 0:
        yield _cause("data_stall", common["loader"], every, f"{_ms(common['loader'])} of a step pass in the data loader while nothing computes")  # fmt: skip
    again = common["recompute"] - expected.recompute
    kind = result.scenario.training_step.recompute
    yield _cause("extra_recompute", again, every, f"forward operators run for {_ms(common['recompute'])} inside the backward, {_ms(expected.recompute)} expected", kind=kind)  # fmt: skip
    yield _cause("synchronisation", common["sync"], every, f"the host waits {_ms(common['sync'])} of a step for a value or for the device")  # fmt: skip
    if len(expected.compute) > 1:
        if len(every) > 1:
            yield from _stages(account, means, expected, step)
        return
    _allow(account, common, expected)
    yield _gaps(account, common, shared)
    if account.device:
        idle = common["launch"] + common["small"]
        yield _cause("host_bound", idle, every, f"the device is idle {_ms(idle)} of a step between kernels, {_ms(common['launch'])} of it while the host launches")  # fmt: skip
    yield from _wires(account, common, expected)
    yield from _kernels(account, common, shared, expected, step)


def _stages(
    account: Account, means: dict[str, NDArray[np.float64]], expected: Expected, step: float
) -> Iterator[Cause]:
    """The stage that all others wait for, kernels slower in all stages, and idle time beyond the schedule's; ranks follow each other stage by stage."""
    stage = np.arange(len(account.ranks)) * len(expected.compute) // len(account.ranks)
    known = expected.compute[stage]
    busy = means["busy"] + means["small"]
    last = int((busy / known).argmax())
    others = stage != stage[last]
    usual = float((busy / known)[others].mean()) if others.any() else 1.0
    longer = float(busy[last] - usual * known[last])
    calls = account.classes["gemm calls"].mean(axis=1) / known
    more = calls[last] > (1 + _NOISE) * calls[others].mean() if others.any() else False
    words = f"stage {stage[last]} computes {_ms(float(busy[last]))} of a step, {_ms(usual * float(known[last]))} as the others do"
    ranks = [rank for rank, mine in zip(account.ranks, stage, strict=True) if mine == stage[last]]
    if longer > _NOISE * step:
        name = "uneven_stages" if more else "slow_rank"
        yield _cause(name, longer, ranks, f"{words}, with {'more' if more else 'as many'} products", stage=stage[last])  # fmt: skip
    if usual > 1 + _NOISE:
        yield _cause("clock_drop", (usual - 1) * float(known.max()), account.ranks, f"measured over simulated kernels of all other stages: x{usual:.2f}")  # fmt: skip
    idle = float(sum(means[part] for part in ("wait", "wire", "long")).mean())  # type: ignore[union-attr]
    idle -= expected.exposed + expected.bubble + max(0.0, longer) * (1 - 1 / len(expected.compute))
    # stages that compute faster than simulated are idle more, and the step is no longer for it
    idle = min(idle, step - expected.step - max(0.0, longer))
    yield _cause("schedule_bubble", idle, account.ranks, f"stages are idle {_ms(idle)} of a step beyond the simulated bubble and messages")  # fmt: skip


def _allow(account: Account, common: dict[str, float], expected: Expected) -> None:
    """Take idle time that the simulated step has too from what was recorded: the host between kernels."""
    idle = expected.host
    if not account.device:  # operators hold their launches: only what kernels leave over is idle
        idle = min(
            idle, max(0.0, float(expected.compute.mean()) - common["busy"] - common["small"])
        )
    for part in ("long", "small", "launch") if account.device else ("long",):
        taken = min(common[part], idle)
        common[part] -= taken
        idle -= taken


def _behind(
    account: Account, means: dict[str, NDArray[np.float64]], own: NDArray[np.float64], step: float
) -> int | None:
    """The rank that all others wait for in every step; None where nobody is late by more than ranks drift."""
    if len(own) < 2:
        return None
    waits = account.seconds[:, :, [PARTS.index(part) for part in ("wait", "wire", "sync")]].sum(
        axis=2
    )
    last = int(own.argmax())
    least = np.delete(waits, last, axis=0).mean(axis=0) - waits[last]
    busy = means["busy"] + means["small"]
    drifts = busy[last] - np.delete(busy, last).mean() > float(least.mean()) / 2
    calls = account.classes["gemm calls"].mean(axis=1)
    drifts &= calls[last] <= np.delete(calls, last).mean()  # who has more to do is no drift
    return (
        last
        if (least > 0).all() and float(least.mean()) > (_DRIFT if drifts else _NOISE) * step
        else None
    )


def _slow(account: Account, means: dict[str, NDArray[np.float64]], common: dict[str, float], own: NDArray[np.float64], behind: int, shared: NDArray[np.int64], step: float) -> Iterator[Cause]:  # fmt: skip
    """The account of the rank that the others wait for: the loader where it has it, else the rank."""
    late = float(own[behind] - own[shared].mean())
    loader = float(means["loader"][behind] - common["loader"])
    rank = (account.ranks[behind],)
    words = f"the others wait {_ms(common['wait'])} of a step for rank {rank[0]} in collectives"
    if loader > late / 2:
        yield _cause("data_stall", loader, rank, f"{words}, which loads data {_ms(loader)} longer")
        late -= loader
    longer = max(("busy", "long", "small"), key=lambda part: means[part][behind] - common[part])  # fmt: skip
    what = {"busy": "computes", "long": "pauses", "small": "launches"}[longer]  # fmt: skip
    yield _cause("slow_rank", late, rank, f"{words}, which {what} {_ms(float(means[longer][behind]) - common[longer])} longer")  # fmt: skip


def _gaps(account: Account, common: dict[str, float], shared: NDArray[np.int64]) -> Cause:
    """Long gaps in which nothing runs: few that stop the world, or many between operators."""
    gaps = np.sort(np.concatenate([account.gaps[place] for place in shared]))[::-1]
    rounds = len(shared) * account.steps.shape[1]
    most = int(np.searchsorted(np.cumsum(gaps), _MOST * gaps.sum())) + 1 if len(gaps) else 0
    seconds = common["long"]
    if most <= _FEW * rounds:
        return _cause("garbage_collection", seconds, account.ranks, f"nothing runs for {_ms(seconds)} of a step, most of it in {most / rounds:.1f} gaps of up to {_ms(float(gaps[:1].sum()))}")  # fmt: skip
    return _cause("host_bound", seconds, account.ranks, f"nothing runs for {_ms(seconds)} of a step, in {len(gaps) / rounds:.0f} gaps between operators of up to {_ms(float(gaps[0]))}")  # fmt: skip


def _wires(account: Account, common: dict[str, float], expected: Expected) -> Iterator[Cause]:
    """Exposed communication beyond the simulated: a slow wire, or overlap that was lost."""
    more = common["wire"] - expected.exposed
    calls = [call for step in account.calls for call in step]
    wire = sum(call.wire for call in calls) / max(1, len(account.calls))
    if "ep" in {call.axis for call in calls}:
        waits = sum(float(np.mean(list(call.waits.values()))) for call in calls if call.axis == "ep") / len(account.calls)  # fmt: skip
        yield _cause("expert_imbalance", waits, account.ranks, f"ranks of a group of experts wait {_ms(waits)} of a step for the fullest of them")  # fmt: skip
    if expected.wire and wire > _LINK * expected.wire:
        yield _cause("slow_link", more, account.ranks, f"collectives take {_ms(wire)} of a step once all ranks are there, {_ms(expected.wire)} expected")  # fmt: skip
    else:
        yield _cause("lost_overlap", more, account.ranks, f"{_ms(common['wire'])} of communication is exposed, {_ms(expected.exposed)} expected, and the wire is as fast as expected")  # fmt: skip


def _kernels(account: Account, common: dict[str, float], shared: NDArray[np.int64], expected: Expected, step: float) -> Iterator[Cause]:  # fmt: skip
    """Kernels below their level: one class beside the others, or all alike; what checkpointing does around what runs again belongs to that."""
    known = float(expected.compute.mean()) - (expected.host if account.device else 0.0)
    more = common["busy"] + (0.0 if account.device else common["small"]) - known
    measured = {kind: float(account.classes[kind][shared].mean()) for kind in expected.classes}
    if more <= _NOISE * step or not any(measured.values()):
        return
    ratios = {kind: measured[kind] / seconds for kind, seconds in expected.classes.items() if seconds}  # fmt: skip
    level = max(1.0, min((ratio for ratio in ratios.values() if ratio), default=1.0))
    excess = {kind: measured[kind] - level * expected.classes[kind] for kind in ratios}
    # a class of which nothing ran under its name ran unfused, as other kernels
    excess |= {kind: more for kind, ratio in ratios.items() if not ratio}
    told = ", ".join(f"{kind} x{ratio:.2f}" for kind, ratio in ratios.items())
    told = f"measured over simulated kernels: {told}, all x{1 + more / known:.2f}"
    slowest = max(excess, key=lambda kind: excess[kind])
    if excess[slowest] > more / 2:
        yield _cause("slow_kernel", more, account.ranks, told, kind=slowest)
    elif level > 1 + _NOISE:
        yield _cause("clock_drop", more, account.ranks, told)
    elif common["recompute"] > expected.recompute + _LEAST * step:
        yield _cause("extra_recompute", more, account.ranks, "")
    else:
        yield _cause("slow_kernel", more, account.ranks, told, kind="memory-bound")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
