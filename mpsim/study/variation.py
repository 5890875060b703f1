"""Variation: the step when accelerators, links, operations differ, and who waits for whom.

A rank that differs unfolds only what it touches: its replica becomes a class of its own, and so
does no other. Ranks that meet inside an action, in the collectives of its layers, all take the time
of the slowest. Kernels of an action take longer, its collectives do not, so that an action is not
slowed down by more than it computes, nor do launches; what it sends over a thinner NIC does.

Shapes: K samples, N rows of the unfolded program, R its rank classes, A copies of each folded
class, P pipeline ranks, T templates, F factors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.engine import Timeline
from mpsim.engine.kernels import reduce_template
from mpsim.engine.structure import Structure
from mpsim.errors import ScenarioError
from mpsim.memo import remembered
from mpsim.parallel import FOLDED
from mpsim.program import TICK, Program, Stream
from mpsim.program.links import links_of
from mpsim.program.unfold import Unfolding
from mpsim.result import Result
from mpsim.scenario.checks import absent_parts
from mpsim.scenario.sections import Variation
from mpsim.simulate import Prepared
from mpsim.study.blame import Blame, measure_blame
from mpsim.study.draws import (
    COMPUTE,
    QUANTILES,
    VALUES,
    Steps,
    factors,
    folded_actions,
    peers_of,
    sigma_of,
)
from mpsim.study.rows import part_text
from mpsim.table import Section, Sheet, Shown, plural
from mpsim.training.vocabulary import PARTS

_GRID = 33  # factors at which the time of an action is computed; between them it is interpolated
# ranks that meet inside actions stay together: their coordinates say nothing
_FOLDED = "".join(f" {axis.name} 0" for axis in reversed(FOLDED) if axis.name != "dp")
_PERCENTILES = (5, 25, 50, 75, 95, 99)
_CONFIDENCE = 0.95
_EXPERTS = "experts"  # how the names of their kernels begin
_HOST = PARTS.index("host")


@structs.dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of the step time with its confidence interval."""

    percent: float
    seconds: float  # of the sample [s]
    # low_s, high_s: between these the percentile of all steps lies with 95 % confidence [s]; None
    # where the sample is too small to say
    low_s: float | None
    high_s: float | None


@structs.dataclass(frozen=True, slots=True, eq=False, repr=False)
class VariedSteps(Shown):
    """Step times that vary, and who is to blame for waiting in the first of them."""

    scenario: str
    variation: Variation
    seed: int
    undisturbed_s: float  # step time of a machine without variation [s]
    step_times_s: Floats  # float64[K], one a sample, in the order drawn [s]
    blame: Blame  # of the first sample
    timeline: Timeline  # of the first sample

    @property
    def mean_s(self) -> float:
        """Mean step time [s]."""
        return float(self.step_times_s.mean())

    @property
    def slowdown(self) -> float:
        """Mean step time over the undisturbed one."""
        return self.mean_s / self.undisturbed_s

    def percentile(self, percent: float) -> Percentile:
        """One percentile, with the order statistics that enclose it."""
        ordered = np.sort(self.step_times_s)
        low, high = _enclosing(len(ordered), percent / 100)
        return Percentile(
            percent,
            float(np.quantile(ordered, percent / 100)),
            None if low is None else float(ordered[low]),
            None if high is None else float(ordered[high]),
        )

    def percentiles(self) -> tuple[Percentile, ...]:
        """Several percentiles."""
        return tuple(self.percentile(percent) for percent in _PERCENTILES)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "samples": len(self.step_times_s),
            **structs.named(self, "seed", "undisturbed_s", "mean_s", "slowdown"),
            "percentiles": [structs.asdict(percentile) for percentile in self.percentiles()],
            "blame": self.blame.to_json(),
        }

    def sheet(self) -> Sheet:
        """Percentiles of the step time, and who made others wait most."""
        rows = tuple(
            (
                f"{percentile.percent:g} %",
                part_text(percentile.seconds),
                f"{part_text(percentile.low_s)} to {part_text(percentile.high_s)}",
            )
            for percentile in self.percentiles()
        )
        title = (
            f"{self.scenario} with variation, {plural(len(self.step_times_s), 'step')} drawn: "
            f"mean {part_text(self.mean_s)}, {self.slowdown:.4f} of undisturbed"
        )
        worst = ", ".join(f"{name} {part_text(seconds)}" for name, seconds in self.blame.worst(3))
        lines = (f"waiting of all ranks caused by: {worst}",) if worst else ()
        header = ("steps", "up to", "95 % confidence")
        return Sheet("", (Section(rows, header, (0, 1), title=title, lines=lines),))


