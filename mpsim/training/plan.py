"""The Plan: everything resolved, nothing timed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import Problem, ScenarioError
from mpsim.framework import ContextExchange, ExpertOverlap, Framework
from mpsim.hardware import Cluster
from mpsim.parallel import Mesh, Recompute, Routing, Sharding, Stage, rank_load
from mpsim.schedule import Orders
from mpsim.workload import (
    Count,
    Expansion,
    Experts,
    Lowering,
    Parameters,
    Transformer,
    expand_embedding,
    expand_head,
    expand_layer,
)

__all__ = ["Plan", "ReplicaClass"]

SHARDED_GRADIENTS, SHARDED_PARAMETERS = 2, 3
"""Values of `Plan.zero` from which gradients and parameters are sharded."""

_VOCAB_MULTIPLE = 128  # Megatron-LM --make-vocab-size-divisible-by, times tp


@dataclasses.dataclass(frozen=True)
class ReplicaClass:
    """Data-parallel replicas that have the same nodes and run the same microbatches.

    Parameters
    ----------
    replicas : tuple of int
        Their data-parallel coordinates.
    cluster : Cluster
        As these replicas have it.
    orders : Orders
        Of as many microbatches as each of them runs.
    """

    replicas: tuple[int, ...]
    cluster: Cluster
    orders: Orders


@dataclasses.dataclass(frozen=True)
class Plan:
    """Who runs what, where.

    Parameters
    ----------
    name : str
        Of the scenario.
    cluster : Cluster
    model : Transformer
    framework : Framework
    mesh : Mesh
    stages : tuple of Stage
        Virtual stages in model order.
    orders : Orders
        Actions of every pipeline rank.
    schedule : str
        Name of the schedule; empty when the orders were read from a file.
    micro_batch, global_batch, sequence_length : int
        Sequences of a microbatch and of a step, tokens of a sequence.
    precision : str
    recompute : Recompute
        What every stage runs again in its backward.
    sequence_parallel : bool
    zero : int
        What data-parallel ranks share: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too.
    engine : str
    seed : int
    network : str
        ``analytic``: transfers take the time they have alone; ``flow``: they share links.
    shard : int, optional
        Ranks of data x context parallelism that share one copy of what `zero` divides; all of them by default.
    offload : str
        What the host keeps: ``none``, ``optimizer`` (its state) or ``parameters`` (those too).
    offload_to : str
        ``host`` memory or ``nvme``.
    stage_clusters : tuple of Cluster
        The cluster as each pipeline rank has it; empty where all are alike.
    classes : tuple of ReplicaClass
        Replicas that differ from others; empty where all are alike. `orders` are those of the class with most microbatches.
    interference : bool
        Whether kernels and collectives beside each other slow each other down.
    """

    name: str
    cluster: Cluster
    model: Transformer
    framework: Framework
    mesh: Mesh
    stages: tuple[Stage, ...]
    orders: Orders
    micro_batch: int
    global_batch: int
    sequence_length: int
    precision: str
    recompute: Recompute
    sequence_parallel: bool
    zero: int
    engine: str
    seed: int
    schedule: str = ""
    network: str = "analytic"
    shard: int | None = None
    offload: str = "none"
    offload_to: str = "host"
    stage_clusters: tuple[Cluster, ...] = ()
    classes: tuple[ReplicaClass, ...] = ()
    interference: bool = False

    def cluster_of(self, rank: int) -> Cluster:
        """The cluster as pipeline rank `rank` has it."""
        return self.stage_clusters[rank] if self.stage_clusters else self.cluster

    @property
    def parts(self) -> tuple[Plan, ...]:
        """A plan for each class of replicas; this one alone where all are alike."""
        return self._class_plans if self.classes else (self,)

    @functools.cached_property
    def _class_plans(self) -> tuple[Plan, ...]:
        return tuple(
            dataclasses.replace(self, cluster=one.cluster, orders=one.orders, classes=())
            for one in self.classes
        )

    @functools.cached_property
    def class_clusters(self) -> tuple[Cluster, ...]:
        """The cluster as each rank class of the program has it: pipeline ranks of the first class of replicas first."""
        ranks = range(self.mesh.pp)
        return tuple(part.cluster_of(rank) for part in self.parts for rank in ranks)

    @property
    def padded_vocab(self) -> int:
        """Rows of embedding and head once every tensor-parallel rank has the same number."""
        return self.model.padded_vocab(_VOCAB_MULTIPLE * self.mesh.tp)

    @functools.cached_property
    def lowering(self) -> Lowering:
        """What the framework fuses, where the shapes of this run let it."""
        lowering, group = self.framework.lowering, self.framework.kernels.softmax_group
        if not group or lowering.fused_attention:
            return lowering
        fits = self.micro_batch * self.model.heads // self.mesh.tp % group == 0
        return dataclasses.replace(lowering, fused_softmax=lowering.fused_softmax and fits)

    @functools.cached_property
    def resident_model(self) -> Transformer:
        """The model as tensor-parallel ranks hold it: key-value heads repeated where there are fewer than ranks."""
        if self.mesh.tp <= self.model.kv_heads:
            return self.model
        return dataclasses.replace(self.model, kv_heads=self.mesh.tp)

    @functools.cached_property
    def sharding(self) -> Sharding:
        """How layers are divided inside a stage."""
        tensor = self.framework.tensor
        return Sharding(
            tp=self.mesh.tp,
            cp=self.mesh.cp,
            ep=self.mesh.ep,
            etp=self.mesh.expert_tp,
            tokens=self.micro_batch * self.sequence_length // self.mesh.cp,
            hidden=self.model.hidden,
            sequence_parallel=self.sequence_parallel,
            tensor_overlap=tensor.tensor_overlap,
            narrow_chunks=tensor.narrow_chunks,
            narrow_gathers=tensor.narrow_gathers,
            scale_reductions=tensor.scale_reductions,
            keeps_gathered=tensor.keeps_gathered,
            copies_parts=tensor.copies_parts,
            context_exchange=tensor.context_exchange,
            context_inside=self._context_inside,
            routing=self._routing,
            activation_bytes=self.framework.lowering.activation_bytes,
            loss_reductions=tensor.loss_reductions,
            norm_reductions=tensor.norm_reductions,
        )

    @property
    def message_bytes(self) -> float:
        """What one microbatch passes from a stage to the next, whole [B]."""
        sharding = self.sharding
        return float(sharding.tokens * sharding.hidden * sharding.activation_bytes)

    @property
    def _context_inside(self) -> int:
        """Context-parallel ranks that share a scale-up domain, where that decides how they exchange keys and values."""
        if self.framework.tensor.context_exchange is not ContextExchange.HIERARCHICAL:
            return 1
        shape = self.mesh.shape(("cp",), 0, self.cluster)
        heads, inside = self.model.heads, shape.per_domain
        fault = ""
        if inside * shape.domains != shape.ranks:
            fault = f"unevenly spread over {shape.domains} scale-up domains; needed as many in each"
        elif heads % (self.mesh.tp * inside):
            fault = (
                f"of which {inside} in each scale-up domain divide {heads} heads with tp {self.mesh.tp}; "
                "needed a divisor"
            )
        if fault:
            message = (
                f"got {shape.ranks} context-parallel ranks {fault}: hierarchical context_exchange is an all-to-all of heads "
                "inside a domain; choose another cp, or set framework.context_exchange to ring"
            )
            raise ScenarioError([Problem(message, key="parallelism.cp")])
        return inside

    @property
    def _routing(self) -> Routing | None:
        moe, habits = self.model.moe, self.framework.experts
        if moe is None:
            return None
        shape = self.mesh.expert_shape(("ep",), 0, self.cluster)
        return Routing(
            experts=moe.experts,
            top_k=moe.top_k,
            load=self._load(moe),
            capacity=moe.capacity_factor or 1.0,
            dispatch=habits.expert_dispatch,
            overlap=habits.expert_overlap,
            grouped_gemm=habits.grouped_gemm,
            synchronizations=habits.expert_synchronizations,
            launches=habits.expert_launches,
            domains=shape.domains if shape.domains * shape.per_domain == shape.ranks else 1,
        )

    def _load(self, moe: Experts) -> float:
        """Tokens of the busiest rank over the mean; experts with a capacity all compute on that many."""
        if moe.capacity_factor:
            return 1.0
        return moe.imbalance * rank_load(moe.experts, self.mesh.ep, moe.spread)

    @property
    def fuses_blocks(self) -> bool:
        """Whether the two halves of a fused block run beside each other, tokens of one travelling while the other computes."""
        beside = self.framework.experts.expert_overlap is ExpertOverlap.MICROBATCH
        return beside and self.model.moe is not None and bool(self.orders.fused.any())

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters: data- and context-parallel peers."""
        return self.mesh.dp * self.mesh.cp

    @property
    def sharers(self) -> int:
        """Ranks that divide one copy of the model states among them; 1 where every replica has its own."""
        return (self.shard or self.replicas) if self.zero else 1

    @property
    def shares_gradients(self) -> bool:
        """Whether replicas hold parts of the gradients, so that their norm is a sum over replicas too."""
        return self.zero >= SHARDED_GRADIENTS and self.sharers > 1

    @property
    def gathers_units(self) -> bool:
        """Whether parameters are sharded, so that every unit of layers is gathered before it runs."""
        return self.zero == SHARDED_PARAMETERS and self.replicas > 1

    @property
    def gathers_beside(self) -> bool:
        """Whether the first forward of a step runs beside the gather of what the optimizer updated."""
        software = self.framework
        beside = software.data.parameter_gather_overlap and not software.host.launch_blocking
        return beside and self.sharers > 1 and not self.gathers_units

    @property
    def exchanges_beside(self) -> bool:
        """Whether gathers of parameters or reductions of gradients run beside layers, which are slower for it on average."""
        if self.interference or self.replicas == 1:  # the engine finds out which kernels are slower
            return False
        gathers = self.gathers_beside or (self.gathers_units and self.units_in_flight > 1)
        return gathers or self.framework.overlaps_gradients(self.mesh.pp)

    @property
    def units_in_flight(self) -> int:
        """Gathered units alive at a time."""
        return 1 if self.framework.host.launch_blocking else self.framework.data.units_in_flight

    @property
    def keeps_gathered(self) -> bool:
        """Whether a stage gathers its parameters once a step and keeps them, as pipelining over sharded parameters does."""
        return self.gathers_units and self.mesh.pp > 1 and self.framework.data.pipeline_unsharded

    @property
    def reduces_every_microbatch(self) -> bool:
        """Whether gradients are reduced after every backward, not once a step."""
        data = self.framework.data
        if self.zero < SHARDED_GRADIENTS:
            return data.reduce_every_microbatch
        return not (data.defer_reduction or self.keeps_gathered)

    @property
    def tokens_per_step(self) -> int:
        """Of the whole job, those of decoders included."""
        return self.global_batch * (self.sequence_length + self.model.decoder_length)

    @functools.cached_property
    def expansions(self) -> dict[str, Expansion]:
        """Operators of a layer of each kind (by that name), of the embedding and of the head, before tensor parallelism."""
        shape = {
            "sequences": self.micro_batch,
            "sequence_length": self.sequence_length,
            "context": self.mesh.cp,
        }
        model, lowering = self.resident_model, self.lowering
        layers = {
            kind: expand_layer(model, lowering, kind=kind, **shape)
            for kind in dict.fromkeys(model.layer_kinds)
        }
        return {
            **layers,
            "embedding": expand_embedding(model, lowering, **shape),
            "head": expand_head(model, lowering, **shape, padded_vocab=self.padded_vocab),
        }

    @functools.cached_property
    def resident_parameters(self) -> Parameters:
        """Parameters of the resident model, vocabulary padded."""
        return self.resident_model.parameters(padded_vocab=self.padded_vocab)

    @property
    def checkpoint_bytes(self) -> float:
        """What has to be saved to go on later: parameters and optimizer state, each once [B]."""
        sizes = self.framework.optimizer
        return float(
            self.model.parameters().total * (sizes.parameter_bytes + sizes.optimizer_bytes)
        )

    @property
    def layer_parameters(self) -> dict[str, Count]:
        """Parameters of one layer of each kind."""
        return dict(self.resident_parameters.layers)

    @functools.cached_property
    def _kinds(self) -> tuple[str, ...]:
        return self.model.layer_kinds

    def layer_kinds(self, stage: Stage) -> tuple[str, ...]:
        """Kind of every layer of a stage."""
        return self._kinds[stage.first_layer : stage.first_layer + stage.layers]

    def stage_parameters(self, stage: Stage) -> dict[str, Count]:
        """Parameters of a stage by part (``embedding``, ``layers``, ``head``).

        A tied output projection that does not share a stage with the embedding is a second copy of it.
        """
        count = self.resident_parameters
        kinds = self.layer_kinds(stage)
        parts = {"layers": sum((count.layers[kind] for kind in kinds), Count())}
        if stage.embedding:
            parts["embedding"] = count.embedding
        if stage.head:
            copied = self.model.tied_embeddings and not self.shares_embedding(stage)
            table = self.padded_vocab * self.model.hidden if copied else count.output_head.sharded
            parts["head"] = Count(table, count.final_norm.replicated)
        return parts

    def shares_embedding(self, head: Stage) -> bool:
        """Whether the rank of a stage with the head has the embedding too, so that tied weights are one tensor."""
        return any(
            one.embedding for one in self.rank_stages(int(self.orders.stage_rank[head.index]))
        )

    @property
    def ends(self) -> tuple[int, int] | None:
        """Ranks of the first and the last stage when each has a copy of a tied embedding, else None."""
        head = next(one for one in self.stages if one.head)
        if not self.model.tied_embeddings or self.shares_embedding(head):
            return None
        return int(self.orders.stage_rank[0]), int(self.orders.stage_rank[head.index])

    @property
    def copies(self) -> tuple[tuple[Stage, Stage], ...]:
        """Pairs of stages that hold the same part of the model (two pipelines in opposite directions)."""
        parts = int(self.orders.model_stage.max()) + 1
        return tuple(zip(self.stages[:parts], self.stages[parts:], strict=False))

    def held(self, count: Count) -> float:
        """How many of these parameters one rank holds."""
        return count.per_rank(self.mesh.tp, ep=self.mesh.ep, etp=self.mesh.expert_tp)

    @functools.cached_property
    def rank_parameters(self) -> NDArray[np.float64]:
        """Parameters of each pipeline rank on one tensor-parallel rank, float64[P]."""
        return self.rank_dense_parameters + self.rank_expert_parameters

    @functools.cached_property
    def rank_dense_parameters(self) -> NDArray[np.float64]:
        """Those that every data-parallel replica holds, float64[P]."""
        return self._sum_ranks(lambda count: count.sharded / self.mesh.tp + count.replicated)

    @functools.cached_property
    def rank_expert_parameters(self) -> NDArray[np.float64]:
        """Those of routed experts, float64[P]."""
        ep, etp = self.mesh.ep, self.mesh.expert_tp
        return self._sum_ranks(lambda count: count.experts_per_rank(ep=ep, etp=etp))

    def _sum_ranks(self, held: Callable[[Count], float]) -> NDArray[np.float64]:
        """Sum over all parts of the stages of each pipeline rank."""
        known: dict[tuple[object, ...], list[float]] = {}
        counts: list[list[float]] = [[] for _ in range(self.mesh.pp)]
        for stage, rank in zip(self.stages, self.orders.stage_rank.tolist(), strict=True):
            # what a head holds depends on whether its rank has the embedding
            key = (self.layer_kinds(stage), stage.embedding, rank if stage.head else -1)
            if key not in known:
                known[key] = [held(count) for count in self.stage_parameters(stage).values()]
            counts[rank] += known[key]
        return np.array([sum(parts) for parts in counts], dtype=float)

    @property
    def rank_linear_weights(self) -> NDArray[np.float64]:
        """Weights of the linear layers and experts of each pipeline rank on one tensor-parallel rank, float64[P]."""
        layers = (
            sum((self.stage_parameters(one)["layers"] for one in self.rank_stages(rank)), Count())
            for rank in range(self.mesh.pp)
        )
        linear = (dataclasses.replace(one, replicated=0) for one in layers)
        return np.array([self.held(one) for one in linear])

    def rank_stages(self, rank: int) -> list[Stage]:
        """Virtual stages of one pipeline rank, in model order."""
        return [one for one in self.stages if self.orders.stage_rank[one.index] == rank]
