"""Causes: why a recorded step is longer than the simulated one, in seconds of the step.

The rank whose own time is longest sets the pace, and the others wait for it. What all ranks share
is a cause of all; what it has beyond them is a slow rank. Each cause is what a part of the account
has beyond the simulated step; of kernels with the usual gaps, as the simulated have launches.
Above 600 lines, since causes are taken from one account in turn, each from what the last has left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.engine import run
from mpsim.explain.account import CLASSES, PARTS, Account
from mpsim.measured.records import ELEMENT_BYTES
from mpsim.parallel import EXPOSED
from mpsim.program import COLLECTIVE, SEND, TICK, Program
from mpsim.result import Result
from mpsim.shipped import read_shipped

_LEAST = 0.02  # of the step: less is said of nothing
_NOISE = 0.05  # of the step by which speed drifts on a healthy machine
_FEW = 4  # gaps of a step that hold most of the idle time: somebody stops the world
_MOST = 0.8
_RUNS = 8  # of the schedule, for parts of a long recording
_LINK = 1.25  # ratio to the simulated above which a wire is slow
_SHOWN = ("data_stall", "synchronisation", "extra_recompute")
_PART = 0.5  # by how much of itself an excess may be off
_RARE = 4.0  # how much less likely small operators alone are, as a square of sigmas
_NAMED = ("gemm", "attention")
_WAITS = ("wait", "wire", "sync")
_WIDE = 32
_TOGETHER = 0.2
_SPREAD = {"gemm": 0.1, "attention": 0.2, "memory": 0.3, "other": 1.2}
"""By how much, in logarithms, a healthy machine's classes of kernels are off, together and each."""
_STREAMS = ("norm", "activation", "loss", "embedding", "positions", "softmax", "dropout", "gate")
"""Simulated kernels that move memory under a name of their own on the host too."""
_DRIFT = 0.08  # of the step by which ranks that compute alike may drift apart


Word = str | int | float  # of evidence; a float is a time [s]


class Cause(NamedTuple):
    """One cause of the difference, in seconds of the step."""

    cause: str
    seconds: float
    ranks: tuple[int, ...]
    evidence: str
    mend: str
    shown: bool = False  # as itself by the trace: nothing is inferred from the simulated step


