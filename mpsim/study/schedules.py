"""One schedule with given times, and all of them side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np

from mpsim import structs
from mpsim.engine import Timeline, run
from mpsim.errors import DeadlockError, ScheduleError
from mpsim.schedule import Action, Orders, make_orders, schedule, schedules
from mpsim.schedule.search.synthesise import Synthesis, synthesise
from mpsim.table import plural
from mpsim.training import from_orders
from mpsim.units import percent

Number = int | float | Fraction

_SPANS = ("makespan", "max_rank_span", "bubble_fraction", "bubble_over_ideal")
_COMPARED_CHUNKS = 2  # virtual stages of schedules that can have any number of them


@structs.dataclass(frozen=True, slots=True)
class Times:
    """Times of the actions of one chunk, exact, in any one unit."""

    # forward, backward (input gradient), weight; a full backward takes the last two
    forward: Fraction
    backward: Fraction
    weight: Fraction
    send: Fraction = Fraction(0)  # of a message between ranks

    @classmethod
    def of(cls, forward: Number, backward: Number, weight: Number, send: Number = 0) -> Times:
        """From numbers; floats are taken at the value they print."""
        exact = (
            Fraction(str(number)) if isinstance(number, float) else Fraction(number)
            for number in (forward, backward, weight, send)
        )
        return cls(*exact)

    def divided(self, parts: Fraction) -> Times:
        """The same work in chunks of a `parts`-th; messages keep their time."""
        return Times(self.forward / parts, self.backward / parts, self.weight / parts, self.send)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Forward, input gradient, weight gradient and message [1 / scale]."""
        return tuple(float(time * self.scale) for time in structs.astuple(self))

    @property
    def scale(self) -> int:
        """Ticks in a unit that make all times whole."""
        return math.lcm(*(time.denominator for time in structs.astuple(self)))


