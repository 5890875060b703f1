"""Layout: who holds what of a model on which cluster, whatever the job is.

Training and serving build their plans on it: nothing here knows batches or requests. What depends
on how many tokens pass through is a method that takes them.

Shapes: P pipeline ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.errors import Problem, ScenarioError
from mpsim.framework import ContextExchange, Framework
from mpsim.hardware import Cluster
from mpsim.memo import remembered
from mpsim.parallel.axes import ACCOUNTED, FOLDED, Stream
from mpsim.parallel.experts import busiest_rank, rank_load
from mpsim.parallel.mesh import Mesh, Stage
from mpsim.parallel.shard import Routing, Sharding
from mpsim.shipped import say
from mpsim.workload import (
    ALL_TRAINED,
    Count,
    Expansion,
    Experts,
    Lowering,
    Parameters,
    Transformer,
    Tuning,
    expand_embedding,
    expand_head,
    expand_layer,
)

_INSIDE_LAYERS = {axis.streams[0]: axis.name for axis in FOLDED if axis.communicators}
_VOCAB_MULTIPLE = 128  # Megatron-LM --make-vocab-size-divisible-by, times tp
# models, divisions and pipelines whose derived values stay ready for a search
_KEPT = 256


class ParameterKinds(NamedTuple):
    """Parameters that every replica holds, and those of routed experts, float64[P]."""

    dense: Floats
    experts: Floats


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A model divided over the ranks of a cluster."""

    cluster: Cluster
    model: Transformer
    framework: Framework
    mesh: Mesh
    # virtual stages in model order, with the pipeline rank that runs each
    stages: tuple[Stage, ...]
    precision: str  # format of the matrix products
    # whether activations outside tensor-parallel regions are divided too
    sequence_parallel: bool = False
    # the cluster as each pipeline rank has it; empty where all are alike
    stage_clusters: tuple[Cluster, ...] = ()
    tuning: Tuning = ALL_TRAINED  # which parameters train
    # tokens that attend to each other where several samples share a sequence; 0 for all
    document: int = 0

    def __repr__(self) -> str:
        mesh = self.mesh
        degrees = " ".join(f"{axis.name} {mesh.degree(axis.name)}" for axis in ACCOUNTED)
        return (
            f"Layout({self.model.layers} layers in {len(self.stages)} stages, {degrees}:"
            f" {mesh.world} of {self.cluster.node.accelerator.name}, {self.precision},"
            f" {self.framework.name})"
        )

    def cluster_of(self, rank: int) -> Cluster:
        """The cluster as pipeline rank `rank` has it."""
        return self.stage_clusters[rank] if self.stage_clusters else self.cluster

    @property
    def padded_vocab(self) -> int:
        """Rows of embedding and head once every tensor-parallel rank has the same number."""
        return _padded_vocab(self.model, self.mesh.tp)

    @property
    def resident_model(self) -> Transformer:
        """The model as tensor-parallel ranks hold it: key-value heads repeated where too few."""
        return _resident(self.model, self.mesh.tp)

    @property
    def parameters(self) -> Parameters:
        """Parameters of the resident model, vocabulary padded."""
        return _parameters(self.model, self.mesh.tp)

    @property
    def layer_parameters(self) -> Mapping[str, Count]:
        """Parameters of one layer of each kind."""
        return self.parameters.layers

    def lowering(self, sequences: int) -> Lowering:
        """Kernels that the framework fuses, where the shapes of so many sequences let it."""
        lowering, group = self.framework.lowering, self.framework.kernels.softmax_group
        if not group or lowering.fused_attention:
            return lowering
        fits = sequences * self.model.heads // self.mesh.tp % group == 0
        return structs.replace(lowering, fused_softmax=lowering.fused_softmax and fits)

    def expansions(self, sequences: int, sequence_length: int) -> Mapping[str, Expansion]:
        """Operators of a layer of each kind (by that name), of the embedding and of the head,
        before tensor parallelism.

        `sequences` and `sequence_length`: that pass through at once, and tokens of each.
        """
        return _expansions(
            self.resident_model,
            self.lowering(sequences),
            self.padded_vocab,
            sequences=sequences,
            sequence_length=sequence_length,
            context=self.mesh.cp,
            tuning=self.tuning,
            document=self.document,
        )

    def message_bytes(self, tokens: int) -> float:
        """Whole message of so many tokens of a context-parallel rank to the next stage [B]."""
        return float(tokens * self.model.hidden * self.framework.lowering.activation_bytes)

    def sharding(self, tokens: int) -> Sharding:
        """How operators are divided inside a stage, for so many tokens on one context-parallel
        rank.

        ScenarioError if heads do not divide among the context-parallel ranks of a scale-up domain
        that exchange them.
        """
        return Sharding(
            tp=self.mesh.tp,
            cp=self.mesh.cp,
            ep=self.mesh.ep,
            etp=self.mesh.expert_tp,
            tokens=tokens,
            hidden=self.model.hidden,
            sequence_parallel=self.sequence_parallel,
            tensor=self.framework.tensor,
            context_inside=self._context_inside,
            routing=self._routing(tokens),
            activation_bytes=self.framework.lowering.activation_bytes,
        )

    @property
    def _context_inside(self) -> int:
        """Context-parallel ranks in a scale-up domain, where that decides how they exchange."""
        if self.framework.tensor.context_exchange is not ContextExchange.HIERARCHICAL:
            return 1
        shape = self.mesh.shape(("cp",), 0, self.cluster)
        heads, inside = self.model.heads, shape.per_domain
        fault = ""
        if inside * shape.domains != shape.ranks:
            fault = f"unevenly spread over {shape.domains} scale-up domains; needed as many in each"
        elif heads % (self.mesh.tp * inside):
            fault = say("parallel.uneven_heads", inside=inside, heads=heads, tp=self.mesh.tp)
        if fault:
            message = say("parallel.two_levels", ranks=shape.ranks, fault=fault)
            raise ScenarioError([Problem(message, key="parallelism.cp")])
        return inside

    def _routing(self, tokens: int) -> Routing | None:
        moe, experts = self.model.moe, self.framework.experts
        if moe is None:
            return None
        shape = self.mesh.shape(("ep",), 0, self.cluster)
        return Routing(
            experts=moe.experts,
            top_k=moe.top_k,
            load=self._load(moe, tokens),
            capacity=moe.capacity_factor or 1.0,
            software=experts,
            pads=experts.expert_padding and not moe.capacity_factor,
            domains=shape.domains if shape.domains * shape.per_domain == shape.ranks else 1,
        )

    def _load(self, moe: Experts, tokens: int) -> float:
        """Tokens of the busiest rank over the mean; with a capacity all have that many."""
        if moe.capacity_factor:
            return 1.0
        ranks = self.mesh.ep
        popular = moe.imbalance * rank_load(moe.experts, ranks, moe.spread)
        if self.framework.experts.consecutive_experts:  # every expert is in as many runs
            return popular
        senders = ranks * self.mesh.expert_tp / self.mesh.tp
        return float(busiest_rank(popular, ranks, tokens * senders * moe.top_k))

    def members(self, stream: Stream, rank: int) -> Ints:
        """Ranks of a stream's communicators in layers, or of each model [groups, members]."""
        if stream in _INSIDE_LAYERS:
            return self.mesh.groups((_INSIDE_LAYERS[stream],), rank)
        return self.mesh.model_groups()

    def layer_kinds(self, stage: Stage) -> tuple[str, ...]:
        """Kind of every layer of a stage."""
        return self.model.layer_kinds[stage.first_layer : stage.first_layer + stage.layers]

    def content(self, stage: Stage) -> tuple[tuple[str, ...], bool, bool, bool]:
        """Content of a stage: its layers, its ends, and whether the head shares a table."""
        shares = stage.head and self.shares_embedding(stage)
        return self.layer_kinds(stage), stage.embedding, stage.head, shares

    def stage_parameters(self, stage: Stage) -> dict[str, Count]:
        """Parameters of a stage by part (``embedding``, ``layers``, ``head``).

        A tied output projection on another rank than the embedding is a second copy of it.
        """
        shared = stage.head and self.shares_embedding(stage)
        return dict(_stage_counts(self.model, self.mesh.tp, stage, shared=shared))

    @property
    def all_trained(self) -> Layout:
        """The same layout of a model all of whose parameters train: what weights there are."""
        return structs.replace(self, tuning=ALL_TRAINED)

    def trained(self, counts: Mapping[str, Count]) -> dict[str, Count]:
        """Trained parameters of parts: a layer of each kind by its name, embedding, head."""
        if self.tuning.trains_all:
            return dict(counts)
        parts, lowering = self.all_trained.expansions(1, self.mesh.cp), self.lowering(1)
        return {
            part: self.tuning.trained(part, parts[part], count, lowering, self.model)
            for part, count in counts.items()
        }

    def trained_parameters(self, stage: Stage) -> dict[str, Count]:
        """Trained parameters of a stage by part, as `stage_parameters` has all."""
        if self.tuning.trains_all:
            return self.stage_parameters(stage)
        held = self.stage_parameters(stage)
        ends = self.trained({part: count for part, count in held.items() if part != "layers"})
        layers = self.trained(self.layer_parameters)
        return {**ends, "layers": sum((layers[kind] for kind in self.layer_kinds(stage)), Count())}

    @property
    def trained_kinds(self) -> ParameterKinds:
        """Trained parameters of each pipeline rank by who else holds them."""
        if self.tuning.trains_all:
            return self.parameter_kinds
        mesh, kinds = self.mesh, np.zeros((2, self.mesh.pp))
        for stage in self.stages:
            for count in self.trained_parameters(stage).values():
                experts = count.experts_per_rank(ep=mesh.ep, etp=mesh.expert_tp)
                kinds[:, stage.rank] += self.held(count) - experts, experts
        return ParameterKinds(*kinds)

    def frozen_bytes(self, size: float) -> Floats:
        """Mean bytes of a parameter without adapters, float64[P]. `size`: of one that could [B]."""
        sizes, adapts = np.full(self.mesh.pp, float(size)), self.tuning.rank > 0
        for rank in range(self.mesh.pp) if adapts else ():
            total = moved = 0.0
            for stage in self.rank_stages(rank):
                for part, count in self.stage_parameters(stage).items():
                    held = self.held(count)
                    total += held
                    moved += held * self.tuning.base_bytes(count, layer=part == "layers")
            sizes[rank] = moved / total
        return sizes

    def rank_stages(self, rank: int) -> list[Stage]:
        """Virtual stages of one pipeline rank, in model order."""
        return [stage for stage in self.stages if stage.rank == rank]

    def shares_embedding(self, head: Stage) -> bool:
        """Whether the rank of a stage with the head has the embedding: tied weights are one."""
        return any(stage.embedding for stage in self.rank_stages(head.rank))

    @property
    def embedding_ends(self) -> tuple[int, int] | None:
        """Ranks of the first and last stage if each has a copy of a tied embedding, else None."""
        head = next(stage for stage in self.stages if stage.head)
        if not self.model.tied_embeddings or self.shares_embedding(head):
            return None
        return self.stages[0].rank, head.rank

    @property
    def stage_copies(self) -> tuple[tuple[Stage, Stage], ...]:
        """Pairs of stages with the same part of the model (pipelines in opposite directions)."""
        # the stages of one pipeline come first and end with the head
        parts = next(stage.index for stage in self.stages if stage.head) + 1
        return tuple(zip(self.stages[:parts], self.stages[parts:], strict=False))

    def held(self, count: Count) -> float:
        """How many of these parameters one rank holds."""
        return count.per_rank(self.mesh.tp, ep=self.mesh.ep, etp=self.mesh.expert_tp)

    @property
    def rank_parameters(self) -> Floats:
        """Parameters of each pipeline rank on one tensor-parallel rank, float64[P]."""
        dense, experts = self.parameter_kinds
        return dense + experts

    @property
    def parameter_kinds(self) -> ParameterKinds:
        """Parameters of each pipeline rank by who else holds them."""
        mesh = self.mesh
        degrees = (mesh.tp, mesh.ep, mesh.expert_tp)
        return _rank_parameters(self.model, *degrees, pp=mesh.pp, stages=self.stages)

    @property
    def rank_linear_weights(self) -> Floats:
        """Weights of linear layers and experts of each pipeline rank on one tp rank, float64[P]."""
        layers = (
            sum(
                (self.stage_parameters(stage)["layers"] for stage in self.rank_stages(rank)),
                Count(),
            )
            for rank in range(self.mesh.pp)
        )
        linear = (structs.replace(count, replicated=0) for count in layers)
        return np.array([self.held(count) for count in linear])


