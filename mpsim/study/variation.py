"""Variation: the step time when accelerators, links and operations are not all alike, and who waits for whom.

A rank that differs unfolds only what it touches: its replica becomes a class of its own, and so does no other. Ranks that meet inside an action, in
the collectives of its layers, all take the time of the slowest. Kernels of an action take longer, its collectives do not, so that an action is not
slowed down by more than it computes; what it sends over a thinner NIC takes longer by as much.

Shapes: K samples, N rows of the unfolded program, R its rank classes, A copies of each folded class, P pipeline ranks, T templates, F factors.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.engine import Structure, Timeline, reduce_template
from mpsim.errors import Problem, ScenarioError
from mpsim.parallel import FOLDED
from mpsim.program import TICK, Program, Stream
from mpsim.program.links import links_of
from mpsim.program.unfold import Unfolding
from mpsim.result import Result
from mpsim.scenario.variation import Variation
from mpsim.simulate import Prepared
from mpsim.study.blame import Blame, measure_blame
from mpsim.study.lognormal import COMPUTE, QUANTILES, VALUES, factors, peers_of, sigma_of
from mpsim.study.montecarlo import Jitter, Percentile

if TYPE_CHECKING:
    from mpsim.plot.blame import BlameDisplay

__all__ = ["VariedSteps", "simulate_variation"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_GRID = 33  # factors at which the time of an action is computed; between them it is interpolated
# ranks that meet inside actions stay together: their coordinates say nothing
_FOLDED = "".join(f" {axis.name} 0" for axis in reversed(FOLDED) if axis.name != "dp")
_EXPERTS = "experts"  # how the names of their kernels begin


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class VariedSteps:
    """Step times that vary, and who is to blame for waiting in the first of them.

    Parameters
    ----------
    steps : Jitter
        The step time of every sample; the undisturbed one.
    variation : Variation
    blame : Blame
        Of the first sample.
    timeline : Timeline
        Of the first sample.
    """

    steps: Jitter
    variation: Variation
    blame: Blame
    timeline: Timeline

    @property
    def mean_s(self) -> float:
        """Mean step time [s]."""
        return self.steps.mean_s

    @property
    def slowdown(self) -> float:
        """Mean step time over the undisturbed one."""
        return self.steps.slowdown

    def percentile(self, percent: float) -> Percentile:
        """A percentile of the step time with its confidence interval."""
        return self.steps.percentile(percent)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "samples": len(self.steps.step_times_s),
            "seed": self.steps.seed,
            "undisturbed_s": self.steps.undisturbed_s,
            "mean_s": self.mean_s,
            "slowdown": self.slowdown,
            "percentiles": [dataclasses.asdict(one) for one in self.steps.percentiles()],
            "blame": self.blame.to_json(),
        }

    def plot_blame(self) -> BlameDisplay:
        """Draw who waited for whom."""
        from mpsim.plot.blame import BlameDisplay

        return BlameDisplay.from_blame(self.blame).plot()

    def __repr__(self) -> str:
        worst = ", ".join(f"{name} {seconds:.3g}" for name, seconds in self.blame.worst(3))
        return f"{self.steps!r}\nwaiting caused, rank-seconds: {worst}"


def simulate_variation(
    result: Result,
    variation: Variation | None = None,
    *,
    samples: int | None = None,
    seed: int | None = None,
) -> VariedSteps:
    """Draw machines and steps as the ``variation:`` section says.

    Parameters
    ----------
    result : Result
        Of a scenario whose network is analytic.
    variation : Variation, optional
        That of the scenario by default.
    samples, seed : int, optional
        Those of the section and of the scenario by default; without anything random, one step is all there is.

    Returns
    -------
    VariedSteps

    Raises
    ------
    ScenarioError
        If there is no variation, it names a rank or node that does not exist, or the network is not analytic.
    """
    plan = result.plan
    chosen = variation or result.scenario.variation
    if chosen is None:
        raise ScenarioError(
            f"{plan.name}: has no variation; give one, such as variation: {{jitter: 0.02}}"
        )
    if not (support := Prepared.of(result).supports("variation")):
        raise ScenarioError(f"{plan.name}: {support.reason}")
    count = (samples or chosen.samples) if chosen.is_random else 1
    seed = plan.seed if seed is None else seed
    machine = _Machine(result, chosen)
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    base = machine.timeline(*machine.structure.replay(machine.base), machine.base)
    spans: list[Floats] = []
    first: Floats | None = None
    for begin in range(0, count, machine.at_once):
        drawn = range(begin, min(begin + machine.at_once, count))
        durations = np.stack([machine.draw(generator) for _ in drawn])
        first = durations[0] if first is None else first
        spans.append(machine.structure.makespans(durations))
    assert first is not None
    start, end = machine.structure.replay(first)
    varied = machine.timeline(start, end, first)
    blame = measure_blame(varied, base, machine.culprit)
    times = np.concatenate(spans) * TICK
    steps = Jitter(plan.name, chosen.jitter, chosen.network_jitter, seed, base.step_time_s, times)
    return VariedSteps(steps, chosen, blame, varied)


class _Machine:
    """The unfolded step, and the durations of its rows on a machine whose parts differ."""

    def __init__(self, result: Result, variation: Variation) -> None:
        program, mesh = result.timeline.program, result.plan.layout.mesh
        self._variation, self._templates = variation, program.templates
        self._peers = peers_of(program, mesh)
        self._replicas = max(1, int(program.class_size.max(initial=1)) // self._peers)
        self._shape = (mesh.pp, self._replicas, -1)
        slow, thin = _given(result, variation)
        self._slow = slow.reshape(self._shape)
        self._thin = [(one.reshape(self._shape), time) for one, time in thin]
        self._copies = self._parts(variation)
        plain = dataclasses.replace(
            program, templates=(), template=np.full(len(program), -1, dtype=np.int32)
        )
        touched = None if len(self._copies) == self._replicas else {"dp": self._alone}
        unfolding = Unfolding(plain, {"dp": self._replicas}, touched=touched)
        unfolded = unfolding.program()
        names = tuple(name.replace(_FOLDED, "") for name in unfolded.rank_name)
        sizes = unfolded.class_size * self._peers
        self.program: Program = dataclasses.replace(unfolded, rank_name=names, class_size=sizes)
        self.structure = Structure.unfolded(plain, unfolding)
        self.base = self.program.duration
        self._row = np.repeat(np.arange(len(program)), unfolding.count)
        self._template = program.template[self._row]
        self._computes = np.isin(self.program.kind, COMPUTE) & (
            self.program.stream == Stream.COMPUTE
        )
        self._moving = np.repeat(links_of(plain, result.plan).work, unfolding.count)
        self._far = self.program.out_bytes > 0
        self.at_once = max(1, VALUES // max(len(self.base), 1))

    def timeline(self, start: Floats, end: Floats, duration: Floats) -> Timeline:
        """The unfolded step as it ran."""
        program = dataclasses.replace(self.program, duration=duration)
        return Timeline(program=program, start=start, end=end, engine="replay")

    @property
    def culprit(self) -> Ints:
        """Rank class with the thinnest link that each row uses, -1 where none is thin [N]."""
        thin = np.ones(self.program.ranks)
        for share, _ in self._thin:
            thin = np.maximum(thin, self._of_classes(share))
        rank = self.program.slot // len(Stream)
        pointer = self.program.slot_ptr
        owner = np.repeat(np.arange(len(self.program)), np.diff(pointer))
        order = np.lexsort((thin[rank], owner))
        worst = rank[order][pointer[1:] - 1]
        return np.where(self._far & (thin[worst] > 1), worst, -1)

    def draw(self, generator: np.random.Generator) -> Floats:
        """Durations of every row in one step on one machine [N]."""
        variation = self._variation
        slow = self._slow
        if variation.speed:
            sigma = sigma_of(variation.speed)
            slow = slow * np.exp(generator.normal(-(sigma**2) / 2, sigma, slow.shape))
        factor = self._of_classes(slow)
        thin = np.ones_like(factor)
        for share, time in self._thin:
            # a link that flaps is down for whole steps: long against an operation, short against a run
            if time >= 1 or generator.random() < time:
                thin = np.maximum(thin, self._of_classes(share))
        durations = self._slowed(factor, thin)
        return self._jittered(durations, generator)

    def _parts(self, variation: Variation) -> list[list[int]]:
        """Replicas that stay together: all that are alike, and each that is not."""
        varied = (self._slow != 1).any(axis=(0, 2))
        for share, _ in self._thin:
            varied |= (share != 1).any(axis=(0, 2))
        if variation.speed or variation.jitter or variation.network_jitter or variation.experts:
            varied[:] = True
        self._alone = np.flatnonzero(varied).tolist()
        others = np.flatnonzero(~varied).tolist()
        parts = [[one] for one in self._alone] + ([others] if others else [])
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
        for template in np.unique(self._template[inside]).tolist():
            mine = np.flatnonzero(inside & (self._template == template))
            durations[mine] = self._inside(template, factor[home[mine]], thin[home[mine]])
        return durations

    def _inside(self, template: int, factor: Floats, thin: Floats) -> Floats:
        """How long an action takes when its kernels take `factor` and what it sends over NICs `thin` times as long."""
        result = np.empty(len(factor))
        for slower in np.unique(thin).tolist():
            mine = thin == slower
            distinct, index = np.unique(factor[mine], return_inverse=True)
            grid = distinct
            if len(distinct) > _GRID:
                grid = np.linspace(distinct[0], distinct[-1], _GRID)
            times = self._reduced(template, tuple(grid.tolist()), slower)
            result[mine] = np.rint(np.interp(distinct, grid, times))[index.reshape(-1)]
        return result

    def _reduced(self, template: int, factors: tuple[float, ...], thin: float) -> Floats:
        one = self._templates[template]
        kernels = one.stream == Stream.COMPUTE
        scale = np.where(kernels, np.array(factors)[:, None], 1.0)
        scale = scale * np.where(one.out_bytes > 0, thin, 1.0)
        return reduce_template(one, np.rint(one.duration * scale))[1]

    def _jittered(self, durations: Floats, generator: np.random.Generator) -> Floats:
        variation = self._variation
        for variance, peers, rows in (
            (variation.jitter, self._peers, self._computes),
            (variation.network_jitter, 1, ~self._computes),
        ):
            if variance:
                drawn = generator.integers(0, QUANTILES, int(rows.sum()))
                durations[rows] *= _table(variance, peers)[drawn]
        if variation.experts:
            for template, (loads, times) in self._loaded.items():
                rows = self._template == template
                drawn = generator.integers(0, QUANTILES, int(rows.sum()))
                durations[rows] *= np.interp(_table(variation.experts, 1)[drawn], loads, times)
        return np.rint(durations)

    @functools.cached_property
    def _loaded(self) -> dict[int, tuple[Floats, Floats]]:
        """Of every action with experts: loads of them, and how many times longer it takes then."""
        table = _table(self._variation.experts, 1)
        loads = np.linspace(table[0], table[-1], _GRID)
        result = {}
        for number, one in enumerate(self._templates):
            names = np.array([name.startswith(_EXPERTS) for name in one.names])
            routed = (one.stream == Stream.EP) | names[one.name_index]
            if routed.any():
                scale = np.where(routed, loads[:, None], 1.0)
                _, took = reduce_template(one, np.rint(one.duration * scale))
                result[number] = (loads, took / float((one.start + one.duration).max()))
        return result


@functools.lru_cache(maxsize=16)
def _table(variance: float, peers: int) -> Floats:
    return factors(sigma_of(variance), peers)


def _given(result: Result, variation: Variation) -> tuple[Floats, list[tuple[Floats, float]]]:
    """How many times longer every rank computes [P, dp, cp, tp], and sends on each thin link, with the share of time it does."""
    plan, cluster = result.plan, result.plan.layout.cluster
    ranks = plan.layout.mesh.ranks
    node = cluster.node_of(ranks)
    slow = np.ones(ranks.shape)
    problems = []
    for number, part in enumerate(variation.slow):
        wanted = node == part.node if part.ranks is None else np.isin(ranks, part.ranks)
        expected = 1 if part.ranks is None else len(set(part.ranks))
        if int(wanted.sum()) < expected:
            message = f"names a rank or node that is not there; ranks are 0 to {ranks.size - 1}, nodes 0 to {node.max()}"
            problems.append(Problem(message, key=f"variation.slow.{number}"))
        slow = np.where(wanted, np.maximum(slow, 1 / part.speed), slow)
    thin = []
    for number, link in enumerate(variation.links):
        if not (node == link.node).any():
            message = f"names node {link.node}; nodes are 0 to {node.max()}"
            problems.append(Problem(message, key=f"variation.links.{number}"))
        thin.append((np.where(node == link.node, 1 / link.bandwidth, 1.0), link.time))
    if problems:
        raise ScenarioError(result.scenario.locate(problems))
    return slow, thin