def simulate_variation(
    result: Result,
    variation: Variation | None = None,
    *,
    samples: int | None = None,
    seed: int | None = None,
) -> VariedSteps:
    """Draw machines and steps as the ``variation:`` section says.

    `result`: where rates change while a step runs (``network: flow``, ``interference``), each step
    is simulated on its own. `variation`: that of the scenario by default. `samples`, `seed`: those
    of the section and of the scenario by default; without anything random, one step is all there
    is.

    Raises ScenarioError: if there is no variation, it names a rank or node that does not exist, or
    data-parallel replicas differ.
    """
    plan = result.plan
    chosen = variation or result.scenario.variation
    if chosen is None:
        raise ScenarioError(
            f"{plan.name}: has no variation; give one, such as variation: {{jitter: 0.02}}"
        )
    if plan.classes:
        raise ScenarioError(f"{plan.name}: variation needs replicas that are alike")
    count = (samples or chosen.samples) if chosen.is_random else 1
    seed = plan.seed if seed is None else seed
    machine = _Machine(result, chosen)
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    base = machine.undisturbed()
    spans: list[Floats] = []
    first: _Draw | None = None
    for begin in range(0, count, machine.at_once):
        drawn = range(begin, min(begin + machine.at_once, count))
        draws = [machine.draw(generator) for _ in drawn]
        first = first or draws[0]
        spans.append(machine.makespans(draws))
    assert first is not None
    varied = machine.timeline(first)
    blame = measure_blame(varied, base, machine.culprit)
    times = np.concatenate(spans) * TICK
    return VariedSteps(plan.name, chosen, seed, base.step_time_s, times, blame, varied)


class _Draw(NamedTuple):
    """One step on one machine."""

    # slow, thin: float64[R], times that a class's kernels, and what it sends on NICs, take longer
    slow: Floats
    thin: Floats
    jitter: Floats  # float64[N], how many times longer each action, message and collective takes
    # float64[N], what the experts of each action have to do, of what they have on average
    load: Floats


