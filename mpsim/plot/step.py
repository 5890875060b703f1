"""Charts of a training step: where the time goes, bubbles, use of compute and links, memory,
kernels, and who waited for whom.

Shapes: R ranks, E edges of time, K kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpsim.arrays import Floats
from mpsim.errors import ScenarioError
from mpsim.plot.chart import LINE_INCHES, Axis, Bars, Heat, Limit, Lines, Part, Series, fullest
from mpsim.plot.palette import BUBBLE, COMMUNICATION, LABELS, MEMORY, SERIES, event_of_part
from mpsim.program import TICK
from mpsim.result import MemoryCurve, Result
from mpsim.study.blame import Blame
from mpsim.training.bubbles import CAUSES, bubble_causes
from mpsim.training.roofline import Roofline, roofline
from mpsim.training.vocabulary import PARTS
from mpsim.units import Dimension, format_quantity, percent

TIME = Axis("time", "s")

_MOST_RANKS, _MOST_BLAMED = 64, 32  # rows drawn one by one
_LEAST_LOAD = 1e-3  # share: smaller loads look like this one
_LETTERS, _LEAST_NAMED = "ABCDEF", 0.005  # of kernels, and share of the time that earns one
_LARGEST, _SMALLEST = 20.0, 4.0  # marks of kernels [point]
_RESOURCES = {"compute": "compute", "scale_up": "scale-up links", "scale_out": "scale-out links"}
_LINES = {"compute": "-", "scale_up": "--", "scale_out": ":"}
_MARKS = {"forward": "o", "backward": "s", "weight_gradient": "^", "recompute": "D"}


def _bytes(size: float) -> str:
    return format_quantity(size, Dimension.BYTES)


def part_words(part: str) -> str:
    """A part of the step in words."""
    event = part.removeprefix("exposed_")
    return f"exposed {event}" if event != part else LABELS.get(part, part.replace("_", " "))


def parts_of(seconds: Mapping[str, Sequence[float] | Floats]) -> list[Part]:
    """Parts of the step that take time, in their events' colours, communication hatched."""
    return [
        Part(part_words(part), times, event := event_of_part(part), event in COMMUNICATION)
        for part, times in seconds.items()
        if np.any(times)
    ]


def attribution_chart(result: Result) -> Bars:
    """Parts of the step [s], of the mean rank and of every rank class."""
    program, parts = result.timeline.program, result.parts
    size = program.class_size
    each = parts if len(parts) > 1 else parts[:0]
    table = np.vstack([(size / size.sum()) @ parts, each]) * TICK
    names = ["mean", *program.rank_name[: len(each)]]
    mean, total = dict(zip(PARTS, table[0].tolist(), strict=True)), float(table[0].sum())
    most = sorted(mean, key=lambda part: -mean[part])[:3]
    told = ", ".join(f"{part_words(part)} {percent(mean[part] / (total or 1.0))}" for part in most)
    return Bars(
        title="Parts of the step",
        alt=f"Most of the time of the mean rank: {told}.",
        names=names,
        parts=parts_of(dict(zip(PARTS, table.T, strict=True))),
        value=TIME,
        written="share",
        size=(10.0, min(1.7 + 0.3 * len(names), 13.0)),
    )


def bubble_chart(result: Result) -> Bars:
    """Bubble of each rank class in shares of the step, by cause, and the mean over ranks."""
    timeline = result.timeline
    shares = bubble_causes(timeline, result.idle).ticks / timeline.makespan
    names, sizes = timeline.program.rank_name, timeline.program.class_size
    mean = (sizes / sizes.sum()) @ shares
    lead = int(np.argmax(mean))
    whole = float(mean.sum())
    return Bars(
        title="Bubble by cause",
        alt=(
            f"{percent(mean[lead] / (whole or 1.0))} of the bubble of the mean rank is"
            f" {CAUSES[lead]}."
        ),
        names=names,
        parts=[
            Part(cause, shares[:, i], f"cause.{cause}" if cause in BUBBLE else "bubble")
            for i, cause in enumerate(CAUSES)
            if shares[:, i].any()
        ],
        value=Axis("bubble, share of the step", "share"),
        across="rank",
        upright=True,
        written="total",
        limits=[Limit(whole, f"mean over ranks {percent(whole)}", "forward")],
        size=(float(np.clip(2.0 + 0.35 * len(names), 6.0, 12.0)), 3.6),
    )