# Derived values are found again by content: a frozen layout holds no cache, and layouts that differ
# in their nodes, their replicas or their stages share what their model and their degrees decide.


def _padded_vocab(model: Transformer, tp: int) -> int:
    return model.padded_vocab(_VOCAB_MULTIPLE * tp)


@remembered(_KEPT)
def _resident(model: Transformer, tp: int) -> Transformer:
    return model if tp <= model.kv_heads else structs.replace(model, kv_heads=tp)


@remembered(_KEPT)
def _parameters(model: Transformer, tp: int) -> Parameters:
    return _resident(model, tp).parameters(padded_vocab=_padded_vocab(model, tp))


@remembered(_KEPT)
def _expansions(
    model: Transformer,
    lowering: Lowering,
    padded_vocab: int,
    *,
    sequences: int,
    sequence_length: int,
    context: int,
    tuning: Tuning,
    document: int,
) -> Mapping[str, Expansion]:
    shape = {"sequences": sequences, "sequence_length": sequence_length, "context": context}
    layers = {
        kind: expand_layer(model, lowering, kind=kind, document=document, **shape)
        for kind in dict.fromkeys(model.layer_kinds)
    }
    ends = {
        "embedding": expand_embedding(model, lowering, **shape),
        "head": expand_head(model, lowering, **shape, padded_vocab=padded_vocab),
    }
    parts = {**layers, **ends}
    return MappingProxyType(
        {name: tuning.applied(name, part, lowering, model) for name, part in parts.items()}
    )


