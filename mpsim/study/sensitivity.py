"""Sensitivity: how the step time answers to each parameter of hardware and software.

Bandwidths, rates and host times are changed in the Plan, and the step is costed again. Latencies
are in no one place, since curves of collectives have their own: the latency of a link class is the
time of the same transfer with next to no data, and a share of that is added. So is a share of the
launch of products. On a mixed cluster every kind of node has figures of its own.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from mpsim import structs
from mpsim.accessors import Drawn, chart
from mpsim.arrays import Floats
from mpsim.cost import CollectiveModel, KernelModel
from mpsim.errors import ScenarioError
from mpsim.frame import Tabular
from mpsim.hardware import Cluster, Node
from mpsim.parallel import GroupShape
from mpsim.program import TICK
from mpsim.result import Result
from mpsim.simulate import Prepared
from mpsim.study.together import Graphs
from mpsim.table import Section, Sheet, Shown
from mpsim.training.plan import Plan, PlanCosts
from mpsim.units import Dimension, format_quantity
from mpsim.workload import Operator, OperatorKind

T = TypeVar("T")
_NEXT_TO_NOTHING = 1.0  # one byte: what is left is latency


@structs.dataclass(frozen=True, slots=True)
class Parameter:
    """Something of the hardware or of the software that has a size."""

    name: str  # such as ``scale_up.bandwidth``
    kind: str  # ``hardware`` or ``software``
    value: str  # with unit; empty where it is no single number
    # factor to the costs of the plan with this parameter times the factor
    scaled: Callable[[float], PlanCosts]


def parameters(plan: Plan) -> list[Parameter]:
    """Everything of a plan that has a size other than zero. Returns: hardware first."""
    return [*_hardware(plan), *_latencies(plan), *_software(plan)]


def _hardware(plan: Plan) -> Iterator[Parameter]:
    nodes, far = _nodes(plan), plan.layout.cluster.domains > 1
    for paths in (("accelerator.peak_flops", "accelerator.memory_bandwidth"), _LINKS):
        for (suffix, node), path in itertools.product(nodes, paths):
            if path in _LINKS and not (node.domain > 1, node.nics and far)[_LINKS.index(path)]:
                continue
            if path == "accelerator.peak_flops":
                peak = node.accelerator.peak(plan.layout.precision)
                value = format_quantity(peak, Dimension.FLOP_RATE)
            else:
                value = format_quantity(operator.attrgetter(path)(node), Dimension.BANDWIDTH)
            scaled = functools.partial(_with_node, plan, node, path)
            yield Parameter(f"{path}{suffix}", "hardware", value, scaled)


_LINKS = ("scale_up.bandwidth", "nic.bandwidth")


def _latencies(plan: Plan) -> Iterator[Parameter]:
    if plan.layout.cluster.node.domain > 1:
        yield Parameter("scale_up.latency", "hardware", "", functools.partial(_delayed, plan, 0))
    if plan.layout.cluster.domains > 1:
        yield Parameter("nic.latency", "hardware", "", functools.partial(_delayed, plan, 1))


def _software(plan: Plan) -> Iterator[Parameter]:
    for suffix, node in _nodes(plan):
        if launched := _launch(plan, node):

            def launch(factor: float, node: Node = node, launched: float = launched) -> PlanCosts:
                costs = PlanCosts(plan)
                for part in costs.each():
                    if part.layout.cluster.node == node:
                        longer = _Launches(part.kernels, launched * (factor - 1))
                        part.kernels = cast(KernelModel, longer)
                return costs

            value = format_quantity(launched, Dimension.TIME)
            yield Parameter(f"kernels.launch{suffix}", "software", value, launch)
    if waited := PlanCosts(plan).straggling():

        def straggles(factor: float) -> PlanCosts:
            return PlanCosts(structs.replace(plan, straggling=plan.straggling * factor))

        yield Parameter(
            "straggling", "software", format_quantity(waited, Dimension.TIME), straggles
        )
    host = plan.layout.framework.host
    for name in _HOST_TIMES:
        if seconds := getattr(host, name):

            def scaled(factor: float, name: str = name) -> PlanCosts:
                return PlanCosts(plan.on(_times(plan.layout, f"framework.host.{name}", factor)))

            value = format_quantity(seconds, Dimension.TIME)
            yield Parameter(f"host.{name}", "software", value, scaled)


_HOST_TIMES = tuple(
    "launch_cost layer_host_time synchronization_cost step_overhead step_rank_time".split()
)


def _nodes(plan: Plan) -> list[tuple[str, Node]]:
    """Kinds of nodes, and how the parameters of each are marked where there are several."""
    nodes: list[Node] = []
    for cluster in plan.class_clusters:
        if cluster.node not in nodes:
            nodes.append(cluster.node)
    if len(nodes) == 1:
        return [("", nodes[0])]
    names = [node.accelerator.name for node in nodes]
    return [
        (f" of {name}" + (f" in part {place}" if names.count(name) > 1 else ""), node)
        for place, (name, node) in enumerate(zip(names, nodes, strict=True))
    ]


def _times(holder: T, path: str, factor: float) -> T:
    """The same with the size at a dotted path, or all sizes of a mapping there, times a factor."""
    name, _, rest = path.partition(".")
    size: Any = getattr(holder, name)
    if rest:
        new = _times(size, rest, factor)
    elif isinstance(size, Mapping):
        new = {key: each * factor for key, each in size.items()}
    else:
        new = size * factor
    return cast(T, structs.replace(cast(Any, holder), **{name: new}))


def _with_node(plan: Plan, old: Node, path: str, factor: float) -> PlanCosts:
    """Costs of the plan with a size of one kind of nodes times a factor, wherever it stands."""
    new = _times(old, path, factor)

    def changed(cluster: Cluster) -> Cluster:
        return structs.replace(cluster, node=new) if cluster.node == old else cluster

    layout = structs.replace(
        plan.layout,
        cluster=changed(plan.layout.cluster),
        stage_clusters=tuple(map(changed, plan.layout.stage_clusters)),
    )
    classes = tuple(
        structs.replace(replicas, cluster=changed(replicas.cluster)) for replicas in plan.classes
    )
    return PlanCosts(structs.replace(plan, layout=layout, classes=classes))


def _launch(plan: Plan, node: Node) -> float:
    """Fixed time of a matrix product on a node's accelerator, 0 without one [s]."""
    models = (part.kernels for part in PlanCosts(plan).each() if part.layout.cluster.node == node)
    launches = [
        constant.value
        for constant in next(models).provenance()
        if constant.name.startswith("kernels.gemm.") and constant.name.endswith(".launch")
    ]
    return launches[0] if launches else 0.0


