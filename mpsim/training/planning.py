"""From Scenario to Plan: what a scenario leaves to be worked out is worked out here alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.errors import Problem, ScenarioError, ScheduleError
from mpsim.framework import ExpertOverlap, Framework, stepped_by
from mpsim.hardware import Cluster, host_of
from mpsim.memo import remembered
from mpsim.parallel import Layout, Mesh, Stage, partition_layers, placed_stages, whole_groups
from mpsim.scenario import Scenario
from mpsim.scenario.extent import refuse_large_scenario
from mpsim.scenario.fields import LengthChoice
from mpsim.schedule import make_orders
from mpsim.schedule.orders import Action, Orders
from mpsim.shipped import say
from mpsim.training.plan import Plan, ReplicaClass
from mpsim.training.recompute import Recompute
from mpsim.workload import Transformer

_ORDERS = 64  # that stay ready, for points of a sweep and layouts of a search


@structs.dataclass(frozen=True, slots=True)
class Division:
    """How the layers of a model are divided among stages; see `mpsim.parallel.partition_layers`."""

    given: tuple[int, ...] | None = None
    # embedding_counts, loss_counts: whether embedding and head take the place of a layer
    embedding_counts: bool = False
    loss_counts: bool = False

    @classmethod
    def of(cls, scenario: Scenario) -> Division:
        """The division that a scenario asks for."""
        p = scenario.parallelism
        return cls(scenario.stage_layers, p.embedding_counts_as_layer, p.loss_counts_as_layer)


@remembered(_ORDERS)
def place_layers(layers: int, orders: Orders, division: Division) -> tuple[Stage, ...]:
    """Divide layers among the stages of an order, each on its pipeline rank."""
    parts = partition_layers(
        layers,
        int(orders.model_stage.max()) + 1,
        given=division.given,
        embedding_counts=division.embedding_counts,
        loss_counts=division.loss_counts,
    )
    return placed_stages(parts, orders.model_stage.tolist(), orders.stage_rank.tolist())


def _orders_of(
    schedule: str,
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int | None,
    beside: bool,
    flushes: int,
) -> Orders:
    """Orders of actions of every pipeline rank in one step; see `runs_beside` for `beside`."""
    orders = make_orders(
        schedule, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages, flushes=flushes
    )
    if beside and not orders.fused.any():
        orders = forwards_beside_backwards(orders)
    return orders.validate()


step_orders = remembered(_ORDERS)(_orders_of)  # of a name; those of a file are made anew


def runs_beside(framework: Framework, model: Transformer) -> bool:
    """Whether the framework fuses forwards and backwards, to hide exchanges of experts."""
    return framework.experts.expert_overlap is ExpertOverlap.MICROBATCH and model.moe is not None


def make_plan(scenario: Scenario, microbatches: int | None = None) -> Plan:
    """Resolve a scenario; ScenarioError has every problem, TooLargeError says it is over limits.
    `microbatches`: that its orders have, of a step of which they are a part; all by default.
    """
    if problems := scenario.problems:
        raise ScenarioError(problems)
    refuse_large_scenario(scenario)
    parallelism, training = scenario.parallelism, scenario.training_step
    mesh = Mesh(**scenario.degrees, order=parallelism.axes, etp=parallelism.etp)
    orders = orders_of(scenario, microbatches or scenario.microbatches)
    nodes, samples = _nodes(scenario, mesh), samples_of(scenario)
    padded = samples.computed < training.sequence_length
    software = scenario.software.in_precision(training.precision)
    software = software.on_host(host_of(scenario.hardware).call_time)
    if training.tuning.rank:
        software = software.training_adapters()
    if training.optimizer:
        steps = stepped_by(training.optimizer, software.optimizer)
        software = structs.replace(software, optimizer=steps)
    return Plan(
        name=scenario.name,
        layout=Layout(
            cluster=_cluster(scenario, nodes, mesh),
            model=scenario.transformer,
            framework=software,
            mesh=mesh,
            stages=_stages(scenario, orders),
            precision=training.precision,
            sequence_parallel=parallelism.sequence_parallel,
            stage_clusters=nodes if scenario.stage_clusters and len(scenario.clusters) > 1 else (),
            tuning=training.tuning,
            document=samples.document,
        ),
        orders=orders,
        micro_batch=training.micro_batch,
        global_batch=training.global_batch,
        sequence_length=samples.computed,
        longest=longest_of(scenario) if padded else 0,
        used=samples.used,
        reference=training.reference,
        recompute=recompute_of(scenario),
        zero=parallelism.zero,
        engine=scenario.simulation.engine,
        seed=scenario.simulation.seed,
        schedule=scenario.schedule.name or "",
        network=scenario.simulation.network,
        shard=parallelism.shard,
        offload=parallelism.offload,
        offload_to=parallelism.offload_to,
        offload_fraction=parallelism.offload_fraction,
        classes=_classes(scenario) if scenario.has_uneven_replicas else (),
        interference=scenario.simulation.interference,
        straggling=float(scenario.straggles),
    )


def _cluster(scenario: Scenario, nodes: Sequence[Cluster], mesh: Mesh) -> Cluster:
    """The cluster of the layout: of the first part, or with groups of a like job placed whole."""
    if has_parts(scenario):
        return nodes[0] if nodes else scenario.hardware
    return whole_groups(scenario.hardware, mesh)


def has_parts(scenario: Scenario) -> bool:
    """Whether the scenario says on which nodes some ranks run, or how much they do."""
    parts = scenario.stage_clusters or scenario.replica_clusters
    return parts is not None or scenario.is_mixed


def _nodes(scenario: Scenario, mesh: Mesh) -> tuple[Cluster, ...]:
    """The cluster of each pipeline rank or replica, where said; scale-up domains hold one part."""
    stages, replicas = scenario.stage_clusters, scenario.replica_clusters
    nodes = stages or replicas or ()
    if len(scenario.clusters) == 1:
        return nodes
    kinds = np.array([scenario.clusters.index(cluster) for cluster in nodes])
    kind = np.broadcast_to(
        kinds.reshape((-1, 1, 1, 1) if stages else (-1, 1, 1)), mesh.ranks.shape
    ).ravel()
    domain = scenario.hardware.domain_of(mesh.ranks.ravel())
    first = np.full(scenario.hardware.domains, -1)
    first[domain[::-1]] = kind[::-1]
    mixed = domain[first[domain] != kind]
    if len(mixed):
        key = f"cluster.{'stages' if stages else 'replicas'}"
        message = say("training.two_parts", domain=int(mixed.min()))
        raise ScenarioError(scenario.locate([Problem(message, key=key)]))
    return nodes


def _classes(scenario: Scenario) -> tuple[ReplicaClass, ...]:
    """Replicas by what they run on and their microbatches, those with most first."""
    nodes = scenario.replica_clusters or (scenario.hardware,) * scenario.dp
    alike: dict[tuple[int, int], list[int]] = {}
    for replica, cluster in enumerate(nodes):
        key = (scenario.microbatches_of(replica), nodes.index(cluster))
        alike.setdefault(key, []).append(replica)
    return tuple(
        ReplicaClass(tuple(members), nodes[members[0]], orders_of(scenario, microbatches))
        for (microbatches, _), members in sorted(alike.items(), key=lambda entry: -entry[0][0])
    )


_FP4 = ("fp4", "nvfp4")


def recompute_of(scenario: Scenario) -> Recompute:
    """Recomputation of every stage, as a scenario and its framework say."""
    training, usual = scenario.training_step, Recompute()
    layers = training.recompute_layers
    wide = scenario.software.kernels.recompute_keeps_fp4 or training.precision not in _FP4
    return Recompute(
        training.recompute,
        modules=training.recompute_modules or usual.modules,
        method=training.recompute_method or usual.method,
        layers=usual.layers if layers is None else layers,
        stops_early=scenario.software.kernels.recompute_stops_early,
        prunes=scenario.software.kernels.recompute_prunes,
        keeps=training.recompute_keeps or (usual.keeps if wide else ("context", "sums")),
        offload=training.offload_activations or usual.offload,
        offload_layers=training.offload_layers,
    )


def _stages(scenario: Scenario, orders: Orders) -> tuple[Stage, ...]:
    try:
        return place_layers(scenario.transformer.layers, orders, Division.of(scenario))
    except ScenarioError as error:
        raise ScenarioError(scenario.locate(error.problems)) from None


def orders_of(scenario: Scenario, microbatches: int) -> Orders:
    """Orders of the step of a scenario, with so many microbatches."""
    schedule = scenario.schedule
    name, make = schedule.name, step_orders
    try:
        if schedule.file is not None:
            name, make = str(scenario.folder / schedule.file), _orders_of
        assert name is not None, "the schema wants a name or a file"
        orders = make(
            name,
            pp=scenario.parallelism.pp,
            microbatches=microbatches,
            virtual_stages=scenario.virtual_stages,
            beside=runs_beside(scenario.software, scenario.transformer),
            flushes=schedule.flushes or 1,
        )
        _check_trains(orders, microbatches)
    except ScheduleError as error:
        raise ScenarioError(scenario.locate([Problem(str(error), key="schedule")])) from None
    return orders


def _check_trains(orders: Orders, microbatches: int) -> None:
    """Refuse orders that are no training step of whole microbatches."""
    if orders.forward_only:
        raise ScheduleError(say("training.no_backward", orders=orders))
    if orders.microbatches != microbatches:
        raise ScheduleError(
            say("training.parts_of_sequences", orders=orders, microbatches=microbatches)
        )


# quantiles of a distribution: the mean of the longest of some thousands is within a per cent
_POINTS = 1000


class Samples(NamedTuple):
    """Sequences that samples of some lengths make."""

    computed: int  # tokens of a sequence as it is computed, on average
    # tokens that attend to each other where samples share a sequence; 0 where each has one
    document: int = 0
    used: float = 1.0  # tokens of samples over those computed


def samples_of(scenario: Scenario) -> Samples:
    """Sequences of a training step.

    Notes
    -----
    Packed samples fill a sequence, and the pairs of a token are ``E[l^2] / E[l]``. Padded ones are
    as long as the longest of a microbatch, whose mean is the integral of ``1 - F(l)^n`` over n
    samples; where a step has one microbatch every replica waits for the longest of all. Lengths end
    at the sequence length.
    """
    training = scenario.training_step
    length, lengths = training.sequence_length, training.lengths
    if lengths is None:
        return Samples(length)
    drawn = [min(each, length) for each in _quantiles(lengths)]
    mean = statistics.fmean(drawn)
    if training.packing:
        squares = statistics.fmean(each * each for each in drawn)
        return Samples(length, min(round(squares / mean), length))
    count = training.micro_batch * (scenario.dp if scenario.microbatches == 1 else 1)
    shares = [(place / _POINTS) ** count for place in range(_POINTS + 1)]
    longest = sum(
        each * (later - earlier)
        for each, earlier, later in zip(drawn, shares, shares[1:], strict=False)
    )
    step = scenario.parallelism.tp * scenario.parallelism.cp
    computed = min(math.ceil(longest / step) * step, length)
    return Samples(computed, 0, min(mean / computed, 1.0))


def longest_of(scenario: Scenario) -> int:
    """Tokens of the longest sequence that comes."""
    training = scenario.training_step
    lengths = training.lengths
    if lengths is None or lengths.kind == "lognormal":
        return training.sequence_length
    return min(lengths.tokens, training.sequence_length)


def _quantiles(lengths: LengthChoice) -> list[float]:
    """Lengths at the middle of equal shares of all samples, shortest first."""
    shares = [(place + 0.5) / _POINTS for place in range(_POINTS)]
    tokens = float(lengths.tokens)
    if lengths.kind == "uniform":
        least = lengths.shortest * tokens
        return [least + share * (tokens - least) for share in shares]
    if lengths.kind == "lognormal" and lengths.spread:
        variance = math.log1p(lengths.spread**2)
        normal = statistics.NormalDist(math.log(tokens) - variance / 2, math.sqrt(variance))
        return [math.exp(normal.inv_cdf(share)) for share in shares]
    return [tokens] * _POINTS


def forwards_beside_backwards(orders: Orders) -> Orders:
    """Make a block of every full backward and the forward that follows it at once, forward first.

    Megatron-Core's overlap of expert exchanges runs one more forward in warm-up, so that the next
    forward and a backward of the steady state have nothing to do with each other (NVIDIA/
    Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py, schedules.py, 2025).

    `orders`: without blocks; on one rank, or interleaved: with one chunk on each of several ranks a
    block would wait for the block that it feeds.

    Returns Orders: the same actions.

    Examples
    --------
    >>> from mpsim.schedule import make_orders
    >>> forwards_beside_backwards(make_orders("1f1b", pp=1, microbatches=3)).tokens()
    [['0F0', '(0F1;0B0)OVERLAP_F_B', '(0F2;0B1)OVERLAP_F_B', '0B2']]
    """
    follows = (orders.kind[:-1] == Action.B) & (orders.kind[1:] == Action.F)
    head = np.flatnonzero(follows & (orders.rank[:-1] == orders.rank[1:]))
    place = np.arange(len(orders))
    place[head], place[head + 1] = head + 1, head
    fused = np.zeros(len(orders), dtype=bool)
    fused[head] = True
    return structs.replace(
        orders,
        kind=orders.kind[place],
        stage=orders.stage[place],
        microbatch=orders.microbatch[place],
        fused=fused,
    )
