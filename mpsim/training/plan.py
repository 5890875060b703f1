"""The Plan of a training step, everything resolved and nothing timed, and its costs: those of its
layout, and what batches and replicas add to them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from mpsim import cost, structs
from mpsim.archive import Saved
from mpsim.arrays import Ints
from mpsim.framework import ExpertOverlap
from mpsim.hardware import Cluster
from mpsim.parallel import REPLICATING, Layout, Sharding
from mpsim.parallel.axes import Stream
from mpsim.program.rows import Prices
from mpsim.program.template import ticks
from mpsim.schedule import Orders
from mpsim.training.recompute import Recompute
from mpsim.workload import Expansion, model_flops

SHARDED_GRADIENTS, SHARDED_PARAMETERS = 2, 3
"""Values of `Plan.zero` from which gradients and parameters are sharded."""


@structs.dataclass(frozen=True, slots=True)
class ReplicaClass:
    """Data-parallel replicas that have the same nodes and run the same microbatches."""

    replicas: tuple[int, ...]  # their data-parallel coordinates
    cluster: Cluster  # as these replicas have it
    orders: Orders  # of as many microbatches as each of them runs


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Saved):
    """A layout and what one training step does on it."""

    name: str
    layout: Layout  # who holds what of the model
    orders: Orders  # actions of every pipeline rank
    # micro_batch, global_batch, sequence_length: sequences of each, tokens of a sequence
    micro_batch: int
    global_batch: int
    sequence_length: int
    recompute: Recompute  # what every stage runs again in its backward
    # what data-parallel ranks share: 0 nothing, 1 optimizer states, 2 gradients, 3 parameters
    zero: int
    engine: str
    seed: int
    longest: int = 0  # tokens of the longest sequence that comes; 0 where all are alike
    used: float = 1.0  # tokens of samples over those computed, below 1 where sequences are padded
    # whether a frozen reference model runs a forward beside every microbatch
    reference: bool = False
    schedule: str = ""  # name of the schedule; empty when the orders were read from a file
    # ``analytic``: transfers take the time they have alone; ``flow``: they share links
    network: str = "analytic"
    # data x context parallel ranks that share a copy of what `zero` divides; all by default
    shard: int | None = None
    # what the host keeps: ``none``, ``optimizer`` (its state) or ``parameters`` (those too)
    offload: str = "none"
    offload_to: str = "host"  # ``host`` memory or ``nvme``
    offload_fraction: float = 1.0  # share of the optimizer's state that is offloaded
    # replicas that differ, empty where all are alike; `orders` of the class with most to do
    classes: tuple[ReplicaClass, ...] = ()
    # whether kernels and collectives beside each other slow each other down
    interference: bool = False
    # times the usual loss to stragglers that the step has; 0 where drawn or left out
    straggling: float = 1.0

    def __repr__(self) -> str:
        return (
            f"Plan({self.name!r}, {self.layout!r}, schedule {self.schedule or 'from a file'},"
            f" {self.orders.microbatches} microbatches of {self.micro_batch} x"
            f" {self.sequence_length} tokens, zero {self.zero}, recompute"
            f" {self.recompute.granularity})"
        )

    @property
    def parts(self) -> tuple[Plan, ...]:
        """A plan for each class of replicas; this one alone where all are alike."""
        if not self.classes:
            return (self,)
        return tuple(
            structs.replace(
                self,
                layout=structs.replace(self.layout, cluster=replicas.cluster),
                orders=replicas.orders,
                classes=(),
            )
            for replicas in self.classes
        )

    def on(self, layout: Layout) -> Plan:
        """The same step on another layout."""
        return structs.replace(self, layout=layout)

    @property
    def model_flops(self) -> float:
        """Model FLOPs of the step (`mpsim.workload.model_flops`)."""
        model, document = self.layout.model, self.layout.document
        return model_flops(model, self.global_batch, self.sequence_length, document=document)

    @property
    def class_clusters(self) -> tuple[Cluster, ...]:
        """The cluster of each rank class of the program, the first class of replicas first."""
        ranks = range(self.layout.mesh.pp)
        return tuple(part.layout.cluster_of(rank) for part in self.parts for rank in ranks)

    def members(self, stream: Stream, rank: int) -> Ints:
        """Ranks of a stream's communicators in one pipeline rank, int64[groups, members]."""
        mesh = self.layout.mesh
        if stream is Stream.EDP:
            return mesh.groups(("edp",), rank)
        if stream not in (Stream.REPLICA, Stream.DP):
            return self.layout.members(stream, rank)
        peers = mesh.groups(REPLICATING, rank)
        sharers = self.sharers if self.zero else self.replicas
        copies = peers.reshape(len(peers), -1, sharers)  # neighbours share a copy
        if stream is Stream.REPLICA:
            return copies.swapaxes(1, 2).reshape(-1, copies.shape[1])
        return copies.reshape(-1, sharers)

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on one context-parallel rank."""
        return self.micro_batch * self.sequence_length // self.layout.mesh.cp

    @property
    def sharding(self) -> Sharding:
        """How layers are divided inside a stage."""
        return self.layout.sharding(self.tokens)

    @property
    def division(self) -> tuple[object, ...]:
        """Key of what decides operators inside a stage, beside recomputation."""
        layout = self.layout
        return (
            *(layout.model, layout.framework, layout.precision, layout.tuning, layout.document),
            *(layout.mesh.of_layers, layout.sequence_parallel, self.sharding),
            *(self.micro_batch, self.sequence_length, self.reference, self.interference),
            *(layout.cluster.accelerator, *(part.accelerator for part in layout.stage_clusters)),
        )

    @property
    def message_bytes(self) -> float:
        """Whole message from a stage to the next about one microbatch [B]."""
        return self.layout.message_bytes(self.tokens)

    @property
    def expansions(self) -> Mapping[str, Expansion]:
        """Operators of each kind of layer, the embedding and the head, before they are divided."""
        return self.layout.expansions(self.micro_batch, self.sequence_length)

    @property
    def fullest_expansions(self) -> Mapping[str, Expansion]:
        """`expansions` of the longest sequences, which memory has to hold."""
        return self.layout.expansions(self.micro_batch, self.longest or self.sequence_length)

    @property
    def weights(self) -> Mapping[str, Expansion]:
        """`expansions` as if every parameter trained, where each weight is that of a gradient."""
        return self.layout.all_trained.expansions(self.micro_batch, self.sequence_length)

    @property
    def fuses_blocks(self) -> bool:
        """Whether halves of a fused block run beside each other, one's tokens under way."""
        beside = self.layout.framework.experts.expert_overlap is ExpertOverlap.MICROBATCH
        return beside and self.layout.model.moe is not None and bool(self.orders.fused.any())

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters: data- and context-parallel peers."""
        return self.layout.mesh.replicas

    @property
    def sharers(self) -> int:
        """Ranks that divide one copy of the model states; 1 where every replica has its own."""
        return (self.shard or self.replicas) if self.zero else 1

    @property
    def shares_gradients(self) -> bool:
        """Whether replicas hold parts of the gradients, so that their norm is a sum over them."""
        return self.zero >= SHARDED_GRADIENTS and self.sharers > 1

    @property
    def gathers_units(self) -> bool:
        """Whether parameters are sharded or on the host: units are gathered before they run."""
        away = self.replicas > 1 or self.offload == "parameters"
        return self.zero == SHARDED_PARAMETERS and away

    @property
    def gathers_beside(self) -> bool:
        """Whether the first forward of a step runs beside the gather of updated parameters."""
        software = self.layout.framework
        beside = software.data.parameter_gather_overlap and not software.host.launch_blocking
        return beside and self.sharers > 1 and not self.gathers_units

    @property
    def exchanges_beside(self) -> bool:
        """Whether gathers or reductions run beside layers, which are slower for it on average."""
        if self.interference or self.replicas == 1:  # the engine finds out which kernels are slower
            return False
        gathers = self.gathers_beside or (self.gathers_units and self.units_in_flight > 1)
        return gathers or self.layout.framework.overlaps_gradients(self.layout.mesh.pp)

    @property
    def reduced_bytes(self) -> float:
        """Size of a gradient element as it travels [B]."""
        software = self.layout.framework
        return software.data.reduced_bytes or software.optimizer.gradient_bytes

    @property
    def gathered_bytes(self) -> float:
        """Size of a parameter element as it is gathered [B]."""
        software = self.layout.framework
        return software.data.gathered_bytes or software.optimizer.parameter_bytes

    @property
    def units_in_flight(self) -> int:
        """Gathered units alive at a time."""
        software = self.layout.framework
        return 1 if software.host.launch_blocking else software.data.units_in_flight

    @property
    def keeps_gathered(self) -> bool:
        """Whether a stage gathers its parameters once a step and keeps them, as pipelines may."""
        return (
            self.gathers_units
            and self.layout.mesh.pp > 1
            and self.layout.framework.data.pipeline_unsharded
        )

    @property
    def reduces_every_microbatch(self) -> bool:
        """Whether gradients are reduced after every backward, not once a step."""
        data = self.layout.framework.data
        if self.zero < SHARDED_GRADIENTS:
            return data.reduce_every_microbatch
        return not (data.defer_reduction or self.keeps_gathered)

    @property
    def divides_gradients(self) -> bool:
        """Whether a rank keeps its share of gradients alone between microbatches."""
        return self.zero >= SHARDED_GRADIENTS and self.reduces_every_microbatch

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step of the whole job, those of decoders included."""
        return self.global_batch * (self.sequence_length + self.layout.model.decoder_length)

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes to save in order to go on later: parameters and optimizer state, each once [B]."""
        sizes, parameters = self.layout.framework.optimizer, self.layout.model.parameters()
        return float(parameters.total * (sizes.parameter_bytes + sizes.optimizer_bytes))


_ON_AVERAGE = (".lost", ".full_rate")  # of the constants of interference


class PlanCosts(cost.LayoutCosts):
    """Cost models of one Plan; they share what those of a plan `like` it remember."""

    def __init__(self, plan: Plan, *, like: cost.LayoutCosts | None = None) -> None:
        super().__init__(plan.layout, like=like)
        self.plan = plan

    @functools.cached_property
    def parts(self) -> tuple[PlanCosts, ...]:
        """Costs of each class of replicas; these where all are alike."""
        if not self.plan.classes:
            return (self,)
        return tuple(PlanCosts(part) for part in self.plan.parts)

    def each(self) -> Iterator[cost.LayoutCosts]:
        """Costs of every kind of nodes, in every class of replicas."""
        if not self.plan.classes:
            yield from super().each()
        else:
            yield from itertools.chain(*(part.each() for part in self.parts))

    def provenance(self) -> tuple[cost.Constant, ...]:
        """Every constant used so far, kernels first."""
        _, *others = self.each()
        own = self.provenance_alone()
        elsewhere = [
            (*other.provenance_alone(), *self._step_constants(other.layout)) for other in others
        ]
        if self.plan.classes:
            elsewhere += [part.provenance() for part in self.parts]
        if elsewhere:
            own = tuple(dict.fromkeys(itertools.chain(own, *elsewhere)))
        return (*own, *self._step_constants(self.layout))

    def _step_constants(self, layout: Layout) -> tuple[cost.Constant, ...]:
        """Constants of what runs beside layers, and of the host that keeps states."""
        plan, constants = self.plan, tuple[cost.Constant, ...]()
        overlap = plan.layout.framework.experts.expert_overlap
        hides_tokens = plan.sharding.routing is not None and overlap is not ExpertOverlap.NONE
        beside = {"dp": plan.exchanges_beside, "ep": hides_tokens and not plan.interference}
        if any(beside.values()):
            used = (*_ON_AVERAGE, *(f".units_{axis}" for axis, runs in beside.items() if runs))
            taken = cost.interference_of(layout.framework.name, layout.cluster.accelerator)
            constants = tuple(each for each in taken.constants if each.name.endswith(used))
        if plan.straggling:
            usual = cost.straggling_constants(layout.cluster.accelerator)
            if plan.layout.mesh.world > usual["beyond"].value:
                constants = (*constants, *usual.values())
        on_host = {plan.offload, plan.recompute.offload} - {"none"}
        return (*constants, *cost.host_constants(layout.cluster)) if on_host else constants

    def straggling(self) -> float:
        """Time that every rank waits for the slowest of all at the end of the step [s]."""
        plan, mesh = self.plan, self.layout.mesh
        if not plan.straggling:
            return 0.0
        flops = plan.model_flops / mesh.world
        slowest = 0.0
        for costs in self.each():
            usual = cost.straggling_constants(costs.layout.cluster.accelerator)
            seconds = cost.straggling_seconds(
                flops,
                mesh.world,
                rate=costs.kernels.wide_rate,
                per_doubling=usual["per_doubling"].value,
                beyond=usual["beyond"].value,
            )
            slowest = max(slowest, seconds)
        return plan.straggling * slowest

    def sends(self) -> tuple[Prices, Prices]:
        """Messages of every stage to the next, and to the one before."""
        ranks, size = [stage.rank for stage in self.layout.stages], self.plan.message_bytes
        # chunks of the same two ranks send the same message, and the last stage none
        pairs = [*itertools.pairwise(ranks), (ranks[0], ranks[0])]
        sent = {
            (first, last): self.message(first, last, size) if first != last else (0.0, 0.0, 0.0)
            for pair in dict.fromkeys(pairs)
            for first, last in (pair, pair[::-1])
        }
        behind = [sent[pair[::-1]] for pair in [*pairs[-1:], *pairs[:-1]]]
        seconds, up, out = np.array([[sent[pair] for pair in pairs], behind]).transpose(2, 0, 1)
        onward, back = zip(ticks(seconds), up, out, up + out, strict=True)
        return Prices(*onward), Prices(*back)
