"""Checks of machine and step: degrees fit the cluster, differing parts are there; batch and
precision, schedule and stages, how it is simulated.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpsim.errors import HardwareError, Problem, ScenarioError
from mpsim.scenario.balance import balanced_stages, stage_layers
from mpsim.scenario.checks.common import mistake, multiples, multiples_near, nearest_two
from mpsim.scenario.sections import Variation, factors
from mpsim.schedule import schedule
from mpsim.shipped import read_shipped

if TYPE_CHECKING:
    from mpsim.scenario.written import Written


def check_world(scenario: Written) -> Iterator[Problem]:
    """Degrees multiply to the number of accelerators."""
    p, cluster = scenario.parallelism, scenario.hardware
    each, product = p.replica_ranks, factors(p.dividing)
    world, per_node = cluster.accelerators, cluster.node.accelerators
    have = f"the cluster has {cluster.nodes} nodes x {per_node} = {world} accelerators"
    figures = {"product": product, "have": have}
    if p.dp is None and world % each:
        whole = multiples(world, math.lcm(each, per_node))
        nodes = " or ".join(str(size // per_node) for size in whole)
        # the largest degree, the pipeline's among equals
        blamed = max(p.dividing, key=lambda axis: (p.dividing[axis], axis == "pp"))
        yield mistake("world", scenario, blamed=blamed, each=each, nodes=nodes, **figures)
    if p.dp is None or (need := each * p.dp) == world:
        return
    mends = []
    if world % each == 0:
        mends.append(f"set dp to {world // each} (or leave it out)")
    if need % per_node == 0:
        mends.append(f"set cluster.nodes to {need // per_node}")
    mend = ", or ".join(mends) or "change a degree"
    yield mistake("replicas", scenario, need=need, mend=mend, **figures)


def check_parts(scenario: Written) -> Iterator[Problem]:
    """Parts of a mixed cluster cover every pipeline rank or every replica, once."""
    choice = scenario.cluster
    if choice.stages is not None and choice.replicas is not None:
        yield mistake("mixed_twice", scenario)
        return
    needs = (("stages", "pp", scenario.parallelism.pp), ("replicas", "dp", scenario.dp))
    for key, axis, degree in needs:
        parts = getattr(choice, key)
        covered = sum(part.count for part in parts or ())
        if parts is not None and covered != degree:
            yield mistake("parts", scenario, part=key, covered=covered, axis=axis, degree=degree)


def check_attention(scenario: Written) -> Iterator[Problem]:
    """Times of a narrow attention kernel are known on every accelerator, or were measured there."""
    stack, table = scenario.software, read_shipped("mpsim.framework.data", "attention.yaml")
    known = (
        table["timed"].get(stack.kernels.attention_kernel) if stack.lowering.fused_attention else ()
    )
    for chip in dict.fromkeys(cluster.accelerator for cluster in scenario.clusters if known):
        if chip.family not in known and not chip.calibration:
            yield mistake("attention_kernel", scenario, chip=chip, known=", ".join(known))


def check_replica_batches(scenario: Written) -> Iterator[Problem]:
    """An uneven batch has whole microbatches on every replica and is all of the global batch."""
    training = scenario.training_step
    batches, micro = training.batch_per_replica, training.micro_batch
    if batches is None:
        return
    if len(batches) != scenario.dp:
        yield mistake("batches", scenario, count=len(batches))
    if (total := sum(batches)) != training.global_batch:
        yield mistake("batch_sum", scenario, total=total)
    for number, batch in enumerate(batches):
        if batch % micro:
            mend = max(1, batch // micro) * micro
            yield mistake("replica_batch", scenario, number=number, batch=batch, mend=mend)


def check_mixture(scenario: Written) -> Iterator[Problem]:
    """A mixed cluster asks for nothing that cannot be simulated on it."""
    if not scenario.is_mixed:
        return
    if scenario.parallelism.offload != "none":
        yield mistake("mixed_offload", scenario)
    if scenario.has_uneven_replicas and scenario.parallelism.ep > 1:
        yield mistake("mixed_experts", scenario)
    if scenario.has_uneven_replicas and scenario.simulation.network == "flow":
        yield mistake("mixed_flow", scenario)


def absent_parts(variation: Variation, nodes: int, accelerators: int) -> list[Problem]:
    """Nodes and ranks (accelerators) that a variation names and the cluster does not have."""
    named = [
        *((f"slow.{i}", part.node) for i, part in enumerate(variation.slow)),
        *((f"links.{i}", link.node) for i, link in enumerate(variation.links)),
        *((f"outages.{i}", outage.node) for i, outage in enumerate(variation.outages)),
    ]
    asked = [(f"{key}.node", "node", node, nodes) for key, node in named if node is not None]
    asked += [
        (f"slow.{i}.ranks", "rank", max(part.ranks), accelerators)
        for i, part in enumerate(variation.slow)
        if part.ranks
    ]
    return [
        Problem(
            f"got {kind} {index}, but the cluster has {count}; needed 0 to {count - 1}",
            f"variation.{key}",
        )
        for key, kind, index, count in asked
        if index >= count
    ]


def check_variation(scenario: Written) -> Iterator[Problem]:
    """A training step has what it varies."""
    variation, cluster = scenario.variation, scenario.hardware
    if variation is None:
        return
    yield from absent_parts(variation, cluster.nodes, cluster.accelerators)
    if variation.experts and scenario.transformer.moe is None:
        yield mistake("varied_experts", scenario)
    if scenario.has_uneven_replicas:
        yield mistake("varied_replicas", scenario)
    if variation.outages:  # a training has checkpoints to go back to
        yield mistake("outages", scenario)


MAX_ACTIONS: Final = 20_000_000  # forwards and backwards of one pipeline: what arrays here can hold


def check_batch(scenario: Written) -> Iterator[Problem]:
    """The global batch is a whole number of microbatches on every replica."""
    training, p, dp = scenario.training_step, scenario.parallelism, scenario.dp
    each = dp * training.micro_batch
    if dp < 1 or training.global_batch % each == 0 or training.batch_per_replica is not None:
        return
    if p.dp is None and scenario.world_size % p.replica_ranks:
        return  # how many replicas there are is not known yet
    yield mistake("batch", scenario, each=each, near=multiples_near(training.global_batch, each))


def check_precision(scenario: Written) -> Iterator[Problem]:
    """Every accelerator computes in the precision of the training."""
    try:
        for cluster in scenario.clusters:
            cluster.accelerator.peak(scenario.training_step.precision)
    except HardwareError as error:
        yield Problem(str(error), "training.precision")


def check_network(scenario: Written) -> Iterator[Problem]:
    """The engine can do what the network asks of it."""
    simulation = scenario.simulation
    asks = ["network: flow"] * (simulation.network == "flow")
    asks += ["interference"] * simulation.interference
    if asks and simulation.engine == "replay":
        yield mistake("replay", scenario, asks=" and ".join(asks))


def check_virtual_stages(scenario: Written) -> Iterator[Problem]:
    """The schedule has as many virtual stages as it can use."""
    name, given = scenario.schedule.name, scenario.schedule.virtual_stages
    if name is None:
        return
    facts = schedule(name)
    usable = facts.interleaves or given == facts.chunks
    if usable if given is not None else facts.chunks is not None:
        return
    if given is None:
        yield mistake("missing_chunks", scenario)
    elif facts.chunks == 1:
        yield mistake("one_chunk", scenario)
    else:
        yield mistake("own_chunks", scenario, chunks=facts.chunks)


def check_pipeline(scenario: Written) -> Iterator[Problem]:
    """The framework has a pipeline where one is asked for, and chunks where its schedule has."""
    pp, pipeline = scenario.parallelism.pp, scenario.software.pipeline
    if pp > 1 and not pipeline.has_pipeline:
        yield mistake("pipeline", scenario)
    elif pp > 1 and scenario.virtual_stages > 1 and not pipeline.has_chunks:
        yield mistake("chunks", scenario)


def check_groups(scenario: Written) -> Iterator[Problem]:
    """Microbatches make whole groups where the framework interleaves no others."""
    pp, software, training = scenario.parallelism.pp, scenario.software, scenario.training_step
    name = scenario.schedule.name
    if scenario.dp < 1 or scenario.virtual_stages < 2 or name is None or not schedule(name).groups:
        return
    counts = map(scenario.microbatches_of, range(len(training.batch_per_replica or (0,))))
    if software.pipeline.whole_groups and (left := [count for count in counts if count % pp]):
        near = multiples_near(training.global_batch, scenario.dp * training.micro_batch * pp)
        yield mistake("groups", scenario, left=left[0], near=near)


def check_schedule_file(scenario: Written) -> Iterator[Problem]:
    """The file of a schedule exists."""
    file = scenario.schedule.file
    if file is not None and not Path(file).is_file():
        yield mistake("schedule_file", scenario)


def check_stages(scenario: Written) -> Iterator[Problem]:
    """Layers can be divided among the (virtual) pipeline stages."""
    p, layers, chunks = scenario.parallelism, scenario.transformer.layers, scenario.virtual_stages
    stages = p.pp * chunks
    spelled = f"pp {p.pp} x virtual_stages {chunks} = {stages} stages"
    if p.layers_per_stage == "auto":
        if stage_layers(scenario) is None:
            yield mistake("auto_stages", scenario, spelled=spelled)
        return
    if p.layers_per_stage is not None:
        if wrong := "; ".join(_wrong_layers(p.layers_per_stage, stages, spelled, layers)):
            yield mistake("stage_list", scenario, wrong=wrong)
        return
    counted = p.embedding_counts_as_layer + p.loss_counts_as_layer
    each, left = divmod(layers + counted, stages)
    if not left and each >= 1 and (stages > 1 or each > counted):
        return
    even = [n for n in range(1, layers + 1) if layers % (n * chunks) == 0]
    placed = [n for n in even if scenario.world_size % (n * p.tp * p.cp) == 0]
    yield mistake(
        "stages",
        scenario,
        extra=f" and {counted} counted as layers" if counted else "",
        spelled=spelled,
        sizes=nearest_two(placed or even, p.pp, "a divisor"),
        balanced=_balanced(scenario),
    )


def _balanced(scenario: Written) -> str:
    """The mend that leaves the split to mpsim."""
    balanced = None
    with contextlib.suppress(ScenarioError):  # of an unknown framework, which another check names
        balanced = balanced_stages(scenario)
    if balanced is None:
        return f"{scenario.framework.preset} runs no uneven split that holds them"
    listed = ", ".join(map(str, balanced))
    return f"or let mpsim balance them: layers_per_stage: auto, which is [{listed}]"


def _wrong_layers(given: tuple[int, ...], stages: int, spelled: str, layers: int) -> Iterator[str]:
    if len(given) != stages:
        yield f"got {len(given)} entries, needed one for each of {spelled}"
    if sum(given) != layers:
        yield f"got {sum(given)} layers in all, needed the model's {layers}"
    empty = [str(i) for i, count in enumerate(given) if not count and 0 < i < len(given) - 1]
    if empty and len(given) == stages and sum(given) == layers:
        yield f"got no layer for stage {', '.join(empty)}, which has neither embedding nor head"


def check_size(scenario: Written) -> Iterator[Problem]:
    """The step has no more actions than can be held."""
    if scenario.dp < 1:
        return
    stages = scenario.parallelism.pp * scenario.virtual_stages
    if 2 * scenario.microbatches * stages > MAX_ACTIONS:
        yield mistake("actions", scenario, stages=stages, most=MAX_ACTIONS // (2 * stages))