def _delayed(plan: Plan, crosses: int, factor: float) -> PlanCosts:
    costs, share = PlanCosts(plan), [0.0, 0.0]
    share[crosses] = factor - 1
    for part in costs.each():
        part.collectives = cast(CollectiveModel, _Later(part.collectives, share))
    return costs


class _Later:
    """A `CollectiveModel` whose collectives and messages take a share of their latency longer.
    `share`: for what stays in a scale-up domain, and for what leaves it; below 0 it comes sooner.
    """

    def __init__(self, model: CollectiveModel, share: Sequence[float]) -> None:
        self._model, self._share = model, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def seconds(self, kind: str, size_bytes: Any, group: GroupShape) -> Any:
        latency = self._model.seconds(kind, _NEXT_TO_NOTHING, group)
        return self._model.seconds(kind, size_bytes, group) + self._share[group.crosses] * latency

    def send(self, size_bytes: Any, *, crosses: bool, **how: Any) -> Any:
        latency = self._model.send(_NEXT_TO_NOTHING, crosses=crosses, **how)
        whole = self._model.send(size_bytes, crosses=crosses, **how)
        return whole + self._share[crosses] * latency


class _Launches:
    """A `KernelModel` whose matrix products take so much longer to start [s]."""

    def __init__(self, model: KernelModel, extra: float) -> None:
        self._model, self._extra = model, extra

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def seconds(self, operators: Sequence[Operator]) -> Floats:
        products = np.array([each.kind is OperatorKind.GEMM for each in operators], dtype=bool)
        return self._model.seconds(operators) + self._extra * products


