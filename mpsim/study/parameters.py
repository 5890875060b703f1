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

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    list of Parameter
        Hardware first.
    """
    return [*_chips(plan), *_links(plan), *_latencies(plan), *_software(plan)]


def _chip(plan: Plan) -> list[Parameter]:
    chip = plan.layout.cluster.accelerator

        def peak(factor: float, node: Node = node, chip: Accelerator = chip) -> PlanCosts:
            rates = {name: rate * factor for name, rate in chip.peak_flops.items()}
            faster = dataclasses.replace(chip, peak_flops=rates)
            return _with_node(plan, node, dataclasses.replace(node, accelerator=faster))

        def memory(factor: float, node: Node = node, chip: Accelerator = chip) -> PlanCosts:
            faster = dataclasses.replace(chip, memory_bandwidth=chip.memory_bandwidth * factor)
            return _with_node(plan, node, dataclasses.replace(node, accelerator=faster))

    flops = format_quantity(chip.peak(plan.layout.precision), Dimension.FLOP_RATE)
    bandwidth = format_quantity(chip.memory_bandwidth, Dimension.BANDWIDTH)
    return [
        Parameter("accelerator.peak_flops", "hardware", flops, peak),
        Parameter("accelerator.memory_bandwidth", "hardware", bandwidth, memory),
    ]


def _links(plan: Plan) -> list[Parameter]:
    node = plan.layout.cluster.node

            def scaled(factor: float, node: Node = node, name: str = name) -> PlanCosts:
                link = getattr(node, name)
                faster = dataclasses.replace(link, bandwidth=link.bandwidth * factor)
                return _with_node(plan, node, dataclasses.replace(node, **{name: faster}))

        def scaled(factor: float) -> PlanCosts:
            faster = dataclasses.replace(one, bandwidth=one.bandwidth * factor)
            return PlanCosts(_with_node(plan, dataclasses.replace(node, **{name: faster})))

        return scaled

    present = ["scale_up"] if node.domain > 1 else []
    present += ["nic"] if node.nics and plan.layout.cluster.domains > 1 else []
    return [
        Parameter(
            f"{name}.bandwidth",
            "hardware",
            format_quantity(getattr(node, name).bandwidth, Dimension.BANDWIDTH),
            link(name),
        )
        for name in present
    ]


def _latencies(plan: Plan) -> Iterator[Parameter]:
    def inside(factor: float) -> PlanCosts:
        return _delayed(plan, inside=factor - 1)

    def across(factor: float) -> PlanCosts:
        return _delayed(plan, across=factor - 1)

    result = []
    if plan.layout.cluster.node.domain > 1:
        result.append(Parameter("scale_up.latency", "hardware", "", inside))
    if plan.layout.cluster.domains > 1:
        result.append(Parameter("nic.latency", "hardware", "", across))
    return result


def _software(plan: Plan) -> list[Parameter]:
    host = plan.layout.framework.host

    def field(name: str) -> Callable[[float], PlanCosts]:
        def scaled(factor: float) -> PlanCosts:
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


def _with_chip(plan: Plan, chip: Accelerator) -> Plan:
    return _with_node(plan, dataclasses.replace(plan.layout.cluster.node, accelerator=chip))


def _with_node(plan: Plan, node: Node) -> Plan:
    cluster = dataclasses.replace(plan.layout.cluster, node=node)
    return plan.on(dataclasses.replace(plan.layout, cluster=cluster))


def _launch(plan: Plan, node: Node) -> float:
    """Fixed time of a matrix product on the accelerator of a node, 0 where the cost model has none [s]."""
    models = (part.kernels for part in PlanCosts(plan).each() if part.plan.cluster.node == node)
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
    model : CollectiveModel
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