def utilisation_chart(result: Result) -> Lines:
    """Share of compute and links in use over time, mean over ranks."""
    series, width = result.utilisation.series, np.diff(result.utilisation.series.edges_s)
    means = {name: float(np.average(own, weights=width)) for name, own in series.shares.items()}
    words = ", ".join(
        f"{_RESOURCES.get(name, name)} {percent(share)}" for name, share in means.items()
    )
    return Lines(
        title="Compute and links over time",
        alt=f"In use on average: {words} of the time.",
        series=[
            Series(
                f"{_RESOURCES.get(name, name)} (mean {percent(means[name])})",
                series.edges_s,
                np.append(values, values[-1:]),
                f"resource.{name}",
                line=_LINES.get(name, "-."),
                step=True,
            )
            for name, values in series.shares.items()
        ],
        x=Axis("time", "s", limits=(float(series.edges_s[0]), float(series.edges_s[-1]))),
        y=Axis(
            "in use, mean over ranks",
            "share",
            limits=(0.0, 1.02 * max(1.0, float(np.max([*series.shares.values()])))),
        ),
        size=(10.0, 3.2),
    )


def heat_chart(result: Result) -> Heat:
    """Share of time with kernels, by rank class and time; neighbours of many averaged."""
    use = result.utilisation
    names, share = list(result.timeline.program.rank_name), use.kernels
    least = int(np.argmin(share.mean(axis=1)))
    alt = f"{names[least]} computes least: {percent(share[least].mean())} of the time."
    if len(names) > _MOST_RANKS:
        groups = np.array_split(np.arange(len(names)), _MOST_RANKS)
        share = np.stack([share[group].mean(axis=0) for group in groups])
        names = [f"{names[group[0]]} to {names[group[-1]]}" for group in groups]
    return Heat(
        title="Kernels of each rank over time",
        alt=alt,
        names=names,
        edges=use.series.edges_s,
        values=share,
        x=TIME,
        z=Axis("kernels run", "share", limits=(0.0, 1.0)),
        across="rank",
        size=(10.0, float(np.clip(1.6 + 0.22 * len(names), 2.2, 10.0))),
    )