_STEP = 0.01  # one per cent each way: well above rounding to ticks, well below most kinks


@structs.dataclass(frozen=True, slots=True)
class Elasticity:
    """Elasticity of the step time in one parameter."""

    name: str  # such as ``nic.bandwidth``
    kind: str  # ``hardware`` or ``software``
    value: str  # with unit; empty where it is no single number
    # less_s, more_s: step time with the parameter a little smaller and a little larger [s]
    less_s: float
    more_s: float
    # per cent the step is longer for one per cent more; below 0 for what helps
    elasticity: float


@structs.dataclass(frozen=True, slots=True, repr=False)
class Sensitivity(Shown, Tabular):
    """Elasticities of one step, the strongest first."""

    scenario: str
    step_time_s: float  # undisturbed [s]
    step: float  # share by which each parameter was made smaller and larger
    rows: tuple[Elasticity, ...]

    def __getitem__(self, name: str) -> Elasticity:
        return next(row for row in self.rows if row.name == name)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return structs.asdict(self)

    def plot(self, ax: object = None) -> Drawn:
        """Draw a tornado, on axes if there are any."""
        return chart("sensitivity", self).plot(ax)

    def table(self) -> list[dict[str, object]]:
        """One mapping a parameter."""
        return [structs.asdict(row) for row in self.rows]

    def sheet(self) -> Sheet:
        """Elasticities, the strongest first, as ``mpsim run --sensitivity`` prints them."""
        rows = tuple((row.name, row.kind, row.value, f"{row.elasticity:+.4f}") for row in self.rows)
        header = ("parameter", "of the", "value", "% of step time for 1 % more")
        title = f"sensitivity of {self.scenario}"
        return Sheet("", (Section(rows, header, (2, 3), title=title),))


def measure_sensitivity(result: Result, *, step: float = _STEP) -> Sensitivity:
    """Measure how the step time answers to each parameter, made smaller and larger by the share
    `step`. ScenarioError if that is not in (0, 1).

    Notes
    -----
    Elasticity is ``d ln T / d ln x`` by central difference. The order of actions, buckets and waits
    stay; every operation is costed again, and where durations are known beforehand one replay has
    all variants. Elasticities need not sum to a whole: what a formula fixes is in none of them.
    """
    if not 0 < step < 1:
        raise ScenarioError(f"got a step of {step:g}; needed a share between 0 and 1")
    base = Prepared.of(result)
    chosen = parameters(base.plan)
    variants = [base.at(each.scaled(factor)) for each in chosen for factor in (1 - step, 1 + step)]
    spans = _step_times(base, variants).reshape(-1, 2).tolist()
    width = math.log((1 + step) / (1 - step))
    rows = [
        Elasticity(each.name, each.kind, each.value, less, more, math.log(more / less) / width)
        for each, (less, more) in zip(chosen, spans, strict=True)
    ]
    rows.sort(key=lambda row: -abs(row.elasticity))
    return Sensitivity(base.plan.name, result.timeline.step_time_s, step, tuple(rows))


def _step_times(base: Prepared, variants: Sequence[Prepared]) -> Floats:
    """Step time of each variant of a step [s]."""
    if base.replays:
        spans = Graphs().makespans([variant.program for variant in variants])
    else:  # rates change while a step runs
        spans = [variant.timeline().makespan for variant in variants]
    return np.array(spans) * TICK