@structs.dataclass(frozen=True, slots=True, eq=False)
class TimedSchedule:
    """Orders, and when each action runs."""

    orders: Orders
    timeline: Timeline
    scale: int  # ticks of the timeline in a unit of the given times
    ideal: float  # busy time of the busiest rank [unit of the times]

    @property
    def makespan(self) -> float:
        """First start to last end anywhere [unit of the times]."""
        return self.timeline.makespan / self.scale

    @property
    def max_rank_span(self) -> float:
        """Longest time from a rank's own first start to its own last end [unit of the times]."""
        program, spans = self.timeline.program, []
        for rank in range(program.ranks):
            rows = self.timeline.rows(rank)
            spans.append(float(self.timeline.end[rows].max() - self.timeline.start[rows].min()))
        return max(spans) / self.scale

    @property
    def bubble_fraction(self) -> float:
        """Idle share of the makespan."""
        return 1 - self.ideal / self.makespan if self.makespan else 0.0

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over busy time, as the Megatron papers print it."""
        return (self.makespan - self.ideal) / self.ideal if self.ideal else 0.0

    def to_json(self) -> dict[str, object]:
        """The figures of the outside contract."""
        orders = self.orders
        return {
            **structs.named(orders, "schedule", "pp", "microbatches", "virtual_stages"),
            "orders": orders.tokens(),
            **structs.named(self, *_SPANS),
            "peak_inflight_activations": orders.peak_inflight(),
            "peak_until_input_grad": orders.peak_until_input_grad(),
        }


def time_schedule(orders: Orders, times: Times, *, overlap: str = "late-send") -> TimedSchedule:
    """Run orders with given times. `times`: of one chunk. `overlap`: how fused blocks run; see
    `mpsim.training.from_orders`. ScheduleError if actions wait for each other.
    """
    scale = times.scale
    forward, backward, weight, send = times.ticks
    program = from_orders(
        orders, forward=forward, backward=backward, weight=weight, send=send, overlap=overlap
    )
    cost = np.array([forward, backward + weight, backward, weight])
    busy = np.add.reduceat(cost[orders.kind], orders.rank_ptr[:-1])
    try:
        timeline = run(program, "replay")
    except DeadlockError as error:
        raise ScheduleError(f"{orders.schedule}: {error}") from error
    return TimedSchedule(orders, timeline, scale, float(busy.max()) / scale)


def named_orders(
    name: str,
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int | None = None,
    times: Times,
    memory: float | None = None,
    **given: int,
) -> Orders:
    """Orders of a schedule by name; those that are searched are searched for `times` and, where
    they can, `memory`.

    `virtual_stages`: what the schedule has when absent. `times`: of one chunk. `memory`: chunks
    whose activations fit on a rank. `**given`: options of that schedule alone.
    """
    known = () if name.endswith(".csv") else schedule(name).options
    wanted: dict[str, object] = {
        "times": (float(times.forward), float(times.backward), float(times.weight)),
        "send": float(times.send),
        "memory_limit": memory,
    }
    options = {key: value for key, value in wanted.items() if key in known}
    options.update(given)
    if virtual_stages is not None:
        options["virtual_stages"] = virtual_stages
    return make_orders(name, pp=pp, microbatches=microbatches, **options)  # type: ignore[arg-type]


def schedule_times(
    name: str,
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int | None = None,
    forward: Number = 1,
    backward: Number = 1,
    weight: Number = 1,
    send: Number = 0,
    overlap: str = "late-send",
) -> TimedSchedule:
    """Time one pipeline schedule: what ``mpsim schedule`` does.

    Parameters
    ----------
    name : str
        Of a schedule, or the path of a CSV file of orders.
    virtual_stages : int, optional
        What the schedule has when absent.
    forward, backward, weight, send : int, float or Fraction
        Of one chunk, in any unit; a full backward takes backward and weight.
    overlap : str
        How fused blocks run; see `mpsim.training.from_orders`.

    Raises
    ------
    ScheduleError
        If there is no such schedule, it cannot be built, or actions wait for each other.

    Examples
    --------
    >>> schedule_times("1f1b", pp=4, microbatches=8).bubble_over_ideal
    0.375
    """
    times = Times.of(forward, backward, weight, send)
    orders = named_orders(
        name, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages, times=times
    )
    return time_schedule(orders, times, overlap=overlap)


@structs.dataclass(frozen=True, slots=True, eq=False)
class SynthesisedSchedule:
    """Orders the synthesiser found, and how good they are."""

    best: Synthesis  # best order on a loop or, with two chunks a rank, on a V [unit of the times]
    # fastest known schedule for the same work and memory that takes less: with other chunks, two
    # copies of the weights or microbatches in parts
    faster: ScheduleChoice | None

    def to_json(self) -> dict[str, object]:
        """Figures beyond those of any schedule."""
        best, named = self.best, self.best.best_named
        return {
            "lower_bound": best.lower_bound,
            "gap": best.gap,
            "best_named": named and {"schedule": named[0], "makespan": named[1]},
            "gain": best.gain,
            "faster": self.faster and self.faster.to_json(),
        }

    def verdict(self) -> Iterator[str]:
        """How far the order is from its bound, and what known schedule beats it."""
        best, named = self.best, "no named schedule fits the memory"
        chunks = best.orders.virtual_stages
        if best.best_named is not None:
            name, makespan = best.best_named
            named = f"{name} takes {makespan:g}, {percent(best.gain)} of it saved"
        yield (
            f"at most {percent(best.gap)} above the best order of whole microbatches with "
            f"{plural(chunks, 'chunk')} a rank (lower bound {best.lower_bound:g}); {named}"
        )
        if self.faster is None or self.faster.timed is None:
            return
        timed = self.faster.timed
        if self.faster.weight_copies > 1:
            how = "two copies of the weights"
        elif timed.orders.virtual_stages != chunks:
            how = f"{plural(timed.orders.virtual_stages, 'chunk')} a rank"
        else:
            how = "microbatches in parts"
        yield (
            f"faster: {self.faster.name} with {how} takes {timed.makespan:g} for the same work, "
            f"{percent(1 - timed.makespan / best.makespan)} less (mpsim schedule all compares them)"
        )


def synthesise_schedule(
    *,
    pp: int,
    microbatches: int,
    times: Times,
    virtual_stages: int | None = None,
    memory: float | None = None,
    **options: int,
) -> SynthesisedSchedule:
    """Find an order that is never worse than the best known one with as many chunks, and say what
    beats it with others.

    `times`: of one chunk. `virtual_stages`: chunks a rank; 1 when absent. `memory`: chunks whose
    activations fit on a rank. `**options`: ``budget`` (evaluations) and ``seed`` of the search.
    """
    if unknown := [key for key in options if key not in ("budget", "seed")]:
        raise ScheduleError(
            f"got option {unknown[0]!r} for 'auto', which accepts budget, seed; remove the option"
        )
    chunks = virtual_stages or 1
    best = _synthesise(pp, microbatches, chunks, times, memory, **options)
    whole = times.divided(Fraction(1, chunks))
    room = None if memory is None else memory / chunks
    known = [known.name for known in schedules() if known.trains and not known.synthesises]
    first, *_ = compare_schedules(
        pp=pp, microbatches=microbatches, times=whole, memory=room, names=known
    )
    beaten = first.timed and not first.reason and first.timed.makespan < best.makespan
    return SynthesisedSchedule(best, first if beaten else None)


def _synthesise(
    pp: int, microbatches: int, chunks: int, times: Times, memory: float | None, **options: int
) -> Synthesis:
    """The best order on any map of so many chunks a rank, by their lowest bound."""
    scale = times.scale
    forward, backward, weight, send = times.ticks
    found: list[Synthesis] = []
    failures: list[ScheduleError] = []
    for stage_map in ("loop", "v") if chunks == _COMPARED_CHUNKS else ("loop",):
        try:
            synthesis = synthesise(
                pp=pp,
                microbatches=microbatches,
                virtual_stages=chunks,
                stage_map=stage_map,
                forward=forward,
                backward=backward,
                weight=weight,
                send=send,
                memory_limit=memory,
                **options,
            )
        except ScheduleError as error:
            failures.append(error)
        else:
            found.append(synthesis)
    if not found:
        raise failures[0]
    best = min(found, key=lambda synthesis: synthesis.makespan)
    named = [synthesis.best_named for synthesis in found if synthesis.best_named]
    schedule, makespan = min(named, key=lambda known: known[1], default=("", 0.0))
    return structs.replace(
        best,
        makespan=best.makespan / scale,
        lower_bound=min(synthesis.lower_bound for synthesis in found) / scale,
        best_named=(schedule, makespan / scale) if named else None,
    )


@structs.dataclass(frozen=True, slots=True, eq=False)
class ScheduleChoice:
    """One schedule of a comparison; `timed` is None where `reason` says why it cannot be used."""

    name: str
    timed: TimedSchedule | None
    # most that any rank holds, until W, in activations of a whole rank's share of the model
    activations: float = 0.0
    weight_copies: int = 1
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """Figures of the comparison."""
        if self.timed is None:
            return {"schedule": self.name, "reason": self.reason}
        timed = self.timed
        return {
            "schedule": self.name,
            "virtual_stages": timed.orders.virtual_stages,
            **structs.named(timed, *_SPANS),
            "peak_activations": self.activations,
            "weight_copies": self.weight_copies,
            "reason": self.reason or None,
        }


def compare_schedules(
    *,
    pp: int,
    microbatches: int,
    times: Times,
    memory: float | None = None,
    names: Iterable[str] | None = None,
) -> list[ScheduleChoice]:
    """Run every schedule on the same work: the fastest first, those that do not fit after those
    that do, those that cannot be built last.

    `times`: of a rank's whole share of the model; schedules with several chunks a rank get them
    divided. `memory`: activations of such a share that fit on a rank. `names`: all that train, when
    absent.
    """
    if names is None:
        names = [schedule.name for schedule in schedules() if schedule.trains]
    results = [_choice(name, pp, microbatches, times, memory) for name in names]
    return sorted(
        results,
        key=lambda choice: (
            choice.timed is None,
            bool(choice.reason),
            choice.timed.makespan if choice.timed else 0.0,
        ),
    )


def _choice(
    name: str, pp: int, microbatches: int, times: Times, memory: float | None
) -> ScheduleChoice:
    try:
        orders = _orders(name, pp, microbatches, times, memory)
        share = _share(orders, microbatches)
        timed = time_schedule(orders, times.divided(share))
    except ScheduleError as error:
        return ScheduleChoice(name, None, reason=str(error))
    activations = float(max(orders.peak_inflight()) / share)
    fits = memory is None or activations <= memory
    return ScheduleChoice(
        name,
        timed,
        activations=activations,
        weight_copies=orders.stages // (int(orders.model_stage.max()) + 1),
        reason="" if fits else f"holds {activations:g} activations; {memory:g} fit",
    )


def _orders(name: str, pp: int, microbatches: int, times: Times, memory: float | None) -> Orders:
    """Orders of one chunk a rank, or two where needed; the faster where orders are searched."""
    failures: list[ScheduleError] = []
    searched: list[Synthesis] = []
    facts = schedule(name)
    for chunks in (1, _COMPARED_CHUNKS) if facts.chunks is not None else (_COMPARED_CHUNKS,):
        divided = times.divided(Fraction(chunks))
        room = None if memory is None else memory * chunks
        try:
            if facts.synthesises:
                searched.append(_synthesise(pp, microbatches, chunks, divided, room))
                continue
            return named_orders(
                name,
                pp=pp,
                microbatches=microbatches,
                virtual_stages=chunks,
                times=divided,
                memory=room,
            )
        except ScheduleError as error:
            failures.append(error)
    if searched:
        return min(searched, key=lambda synthesis: synthesis.makespan).orders
    raise failures[0]


def _share(orders: Orders, microbatches: int) -> Fraction:
    """Number of chunks that make up a rank's share of one microbatch."""
    parts = Fraction(int(orders.model_stage.max()) + 1, orders.pp)
    kinds = np.isin(orders.kind, [Action.F])
    units = Fraction(int(kinds.sum()), orders.stages * microbatches)
    copies = Fraction(orders.stages, int(orders.model_stage.max()) + 1)
    return parts * units * copies