def links_chart(result: Result, *, most: int = 12) -> Heat:
    """Share of their bandwidth that links carry over time: the busiest of every tier, about `most`
    in all, and how many are left out. ScenarioError if no link carries anything.
    """
    use = result.links
    tiers = use.tiers or ("",) * len(use.names)
    busiest = use.busiest(len(use.names)).tolist()
    if not busiest:
        raise ScenarioError("no link carries anything: nothing to draw")
    by_tier = {tier: [link for link in busiest if tiers[link] == tier] for tier in tiers}
    each = -(-most // len([tier for tier in by_tier if by_tier[tier]]))
    chosen = [link for own in by_tier.values() for link in sorted(own[:each])]
    left_out = f"the busiest {len(chosen)} of {len(busiest):,} links that carry anything"
    top = busiest[0]
    return Heat(
        title="Links over time",
        alt=(
            f"Busiest is {use.names[top]}, which carries {percent(use.mean[top])} of what it could."
        ),
        notes=[left_out] if chosen != busiest else (),
        names=[use.names[link] for link in chosen],
        edges=use.edges_s,
        values=use.share[chosen],
        groups=[tiers[link] for link in chosen],
        x=TIME,
        z=Axis("in use", "share", log=10, limits=(_LEAST_LOAD, 1.0)),
        size=(10.0, 1.4 + 0.26 * max(len(chosen), 2)),
    )


def memory_chart(result: Result) -> Bars:
    """Memory of every rank at its fullest, by component [B], against the capacity."""
    memory = result.memory
    return memory_bars(result.program.rank_name, memory.components, memory.capacity)


def memory_bars(names: Sequence[str], components: Mapping[str, Floats], capacity: float) -> Bars:
    """The same from sizes by component, float64[R]."""
    total = np.sum(list(components.values()), axis=0)
    full = int(np.argmax(total))
    return Bars(
        title="Memory at its fullest",
        alt=f"{names[full]} is fullest with {_bytes(total[full])} of {_bytes(capacity)}.",
        names=names,
        parts=[
            Part(name, sizes, f"memory.{name}" if name in MEMORY else "other")
            for name, sizes in components.items()
            if np.any(sizes)
        ],
        value=Axis("memory at its fullest", "B"),
        across="rank",
        upright=True,
        written="total",
        limits=[capacity_limit(capacity)],
        size=(float(np.clip(2.5 + 0.4 * len(names), 6.0, 12.0)), 4.0),
    )


def capacity_limit(capacity: float) -> Limit:
    """Memory of an accelerator [B]."""
    return Limit(capacity, f"capacity {_bytes(capacity)}")


def memory_curve_chart(result: Result) -> Lines:
    """Memory of the first, fullest and last rank over time, thinly what is always there."""
    memory = result.memory
    chosen = sorted({0, memory.fullest, len(memory.total) - 1})
    names = result.program.rank_name
    curves = {names[rank]: result.memory_curve(rank) for rank in chosen}
    last = max(float(curve.time_s[-1]) for curve in curves.values())
    most = max(memory.capacity, *(float(curve.held.max()) for curve in curves.values()))
    series = []
    for (name, curve), colour in zip(curves.items(), SERIES, strict=False):
        series.append(Series(name, curve.time_s, curve.held, colour, width=0.9, step=True))
        series.append(Series("", [0.0, last], [curve.standing] * 2, colour, width=0.5))
    return Lines(
        title="Memory over time",
        alt=f"{len(curves)} ranks; thin lines are what is there all the time.",
        notes=["thin: there all the time"],
        series=series,
        x=Axis("time", "s", limits=(0.0, last)),
        y=Axis("memory held", "B", limits=(0.0, 1.08 * most)),
        limits=[capacity_limit(memory.capacity)],
        grid="y",
        size=(9.0, 4.0),
    )


def memory_kinds_chart(result: Result, *, rank: int | None = None) -> Lines:
    """Memory of one rank class over time, stacked by kind; of the fullest when left out."""
    memory = result.memory
    rank = memory.fullest if rank is None else rank
    name, curve = result.program.rank_name[rank], result.memory_curve(rank)
    peak = Limit(
        float(curve.time_s[int(curve.held.argmax())]),
        f"fullest in the {memory.when[rank]}" if memory.when else "fullest",
        "overhead",
        along=True,
    )
    ranges = result.summary.get("interval", {})
    held = ranges.get("peak_memory_bytes") if rank == memory.fullest else None
    words = ("80 % interval of the peak from", "80 % interval of the peak to")
    between = [
        Limit(end, f"{word} {_bytes(end)}", "optimizer")
        for word, end in zip(words, held or (), strict=False)
    ]
    return memory_areas(name, curve, float(memory.capacities[rank]), [*between, peak])


def memory_areas(
    name: str, curve: MemoryCurve, capacity: float, limits: Sequence[Limit] = ()
) -> Lines:
    """The same of a curve, under the capacity [B]. ScenarioError if its parts are not known."""
    if not curve.components:
        raise ScenarioError("this memory is not known by kind; simulate the scenario again")
    moments = fullest(curve.held)
    # what changes stands on top, where its edge is the sum
    kinds = sorted(curve.components, key=lambda kind: float(np.ptp(curve.components[kind])))
    most = float(curve.held.max())
    highest = max(capacity, most, *(line.value for line in limits if not line.along))
    return Lines(
        title=f"Memory of {name} over time",
        alt=f"{name} holds {_bytes(most)} at most, {_bytes(curve.standing)} of it all the time.",
        series=[
            Series(kind, curve.time_s[moments], held[moments], f"memory.{kind}", step=True)
            for kind in kinds
            if (held := curve.components[kind]).any()
        ],
        x=Axis("time", "s", limits=(0.0, float(curve.time_s[-1]))),
        y=Axis(f"memory held by {name}", "B", limits=(0.0, 1.08 * highest)),
        limits=[capacity_limit(capacity), *limits],
        stacked=True,
        grid="y",
        size=(9.0, 4.0),
    )


def roofline_chart(result: Result) -> Lines:
    """FLOPs per byte against achieved FLOP/s of kernels, under the peaks; marks by time.

    Kernels that take most time have a letter at their slowest part, named in notes. Kernels that
    only move data have no place in it; a note says how much of the time they take.
    """
    kernels = roofline(result.plan)
    works = kernels.flops > 0
    ridge, top = max(kernels.peaks.values()) / kernels.bandwidth, max(kernels.peaks.values())
    least = min(float(kernels.intensity[works].min(initial=ridge)), ridge) / 4
    most = max(float(kernels.intensity[works].max(initial=ridge)), ridge) * 4
    moving = float(kernels.seconds[~works].sum() / kernels.seconds.sum())
    lowest = float(kernels.achieved[works].min(initial=top))
    slowest = _slowest(kernels)
    letters = dict(zip(slowest, _LETTERS, strict=False))
    notes = [
        f"{letters[place]}  {kernels.names[place].replace('_', ' ')}: {share:.0%} of the kernel"
        f" time; slowest is its {part_words(kernels.parts[place])} with"
        f" {kernels.achieved[place] / 1e12:,.0f} TFLOP/s"
        for place, share in slowest.items()
    ]
    if moving:
        notes.append(f"{moving:.0%} of the kernel time only moves data: no FLOPs, not shown")
    longest = int(np.argmax(np.where(works, kernels.seconds, -1.0)))
    return Lines(
        title="Roofline",
        alt=(
            f"Most time goes to {_kernel(kernels, longest)}, at"
            f" {kernels.achieved[longest] / 1e12:.4g} TFLOP/s."
        ),
        notes=notes,
        series=[*_roofs(kernels, least, most), *_kernel_series(kernels, letters)],
        x=Axis("FLOPs per byte of device memory", "FLOP/B", log=10, limits=(least, most)),
        y=Axis(
            "achieved",
            "FLOP/s",
            log=10,
            limits=(min(lowest / 2, least * kernels.bandwidth), 3.0 * top),
        ),
        size=(8.0, 4.6 + LINE_INCHES * len(notes)),
    )


def _slowest(kernels: Roofline) -> dict[int, float]:
    """The slowest part of each kernel that takes most time, and the share of all its parts."""
    of_kernel: dict[str, list[int]] = {}
    for place in np.flatnonzero(kernels.flops > 0).tolist():
        of_kernel.setdefault(kernels.names[place], []).append(place)
    whole = kernels.seconds.sum()
    shares = {
        min(places, key=kernels.achieved.__getitem__): float(kernels.seconds[places].sum() / whole)
        for places in of_kernel.values()
    }
    order = sorted(shares, key=lambda place: -shares[place])[: len(_LETTERS)]
    return {place: shares[place] for place in order if shares[place] > _LEAST_NAMED}


def _roofs(kernels: Roofline, least: float, most: float) -> list[Series]:
    """Lines of memory and of each peak."""
    roofs = []
    for number, (name, peak) in enumerate(kernels.peaks.items()):
        along = np.array([least, peak / kernels.bandwidth, most])
        label = f"{name} {peak / 1e12:,.0f} TFLOP/s, memory {kernels.bandwidth / 1e12:.3g} TB/s"
        roof = np.minimum(peak, along * kernels.bandwidth)
        roofs.append(
            Series(label, along, roof, "optimizer", line=("-", "--", ":")[number % 3], width=1.2)
        )
    return roofs


def _kernel(kernels: Roofline, place: int) -> str:
    return f"{kernels.names[place].replace('_', ' ')}, {kernels.parts[place].replace('_', ' ')}"


def _kernel_series(kernels: Roofline, letters: Mapping[int, str]) -> list[Series]:
    """One mark a kernel, a series a part of the step; some have a letter."""
    works = np.flatnonzero(kernels.flops > 0).tolist()
    size = np.maximum(_LARGEST * np.sqrt(kernels.seconds / kernels.seconds.max()), _SMALLEST)
    series = []
    # forwards last: their marks are smaller than what else may lie in the same place
    for part in reversed(dict.fromkeys(kernels.parts[place] for place in works)):
        mine = [place for place in works if kernels.parts[place] == part]
        event = event_of_part(part)
        series.append(
            Series(
                part_words(part),
                kernels.intensity[mine],
                kernels.achieved[mine],
                event,
                line="",
                mark=_MARKS.get(event, "o"),
                size=size[mine],
                labels=[_kernel(kernels, place) for place in mine],
                written={i: letters[place] for i, place in enumerate(mine) if place in letters},
                alpha=0.85,
            )
        )
    return series


def blame_chart(blame: Blame) -> Heat:
    """Seconds that ranks of each class waited beyond the undisturbed step, by who caused it."""
    rows, columns = (
        np.sort(np.argsort(-np.abs(blame.matrix).sum(axis=axis), kind="stable")[:_MOST_BLAMED])
        for axis in (1, 0)
    )
    return Heat(
        title="Who waited for whom",
        alt="Waiting beyond the undisturbed step, by who caused it and who suffered it.",
        names=[blame.causes[row] for row in rows],
        columns=[blame.names[column] for column in columns],
        edges=[column - 0.5 for column in range(len(columns) + 1)],
        values=blame.matrix[np.ix_(rows, columns)],
        x=Axis("suffered by"),
        z=Axis("waiting of a rank beyond the undisturbed step", "s", limits=(0.0, None)),
        across="caused by",
        size=(3.0 + 0.3 * len(columns), 2.0 + 0.3 * len(rows)),
    )