@structs.dataclass(frozen=True, slots=True)
class Expected:
    """Figures of the simulated step that causes are held against [s], of R rank classes."""

    step: float
    compute: Floats  # [R], kernels, their launches and the optimizer
    recompute: float
    exposed: float  # communication that kernels wait for, mean over ranks
    bubble: float  # of the pipeline, mean over ranks
    host: float  # idle that it has: the host at work between kernels
    wire: float  # collectives of a rank, hidden or not
    classes: dict[str, Floats]  # [R], kernels by class
    products: Floats  # [R], how many matrix products
    messages: tuple[str, ...]  # of each rank class, as `Account.messages` has them
    bits: int  # of the number format that the scenario computes in
    layers: int  # that a rank passes in a step: once for each microbatch
    microbatches: int  # of a rank; 0 where layers communicate too
    repeats: int  # how often a step reduces the same gradients
    # step over what a rank of a pipeline has to do: by how much seconds of every stage count
    stretch: float

    @classmethod
    def of(cls, result: Result) -> Expected:
        """Figures of a simulated step."""
        program, parts = result.timeline.program, result.breakdown
        names = program.vocabulary.parts
        others = ("bubble", "recompute", *EXPOSED)
        computing = [n for n, name in enumerate(names) if name not in others]
        compute = result.timeline.program.busy_parts[:, computing].sum(axis=1) * TICK
        bare = (program.kind == COLLECTIVE) & (program.template < 0) & (program.size > 0)
        wire = float(program.duration[bare].sum()) * TICK / program.ranks
        host = result.scenario.hardware.accelerator.family == "cpu"
        classes, products, inside = _classes(program, host=host)
        wire += inside
        step, bubble = float(result.timeline.step_time_s), parts.get("bubble", 0.0)
        microbatches = int(program.microbatch.max()) + 1
        return cls(
            step=step,
            compute=compute,
            recompute=parts.get("recompute", 0.0),
            exposed=sum(parts.get(name, 0.0) for name in EXPOSED),
            bubble=bubble,
            host=parts.get("host", 0.0),
            wire=wire,
            classes=classes,
            products=products,
            messages=_orders(program),
            # of narrow formats attention and what communicates stay at 16
            bits=round(8 * ELEMENT_BYTES.get(result.scenario.training_step.precision, 2.0)),
            layers=max(2, result.scenario.transformer.layers * microbatches // program.ranks),
            microbatches=0 if inside else microbatches,
            repeats=min(Counter(program.size[bare].tolist()).values(), default=0),
            stretch=step / (step - bubble),
        )


def _classes(program: Program, *, host: bool) -> tuple[dict[str, Floats], Floats, float]:
    """Kernels of each rank class by class [s], number of products, collectives in layers [s]."""
    classes = {kind: np.zeros(program.ranks) for kind in CLASSES}
    products, wire = np.zeros(program.ranks), 0.0
    inner = np.flatnonzero(program.template >= 0)
    for template in np.unique(program.template[inner]):
        kernels = program.templates[template]
        times = np.bincount(
            program.rank[inner[program.template[inner] == template]], minlength=program.ranks
        )
        inside = kernels.collective >= 0
        wire += float(kernels.duration[inside].sum() * times.mean()) * TICK
        names = np.array(kernels.names)[kernels.name_index]
        named, gemm = names == "attention", kernels.flops > 0
        streams = (
            np.isin(names, [n for n in kernels.names if any(w in n for w in _STREAMS)])
            if host
            else names != "host launch"
        )
        products += np.count_nonzero(gemm & ~named) * times
        for kind, chosen in zip(
            CLASSES, (gemm & ~named, named, streams & ~gemm & ~named & ~inside), strict=True
        ):
            classes[kind] += float(kernels.duration[chosen].sum()) * TICK * times
    return classes, products, wire


def _orders(program: Program) -> tuple[str, ...]:
    """Sends and receives of each rank class in the order of its actions."""
    kinds = program.vocabulary.kinds
    rows = np.flatnonzero(program.vocabulary.is_action(program.kind))
    home = dict(zip(program.stage[rows].tolist(), program.rank[rows].tolist(), strict=True))
    orders = [""] * program.ranks
    for kind, stage, rank in zip(
        program.kind[rows].tolist(),
        program.stage[rows].tolist(),
        program.rank[rows].tolist(),
        strict=True,
    ):
        if kinds[kind] != "weight_gradient":
            way = 1 if kinds[kind] == "forward" else -1
            for word, other in (("r", stage - way), ("s", stage + way)):
                orders[rank] += word if home.get(other, rank) != rank else ""
    return tuple(orders)


def _steps(result: Result, ratios: Floats) -> float:
    """Mean step [s] with actions of R rank classes longer by factors [K, R] of K recorded steps."""
    program, found = result.timeline.program, []
    computes = (program.kind != COLLECTIVE) & (program.kind != SEND)
    for ratio in ratios:
        longer = np.where(computes, ratio[program.rank], 1.0)
        slowed = structs.replace(program, duration=np.rint(program.duration * longer))
        found.append(run(slowed).step_time_s)
    return float(np.mean(found))


def causes_of(result: Result, account: Account) -> list[Cause]:
    """Causes of the difference, the largest first; what is left of it nobody explains.

    What the trace shows as itself (a loader, a synchronisation, operators that run again) counts as
    recorded. What is inferred explains no more than the step is longer by.
    """
    expected = Expected.of(result)
    found: dict[str, Cause] = {}
    for each in _found(result, account, expected):
        if (before := found.get(each.cause)) and each.seconds > before.seconds:
            before, each = each, before  # of one cause told twice the words of the larger stand
        found[each.cause] = (
            each if before is None else before._replace(seconds=before.seconds + each.seconds)
        )
    step = float(account.steps.mean())
    shown = [each for each in found.values() if each.shown and each.seconds > _LEAST * step]
    left = step - expected.step - sum(each.seconds for each in shown)
    for each in sorted(found.values(), key=lambda each: -each.seconds):
        seconds = min(each.seconds, left)
        if not each.shown and seconds > _LEAST * step:
            shown.append(each._replace(seconds=seconds))
            left -= seconds
    return sorted(shown, key=lambda each: -each.seconds)


def _cause(
    name: str, seconds: float, ranks: Sequence[int], way: str, *, shown: bool = False, **words: Word
) -> Cause:
    """A cause in the words of the data file; `way`: how it showed itself, `words`: what it was."""
    told = read_shipped("mpsim.explain.data", "causes.yaml")[name]
    words = {"rank": ranks[0] if ranks else "", "kind": "", "seconds": float(seconds), **words}
    filled = {key: _ms(word) if isinstance(word, float) else word for key, word in words.items()}
    evidence, mend = (str(text).format(**filled) for text in (told[way], told["mend"]))
    return Cause(name, float(seconds), tuple(ranks), evidence, mend, shown or name in _SHOWN)


def _found(result: Result, account: Account, expected: Expected) -> Iterator[Cause]:
    step, every = float(account.steps.mean()), account.ranks
    means = {part: account.of(part) for part in PARTS}
    own = account.steps.mean(axis=1) - sum(means[part] for part in _WAITS)
    # stages of a pipeline wait for each other by design
    staged = len(expected.compute) > 1
    behind = None if staged else _behind(account, means, own, step)
    # the pace is set by the slowest; without one by all alike, whose mean is less noisy
    shared = np.array([n for n in range(len(every)) if n != behind])
    # what each stage does longer fills and drains the pipeline too
    longer = expected.stretch
    common = {part: longer * float(values[shared].mean()) for part, values in means.items()}
    # what others reduce while they wait for the last rank, that one hides; of ranks that wait in
    # turns all is the link's
    common["bare wire"] = float(means["wire"].mean())
    common["wire"] = float(
        (means["wire"] + means["wait"]).mean() if behind is None else means["wire"].min()
    )
    if staged:
        common["loader"] = float(means["loader"].max())
        common["begin"] = float(means["begin"].min())
    if behind is not None:
        yield from _slow(account, means, common, own, behind, shared, step)
    if common["loader"] > 0:
        yield _cause("data_stall", common["loader"], every, "loading")
    ran, usual = common["recompute"], longer * expected.recompute
    kind = result.scenario.training_step.recompute
    yield _cause("extra_recompute", ran - usual, every, "inside", ran=ran, usual=usual, kind=kind)
    yield _cause("synchronisation", common["sync"], every, "waiting")
    _allow(account, common, expected)
    yield _cause("data_stall", common["begin"], every, "before")
    yield _cause("slow_link", common["near"], every, "beside")
    yield _gaps(account, common, shared, expected.layers)
    if account.device:
        launch = common["launch"]
        yield _cause("host_bound", launch + common["small"], every, "launching", launch=launch)
    if staged and len(every) > 1:
        yield from _stages(result, account, means, expected, step)
    elif not staged:
        yield from _wires(account, common, expected)
        parts = ("busy",) if account.device else ("busy", "small")
        known = float(expected.compute.mean()) - (expected.host if account.device else 0.0)
        seen = sum(common[part] for part in ("loader", "recompute", "sync"))
        more = min(sum(common[part] for part in parts) - known, step - expected.step - seen)
        yield from _kernels(account, expected, shared, np.zeros_like(shared), more, step)


def _stages(
    result: Result, account: Account, means: dict[str, Floats], expected: Expected, step: float
) -> Iterator[Cause]:
    """The stage that all others wait for, kernels slower in all stages, and idle time beyond the
    schedule, which is run again with what stages computed: alike in all, then as it was.
    """
    stages = len(expected.compute)
    stage = np.arange(len(account.ranks)) * stages // len(account.ranks)
    busy = account.seconds[:, :, [PARTS.index("busy"), PARTS.index("small")]].sum(axis=2)
    members = [stage == n for n in range(stages)]
    if not all(mine.any() for mine in members):
        return
    stretched = zip(members, expected.compute, strict=True)
    steps = np.array([busy[mine].mean(axis=0) / known for mine, known in stretched]).T
    ratios = np.array([part.mean(axis=0) for part in np.array_split(steps, min(_RUNS, len(steps)))])
    mean = ratios.mean(axis=0)
    last = int(mean.argmax())
    alike = np.minimum(ratios, np.delete(ratios, last, axis=1).mean(axis=1, keepdims=True))
    plain, level, whole = (_steps(result, each) for each in (np.ones((1, stages)), alike, ratios))
    # a format or a path that all stages ran in weighs more on the one with the head
    excess = float((busy.mean(axis=1) - expected.compute[stage]).mean())
    wide = _odd(account, np.arange(len(busy)), expected.bits).seconds > _PART * excess > 0
    longer = 0.0 if wide else whole - level
    is_uneven = longer > _NOISE * step
    calls = account.classes["gemm calls"].mean(axis=1)
    calls = np.array([calls[mine].mean() for mine in members]) / np.maximum(1.0, expected.products)
    more = calls[last] > (1 + _NOISE) * np.delete(calls, last).mean()
    seconds = mean * expected.compute
    usual = float(np.delete(mean, last).mean() * expected.compute[last])
    ranks = [rank for rank, mine in zip(account.ranks, stage, strict=True) if mine == last]
    if is_uneven:
        name = "uneven_stages" if more else "slow_rank"
        took = float(seconds[last])
        yield _cause(name, longer, ranks, "stage", stage=last, took=took, usual=usual)
    shared = np.flatnonzero(stage != last) if is_uneven else np.arange(len(busy))
    slower = (level if is_uneven else whole) - plain
    yield from _kernels(account, expected, shared, stage[shared], slower, step)
    seen = sum(float(means[part].mean()) for part in ("sync", "loader", "recompute"))
    idle = step - expected.step - (whole - plain) - seen
    other = _out_of_order(account, expected, stage)
    way, first = ("order", other[0]) if other else ("idle", "")
    yield _cause("schedule_bubble", idle, account.ranks, way, shown=bool(other), other=first)


def _out_of_order(account: Account, expected: Expected, stage: Ints) -> list[int]:
    """Ranks whose messages came in another order than the schedule has."""

    def differs(order: str, known: str) -> bool:
        return order != known and sorted(order) == sorted(known)

    return [
        rank
        for rank, mine, orders in zip(account.ranks, stage, account.messages, strict=False)
        if all(differs(order, expected.messages[mine]) for order in orders)
    ]


def _allow(account: Account, common: dict[str, float], expected: Expected) -> None:
    """Take idle time that the simulated step has too off the recorded: the host between kernels."""
    idle = expected.host
    if not account.device:  # operators hold their launches: only what kernels leave over is idle
        left = float(expected.compute.mean()) - common["busy"] - common["small"]
        idle = min(idle, max(0.0, left))
    for part in ("begin", "long", "small", "launch") if account.device else ("long", "begin"):
        taken = min(common[part], idle)
        common[part] -= taken
        idle -= taken


def _behind(account: Account, means: dict[str, Floats], own: Floats, step: float) -> int | None:
    """The rank that all others wait for in every step; None where none is later than by drift."""
    if len(own) < 2:
        return None
    waits = account.seconds[:, :, [PARTS.index(part) for part in _WAITS]].sum(axis=2)
    last = int(own.argmax())
    least = np.delete(waits, last, axis=0).mean(axis=0) - waits[last]
    busy = means["busy"] + means["small"]
    drifts = busy[last] - np.delete(busy, last).mean() > float(least.mean()) / 2
    calls = account.classes["gemm calls"].mean(axis=1)
    drifts &= calls[last] <= np.delete(calls, last).mean()  # who has more to do is no drift
    late = own[last] - np.delete(own, last).mean()
    waited = sum(
        seconds
        for each in account.calls
        for call in each
        for place, seconds in call.waits.items()
        if place != last
    )
    if waited < late / 2 * (len(own) - 1) * len(account.calls):  # nobody waits for it
        return None
    slow = (least > 0).all() and least.mean() > (_DRIFT if drifts else _NOISE) * step
    return last if slow else None


def _slow(
    account: Account,
    means: dict[str, Floats],
    common: dict[str, float],
    own: Floats,
    behind: int,
    shared: Ints,
    step: float,
) -> Iterator[Cause]:
    """The account of the rank that others wait for: the loader where it has it, else the rank."""
    late = float(own[behind] - own[shared].mean())
    loader = float(means["loader"][behind] - common["loader"])
    rank = (account.ranks[behind],)
    wait = common["wait"]
    if loader > late / 2:
        yield _cause("data_stall", loader, rank, "one rank", wait=wait)
        late -= loader
    more = {part: float(means[part][behind]) - common[part] for part in ("busy", "long", "small")}
    part = max(more, key=lambda part: more[part])
    yield _cause("slow_rank", late, rank, part, wait=wait, more=more[part])


def _gaps(account: Account, common: dict[str, float], shared: Ints, layers: int) -> Cause:
    """Long gaps in which nothing runs: few that stop the world, or many between operators."""
    gaps = np.sort(np.concatenate([account.gaps[place] for place in shared]))[::-1]
    rounds = len(shared) * account.steps.shape[1]
    most = int(np.searchsorted(np.cumsum(gaps), _MOST * gaps.sum())) + 1 if len(gaps) else 0
    seconds = common["long"]
    # one in every layer is the layer's
    few = most <= min(_FEW, layers - 1) * rounds
    name, count = (
        ("garbage_collection", f"{most / rounds:.1f}")
        if few
        else ("host_bound", f"{len(gaps) / rounds:.0f}")
    )
    longest = float(gaps[:1].sum())
    return _cause(name, seconds, account.ranks, "gaps", count=count, longest=longest)


def _wires(account: Account, common: dict[str, float], expected: Expected) -> Iterator[Cause]:
    """Exposed communication beyond the simulated: a slow wire, or overlap that was lost."""
    more = common["wire"] - expected.exposed
    calls = [call for step in account.calls for call in step]
    wire = sum(call.wire for call in calls) / max(1, len(account.calls))
    if "ep" in {call.axis for call in calls}:
        waits = sum(
            float(np.mean(list(call.waits.values()))) for call in calls if call.axis == "ep"
        ) / len(account.calls)
        yield _cause("expert_imbalance", waits, account.ranks, "waiting")
    counts = [Counter((call.name, call.size) for call in step) for step in account.calls]
    again = min((count for step in counts for count in step.values()), default=0)
    if expected.microbatches > 1 and again >= expected.microbatches > expected.repeats:
        yield _cause("lost_overlap", more, account.ranks, "again", times=again)
    elif expected.wire and wire > _LINK * expected.wire:
        # ranks that arrive in turns wait without the wire
        least, usual = min(more, wire - expected.wire), expected.wire
        yield _cause("slow_link", least, account.ranks, "longer", wire=wire, usual=usual)
    else:
        more = min(more, float(common["bare wire"]) - expected.exposed)
        ran, usual = common["wire"], expected.exposed
        yield _cause("lost_overlap", more, account.ranks, "exposed", ran=ran, usual=usual)


def _kernels(
    account: Account, expected: Expected, shared: Ints, stage: Ints, seconds: float, step: float
) -> Iterator[Cause]:
    """Kernels below their level: one class beside the others, or all alike; what checkpointing does
    around what runs again belongs to that.

    A class that ran in a wider format than the scenario's, or unfused, says so itself. Otherwise
    each class is off by a factor of its own on a healthy machine too: of the hypotheses that all
    are slower alike, or one alone by all of the excess, the one that leaves the likeliest factors
    holds. Looked at are the ranks `shared`, each of the class in `stage`; the step is longer by
    `seconds` for it.
    """
    if seconds <= _NOISE * step:
        return
    busy = float(
        (account.of("busy") + (0.0 if account.device else account.of("small")))[shared].mean()
    )
    known = float(expected.compute[stage].mean()) - (expected.host if account.device else 0.0)
    more = busy - known
    if float(account.of("recompute")[shared].mean()) > expected.recompute + _LEAST * step:
        yield _cause("extra_recompute", seconds, account.ranks, "around")
        return
    measured = {kind: float(account.classes[kind][shared].mean()) for kind in CLASSES}
    simulated = {kind: float(each[stage].mean()) for kind, each in expected.classes.items()}
    if not any(measured.values()) or more <= 0:
        return
    measured["other"] = busy - sum(measured.values())
    simulated["other"] = known - sum(simulated.values())
    spread = {kind: sigma for kind, sigma in _SPREAD.items() if simulated[kind] > _LEAST * known}
    if account.device:  # a lower clock leaves the memory as it was
        spread.pop("other", None)
    classes = ", ".join(f"{kind} x{measured[kind] / simulated[kind]:.2f}" for kind in spread)
    told = f"measured over simulated kernels: {classes}, all x{busy / known:.2f}"

    kind, word, ran = _odd(account, shared, expected.bits)
    if ran > _PART * more:
        every = account.ranks
        yield _cause("slow_kernel", seconds, every, "odd", ran=ran, kind=kind, how=word, told=told)
        return
    kind = _likeliest(measured, simulated, spread, more / known)
    # a class of which nothing ran under its name ran unfused, as other kernels
    gone = (each for each in spread if each in _NAMED and not measured[each])
    slow = next(gone, "small" if kind == "other" else kind)
    name = "slow_kernel" if slow else "clock_drop"
    yield _cause(name, seconds, account.ranks, "slower", kind=slow, told=told)


def _likeliest(
    measured: dict[str, float], simulated: dict[str, float], spread: dict[str, float], excess: float
) -> str:
    """The class that is slow alone, by `excess` of all; empty where all are slower alike."""
    more = excess * sum(simulated.values())
    logs = {kind: math.log(max(measured[kind] / simulated[kind], _LEAST)) for kind in spread}
    weights = {kind: sigma**-2 for kind, sigma in spread.items()}

    def unlikely(slow: str, slower: float = 0.0) -> float:
        rest = [each for each in spread if each != slow]
        level = sum(weights[each] * (logs[each] - slower) for each in rest) / (
            _TOGETHER**-2 + sum(weights[each] for each in rest)
        )
        off = (level / _TOGETHER) ** 2 + sum(
            weights[each] * (logs[each] - slower - level) ** 2 for each in rest
        )
        if not slow:
            return off
        slower = measured[slow] - math.exp(level) * simulated[slow]
        return off + ((slower / more - 1) / _PART) ** 2 + _RARE * (slow == "other")

    odds = {"": unlikely("", math.log1p(excess)), **{each: unlikely(each) for each in spread}}
    return min(odds, key=lambda each: odds[each])


class _Odd(NamedTuple):
    """Kernels that ran another way than the scenario says."""

    kind: str  # class of kernels; empty where none did
    how: str
    seconds: float


def _odd(account: Account, shared: Ints, bits: int) -> _Odd:
    """The class of kernels of which most ran unfused, or wider than `bits`."""
    found = [_Odd("", "", 0.0)]
    for name, seconds in account.classes.items():
        kind, _, how = name.partition(" ")
        # norms, losses and the states of an optimizer are 32 bits wide by design
        wide = how.isdigit() and int(how) > (_WIDE if kind == "memory" else max(bits, _WIDE // 2))
        if wide or how == "unfused":
            words = f"in {how} bits" if wide else how
            found.append(_Odd(kind, words, float(seconds[shared].mean())))
    return max(found, key=lambda odd: odd.seconds)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