@remembered(_KEPT)
def _stage_counts(model: Transformer, tp: int, stage: Stage, *, shared: bool) -> dict[str, Count]:
    """Parameters of a stage by part; `shared`: the rank of a head has the embedding too."""
    count = _parameters(model, tp)
    kinds = model.layer_kinds[stage.first_layer : stage.first_layer + stage.layers]
    parts = {"layers": sum((count.layers[kind] for kind in kinds), Count())}
    if stage.embedding:
        parts["embedding"] = count.embedding
    if stage.head:
        copied = model.tied_embeddings and not shared
        table = _padded_vocab(model, tp) * model.hidden if copied else count.output_head.sharded
        replicated = count.final_norm.replicated + count.output_head.replicated
        parts["head"] = Count(table, replicated)
    return parts


@remembered(_KEPT)
def _rank_parameters(
    model: Transformer, tp: int, ep: int, etp: int, *, pp: int, stages: tuple[Stage, ...]
) -> ParameterKinds:
    first = {stage.rank for stage in stages if stage.embedding}
    known: dict[tuple[object, ...], tuple[list[float], list[float]]] = {}
    dense: list[list[float]] = [[] for _ in range(pp)]
    experts: list[list[float]] = [[] for _ in range(pp)]
    kinds = model.layer_kinds
    for stage in stages:
        shared = stage.head and stage.rank in first
        layers = kinds[stage.first_layer : stage.first_layer + stage.layers]
        key = (layers, stage.embedding, stage.head, shared)
        if key not in known:
            counts = _stage_counts(model, tp, stage, shared=shared).values()
            known[key] = (
                [count.sharded / tp + count.replicated for count in counts],
                [count.experts_per_rank(ep=ep, etp=etp) for count in counts],
            )
        dense[stage.rank] += known[key][0]
        experts[stage.rank] += known[key][1]
    kinds_of_rank = ParameterKinds(
        *(np.array([*map(math.fsum, held)], float) for held in (dense, experts))
    )
    for column in kinds_of_rank:
        column.setflags(write=False)  # the cache hands out the same arrays again
    return kinds_of_rank