class _Machine:
    """The unfolded step, and the durations of its rows on a machine whose parts differ."""

    def __init__(self, result: Result, variation: Variation) -> None:
        prepared = Prepared.of(result)
        program, mesh = prepared.program, prepared.plan.layout.mesh
        self._variation, self._templates = variation, program.templates
        self._peers = peers_of(program, mesh)
        self._replicas = max(1, int(program.class_size.max(initial=1)) // self._peers)
        self._shape, self._dp = (mesh.pp, self._replicas, -1), mesh.dp
        slow, thin = _given(result, variation)
        self._slow = slow.reshape(self._shape)
        self._thin = [(share.reshape(self._shape), time) for share, time in thin]
        self._copies = self._parts(variation)
        plain = folded_actions(program)
        touched = None if len(self._copies) == self._replicas else self._alone
        alone = None if touched is None else {"dp": touched}
        unfolding = Unfolding(plain, {"dp": self._replicas}, touched=alone)
        unfolded = unfolding.program()
        self.program: Program = self._named(unfolded)
        self.base = self.program.duration
        self._template = np.repeat(program.template, unfolding.count)
        self._computes = np.isin(self.program.kind, COMPUTE) & (
            self.program.stream == Stream.COMPUTE
        )
        self._far = self.program.out_bytes > 0
        self.at_once = max(1, VALUES // max(len(self.base), 1))
        self._moving = np.repeat(links_of(plain, prepared.plan).work, unfolding.count)
        self._steps: Steps | None = None
        host = prepared.plan.layout.framework.host
        self._runs_ahead = not host.launch_blocking and not host.layer_synchronizations
        if prepared.replays:
            self._structure = Structure.unfolded(plain, unfolding)
        else:
            self._steps = Steps(prepared, self._replicas, touched)
            self._steps.program = self._named(self._steps.program)

    def _named(self, unfolded: Program) -> Program:
        """A program whose rank classes have the names of differences, and ranks of each."""
        # one class that stands for replicas which meet inside actions has the name of none of them
        folded = f" dp 0{_FOLDED}" if self._replicas == 1 < self._dp else _FOLDED
        names = tuple(name.replace(folded, "") for name in unfolded.rank_name)
        sizes = unfolded.class_size * self._peers
        return structs.replace(unfolded, rank_name=names, class_size=sizes)

    def undisturbed(self) -> Timeline:
        """The step of a machine without variation."""
        if self._steps is not None:
            return self._steps.timeline(np.ones(len(self._steps.program)))
        return self._replayed(self.base)

    def timeline(self, draw: _Draw) -> Timeline:
        """The unfolded step as it ran."""
        if self._steps is None:
            return self._replayed(self._durations(draw))
        steps = self._steps
        narrow = None if steps.links is None else steps.thinned(draw.thin)
        return steps.timeline(self._scale(steps, draw), narrow)

    def makespans(self, draws: Sequence[_Draw]) -> Floats:
        """Makespans of several steps [ticks]."""
        if self._steps is None:
            spans = self._structure.makespans(np.stack([self._durations(draw) for draw in draws]))
            return np.maximum(spans, self.program.least)
        return np.array([self.timeline(draw).makespan for draw in draws])

    def _replayed(self, duration: Floats) -> Timeline:
        start, end = self._structure.replay(duration)
        program = structs.replace(self.program, duration=duration)
        return Timeline(program=program, start=start, end=end, engine="replay")

    @property
    def culprit(self) -> Ints:
        """Rank class with the thinnest link that each row uses, -1 where none is thin [N]."""
        program = self.program if self._steps is None else self._steps.program
        thin = np.ones(program.ranks)
        for share, _ in self._thin:
            thin = np.maximum(thin, self._of_classes(share))
        rank = program.slot // len(Stream)
        pointer = program.slot_ptr
        owner = np.repeat(np.arange(len(program)), np.diff(pointer))
        order = np.lexsort((thin[rank], owner))
        worst = rank[order][pointer[1:] - 1]
        return np.where((program.out_bytes > 0) & (thin[worst] > 1), worst, -1)

    def draw(self, generator: np.random.Generator) -> _Draw:
        """Draw a step on a machine."""
        variation = self._variation
        slow = self._slow
        if variation.speed:
            sigma = sigma_of(variation.speed)
            slow = slow * np.exp(generator.normal(-(sigma**2) / 2, sigma, slow.shape))
        factor = self._of_classes(slow)
        thin = np.ones_like(factor)
        for share, time in self._thin:
            # a link that flaps is down for whole steps: short only against a run
            if time >= 1 or generator.random() < time:
                thin = np.maximum(thin, self._of_classes(share))
        jitter, load = np.ones(len(self.base)), np.ones(len(self.base))
        for variance, peers, rows in (
            (variation.jitter, self._peers, self._computes),
            (variation.network_jitter, 1, ~self._computes),
        ):
            if variance:
                drawn = generator.integers(0, QUANTILES, int(rows.sum()))
                jitter[rows] = _table(variance, peers)[drawn]
        if variation.experts:
            for template in self._loaded:
                rows = self._template == template
                drawn = generator.integers(0, QUANTILES, int(rows.sum()))
                load[rows] = _table(variation.experts, 1)[drawn]
        return _Draw(factor, thin, jitter, load)

    def _durations(self, draw: _Draw) -> Floats:
        """Durations of actions, messages and collectives [N]."""
        durations = self._slowed(draw.slow, draw.thin) * draw.jitter
        return np.rint(self._loaded_with(draw, durations))

    def _loaded_with(self, draw: _Draw, durations: Floats) -> Floats:
        """Durations, those of actions with what their experts have to do."""
        if self._variation.experts:
            for template, (loads, times) in self._loaded.items():
                rows = self._template == template
                durations[rows] *= np.interp(draw.load[rows], loads, times)
        return durations

    def _scale(self, steps: Steps, draw: _Draw) -> Floats:
        """Factors of rows where kernels and transfers are rows that meet; thin links aside."""
        program, home = steps.program, steps.program.rank
        computes = np.isin(program.kind, COMPUTE) & (program.stream == Stream.COMPUTE)
        scale: Floats = draw.jitter[steps.coarse]
        whole = program.template >= 0
        waits = program.part == _HOST
        kernels = computes & ~whole & ~waits
        scale[kernels] *= draw.slow[home[kernels]]
        hosts = self._template[steps.coarse]
        for number in np.unique(hosts[computes & ~whole & waits]).tolist():
            mine = np.flatnonzero(computes & waits & (hosts == number))
            slow, index = np.unique(draw.slow[home[mine]], return_inverse=True)
            left = 1.0 - self._reduced(number, slow, 1.0)[1] / self._templates[number].parts[_HOST]
            scale[mine] *= left[index]
        if whole.any():  # no action sends over NICs, so that it takes its own time
            coarse = steps.coarse[whole]
            durations = self._loaded_with(draw, self._slowed(draw.slow, np.ones_like(draw.thin)))
            base = self.base[coarse]
            # what takes no time has no factor
            scale[whole] *= np.divide(
                durations[coarse], base, out=np.ones_like(base), where=base > 0
            )
        else:
            names = np.array([name.startswith(_EXPERTS) for name in program.labels], dtype=bool)
            routed = (program.stream == Stream.EP) | names[program.label]
            routed &= self._template[steps.coarse] >= 0
            scale[routed] *= draw.load[steps.coarse[routed]]
        if steps.links is None:  # nothing else makes what leaves the domain slower
            far = program.out_bytes > 0
            scale[far] *= draw.thin[home[far]]
        return scale

    def _parts(self, variation: Variation) -> list[list[int]]:
        """Replicas that stay together: all that are alike, and each that is not."""
        varied = (self._slow != 1).any(axis=(0, 2))
        for share, _ in self._thin:
            varied |= (share != 1).any(axis=(0, 2))
        if variation.speed or variation.jitter or variation.network_jitter or variation.experts:
            varied[:] = True
        self._alone = np.flatnonzero(varied).tolist()
        others = np.flatnonzero(~varied).tolist()
        parts = [[copy] for copy in self._alone] + ([others] if others else [])
        return sorted(parts)

    def _of_classes(self, factor: Floats) -> Floats:
        """The largest factor of the ranks of every class of the unfolded program [R]."""
        most = factor.max(axis=2)
        parts = np.stack([most[:, part].max(axis=1) for part in self._copies], axis=1)
        return np.asarray(parts.reshape(-1), dtype=np.float64)

    def _slowed(self, factor: Floats, thin: Floats) -> Floats:
        """Durations with ranks and links as slow as they are."""
        home = self.program.rank
        durations = self.base.copy()
        plain = self._computes & (self._template < 0) & (factor[home] != 1)
        durations[plain] = np.rint(durations[plain] * factor[home[plain]])
        worst = np.maximum.reduceat(
            thin[self.program.slot // len(Stream)], self.program.slot_ptr[:-1]
        )
        held = (self._template < 0) & self._far & (worst != 1)
        durations[held] += np.rint(self._moving[held] * (worst[held] - 1))
        inside = (self._template >= 0) & ((factor[home] != 1) | (thin[home] != 1))
        for number in np.unique(self._template[inside]).tolist():
            mine = np.flatnonzero(inside & (self._template == number))
            durations[mine] = self._inside(number, factor[home[mine]], thin[home[mine]])
        return durations

    def _inside(self, number: int, factor: Floats, thin: Floats) -> Floats:
        """Time of an action if kernels take `factor` and NIC transfers `thin` times as long."""
        result = np.empty(len(factor))
        for slower in np.unique(thin).tolist():
            mine = thin == slower
            distinct, index = np.unique(factor[mine], return_inverse=True)
            # the time bends little with the factor: draws are read off a few points
            grid = distinct
            if len(distinct) > _GRID:
                grid = np.linspace(distinct[0], distinct[-1], _GRID)
            times = np.subtract(*self._reduced(number, grid, slower))
            result[mine] = np.rint(np.interp(distinct, grid, times))[index.reshape(-1)]
        return result

    def _reduced(self, number: int, factors: Floats, thin: float) -> tuple[Floats, Floats]:
        """Time of an action, and what is hidden in its waits for the host, which launches no slower
        for a slow device: as much goes of them as layers take longer, unless it waits for those.
        """
        template = self._templates[number]
        computes, waits = template.stream == Stream.COMPUTE, template.part == _HOST
        longer = np.append(factors, 1.0)[:, None]
        scale = np.where(computes & ~waits, longer, 1.0)
        scale = scale * np.where(template.out_bytes > 0, thin, 1.0)
        took = reduce_template(template, np.rint(template.duration * scale))[1]
        idle, head = (
            template.duration[own].sum() for own in (waits, computes & (template.layer < 0))
        )
        more = took[:-1] - took[-1] - (factors - 1.0) * head
        return took[:-1], np.minimum(more, idle) if idle and self._runs_ahead else 0.0 * more

    @functools.cached_property
    def _loaded(self) -> dict[int, tuple[Floats, Floats]]:
        """Loads of experts of every action with some, and how much longer it then takes."""
        table = _table(self._variation.experts, 1)
        loads = np.linspace(table[0], table[-1], _GRID)
        result = {}
        for number, template in enumerate(self._templates):
            names = np.array([name.startswith(_EXPERTS) for name in template.names], dtype=bool)
            routed = (template.stream == Stream.EP) | names[template.name_index]
            if routed.any():
                scale = np.where(routed, loads[:, None], 1.0)
                _, took = reduce_template(template, np.rint(template.duration * scale))
                result[number] = (loads, took / float((template.start + template.duration).max()))
        return result


@remembered(16)
def _table(variance: float, peers: int) -> Floats:
    return factors(sigma_of(variance), peers)


def _given(result: Result, variation: Variation) -> tuple[Floats, list[tuple[Floats, float]]]:
    """Factors by which ranks compute longer, and send longer on thin links, at a share of time."""
    plan, cluster = result.plan, result.plan.layout.cluster
    ranks = plan.layout.mesh.ranks
    node = cluster.node_of(ranks)
    if problems := absent_parts(variation, cluster.nodes, cluster.accelerators):
        raise ScenarioError(result.scenario.locate(problems))
    slow = np.ones(ranks.shape)
    for part in variation.slow:
        wanted = node == part.node if part.ranks is None else np.isin(ranks, part.ranks)
        slow = np.where(wanted, np.maximum(slow, 1 / part.speed), slow)
    thin = [
        (np.where(node == link.node, 1 / link.bandwidth, 1.0), link.time)
        for link in variation.links
    ]
    return slow, thin


def _enclosing(count: int, share: float) -> tuple[int | None, int | None]:
    """Places among `count` samples between which the quantile `share` lies (95 % confidence).

    Notes
    -----
    The number of samples below the quantile is binomial. The largest place that is too high with at
    most half of 5 %, and the smallest that is too low with at most the same; None where even the
    first or last sample is not safe.
    """
    number = np.arange(count + 1)
    logs = np.array([math.lgamma(n + 1) for n in range(count + 1)])
    ways = logs[count] - logs - logs[::-1]
    chance = np.exp(ways + number * math.log(share) + (count - number) * math.log1p(-share))
    below = np.cumsum(chance)  # P(at most i samples below the quantile)
    doubt = (1 - _CONFIDENCE) / 2
    place = share * (count - 1)  # of the quantile of the sample, which lies between them
    low = min(int(np.searchsorted(below, doubt, side="right")) - 1, math.floor(place))
    high = max(int(np.searchsorted(below, 1 - doubt)), math.ceil(place))
    return (low if low >= 0 else None), (high if high < count else None)
