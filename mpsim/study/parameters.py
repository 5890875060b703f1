"""Parameters that a step time answers to: what each is, and the costs of a step with it a little larger.

Bandwidths, rates and host times are changed in the Plan, and the step is costed again. Latencies are in no one place, since the calibrated
curves of collectives have their own: the latency of a link class is the time that the same collective or message takes with next to no data,
and a share of that is added. So is a share of the launch of matrix products. On a mixed cluster every kind of node has figures of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import CollectiveModel, KernelModel
from mpsim.hardware import Accelerator, Cluster, Node
from mpsim.parallel import GroupShape
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import Plan
from mpsim.units import Dimension, format_quantity
from mpsim.workload import Operator, OperatorKind

__all__ = ["Parameter", "parameters"]

_NEXT_TO_NOTHING = 1.0  # one byte: what is left is latency


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """Something of the hardware or of the software that has a size.

    Parameters
    ----------
    name : str
        Such as ``scale_up.bandwidth``.
    kind : str
        ``hardware`` or ``software``.
    value : str
        With unit; empty where it is no single number.
    scaled : callable
        Factor to the costs of the plan with this parameter times the factor.
    """

    name: str
    kind: str
    value: str
    scaled: Callable[[float], PlanCosts]


def parameters(plan: Plan) -> list[Parameter]:
    """Everything of a plan that has a size other than zero.

    Returns
    -------
    list of Parameter
        Hardware first.
    """
    return [*_chips(plan), *_links(plan), *_latencies(plan), *_software(plan)]


def _chips(plan: Plan) -> Iterator[Parameter]:
    for suffix, node in _nodes(plan):
        chip = node.accelerator

        def peak(factor: float, node: Node = node, chip: Accelerator = chip) -> PlanCosts:
            rates = {name: rate * factor for name, rate in chip.peak_flops.items()}
            faster = dataclasses.replace(chip, peak_flops=rates)
            return _with_node(plan, node, dataclasses.replace(node, accelerator=faster))

        def memory(factor: float, node: Node = node, chip: Accelerator = chip) -> PlanCosts:
            faster = dataclasses.replace(chip, memory_bandwidth=chip.memory_bandwidth * factor)
            return _with_node(plan, node, dataclasses.replace(node, accelerator=faster))

        flops = format_quantity(chip.peak(plan.layout.precision), Dimension.FLOP_RATE)
        bandwidth = format_quantity(chip.memory_bandwidth, Dimension.BANDWIDTH)
        yield Parameter(f"accelerator.peak_flops{suffix}", "hardware", flops, peak)
        yield Parameter(f"accelerator.memory_bandwidth{suffix}", "hardware", bandwidth, memory)


def _links(plan: Plan) -> Iterator[Parameter]:
    for suffix, node in _nodes(plan):
        present = ["scale_up"] if node.domain > 1 else []
        present += ["nic"] if node.nics and plan.layout.cluster.domains > 1 else []
        for name in present:

            def scaled(factor: float, node: Node = node, name: str = name) -> PlanCosts:
                link = getattr(node, name)
                faster = dataclasses.replace(link, bandwidth=link.bandwidth * factor)
                return _with_node(plan, node, dataclasses.replace(node, **{name: faster}))

            bandwidth = format_quantity(getattr(node, name).bandwidth, Dimension.BANDWIDTH)
            yield Parameter(f"{name}.bandwidth{suffix}", "hardware", bandwidth, scaled)


def _latencies(plan: Plan) -> Iterator[Parameter]:
    def inside(factor: float) -> PlanCosts:
        return _delayed(plan, inside=factor - 1)

    def across(factor: float) -> PlanCosts:
        return _delayed(plan, across=factor - 1)

    if plan.layout.cluster.node.domain > 1:
        yield Parameter("scale_up.latency", "hardware", "", inside)
    if plan.layout.cluster.domains > 1:
        yield Parameter("nic.latency", "hardware", "", across)


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
            return PlanCosts(dataclasses.replace(plan, straggling=plan.straggling * factor))

        yield Parameter(
            "straggling", "software", format_quantity(waited, Dimension.TIME), straggles
        )
    host = plan.layout.framework.host
    for name in _HOST_TIMES:
        if seconds := getattr(host, name):

            def scaled(factor: float, name: str = name) -> PlanCosts:
                slower = dataclasses.replace(host, **{name: getattr(host, name) * factor})
                changed = dataclasses.replace(plan.layout.framework, host=slower)
                return PlanCosts(plan.on(dataclasses.replace(plan.layout, framework=changed)))

            value = format_quantity(seconds, Dimension.TIME)
            yield Parameter(f"host.{name}", "software", value, scaled)


_HOST_TIMES = (
    "launch_cost",
    "layer_host_time",
    "synchronization_cost",
    "step_overhead",
    "step_rank_time",
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


def _with_node(plan: Plan, old: Node, new: Node) -> PlanCosts:
    """Costs of the plan with one kind of nodes replaced, wherever it stands."""

    def changed(cluster: Cluster) -> Cluster:
        return dataclasses.replace(cluster, node=new) if cluster.node == old else cluster

    layout = dataclasses.replace(
        plan.layout,
        cluster=changed(plan.layout.cluster),
        stage_clusters=tuple(map(changed, plan.layout.stage_clusters)),
    )
    classes = tuple(
        dataclasses.replace(replicas, cluster=changed(replicas.cluster))
        for replicas in plan.classes
    )
    return PlanCosts(dataclasses.replace(plan, layout=layout, classes=classes))


def _launch(plan: Plan, node: Node) -> float:
    """Fixed time of a matrix product on the accelerator of a node, 0 where the cost model has none [s]."""
    models = (part.kernels for part in PlanCosts(plan).each() if part.layout.cluster.node == node)
    launches = [
        constant.value
        for constant in next(models).provenance()
        if constant.name.startswith("kernels.gemm.") and constant.name.endswith(".launch")
    ]
    return launches[0] if launches else 0.0


def _delayed(plan: Plan, *, inside: float = 0.0, across: float = 0.0) -> PlanCosts:
    costs = PlanCosts(plan)
    for part in costs.each():
        part.collectives = cast(CollectiveModel, _Later(part.collectives, inside, across))
    return costs


class _Later:
    """A `CollectiveModel` whose collectives and messages take a share of their latency longer.

    Parameters
    ----------
    inside, across : float
        Shares for what stays in a scale-up domain and for what leaves it; below 0 it comes sooner.
    """

    def __init__(self, model: CollectiveModel, inside: float, across: float) -> None:
        self._model = model
        self._share = (inside, across)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def seconds(self, kind: str, size_bytes: Any, group: GroupShape) -> Any:
        latency = self._model.seconds(kind, _NEXT_TO_NOTHING, group)
        return self._model.seconds(kind, size_bytes, group) + self._share[group.crosses] * latency

    def uneven_all_to_all(self, pair_bytes: Any, group: GroupShape) -> float:
        latency = self._model.seconds("all_to_all", _NEXT_TO_NOTHING, group)
        whole = self._model.uneven_all_to_all(pair_bytes, group)
        return whole + self._share[group.crosses] * latency

    def send(self, size_bytes: Any, *, crosses: bool, **how: Any) -> Any:
        latency = self._model.send(_NEXT_TO_NOTHING, crosses=crosses, **how)
        whole = self._model.send(size_bytes, crosses=crosses, **how)
        return whole + self._share[crosses] * latency


class _Launches:
    """A `KernelModel` whose matrix products take so much longer to start [s]."""

    def __init__(self, model: KernelModel, extra: float) -> None:
        self._model = model
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def seconds(self, operators: Sequence[Operator]) -> NDArray[np.float64]:
        products = np.array(
            [operator.kind is OperatorKind.GEMM for operator in operators], dtype=bool
        )
        return self._model.seconds(operators) + self._extra * products
