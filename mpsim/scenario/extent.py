"""Extent: how much simulating a scenario costs, estimated before anything is built.

Only sizes that a slip of the keyboard makes huge are counted: microbatches, kernels where each is a
row, experts launched one by one, drawn steps and requests. Estimates are good within a factor of
two (``mpsim/scenario/data/extent.yaml``): they tell a second from an hour.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mpsim import structs
from mpsim.limits import MEMORY_LIMIT, TIME_LIMIT, refuse_large
from mpsim.scenario.fields import Fields
from mpsim.schedule import schedule
from mpsim.shipped import read_shipped

if TYPE_CHECKING:
    from mpsim.scenario.scenario import Scenario
    from mpsim.scenario.serving import Workload

_USUAL = 1000  # requests where nobody says how many


@structs.dataclass(frozen=True, slots=True)
class Extent:
    """Estimated cost of simulating one scenario."""

    rows: float  # operations that the engine follows, or requests of a service
    memory_bytes: float  # memory_bytes, seconds: [B], [s]
    seconds: float
    what: str  # the sizes behind it in words
    smaller: tuple[str, ...]  # changes that make it smaller, the most effective first


def extent_of(scenario: Scenario, requests: int = 0) -> Extent:
    """Estimate the cost of simulating a scenario that the checks found sound."""
    return _service(scenario, requests) if scenario.serves else _step(scenario)


def refuse_large_scenario(scenario: Scenario, requests: int = 0) -> None:
    """Refuse a scenario that costs more than the limits, unless it is meant: a TooLargeError."""
    extent = extent_of(scenario, requests)
    refuse_large(
        f"{scenario.name or 'scenario'}: {extent.what}",
        memory_bytes=extent.memory_bytes,
        seconds=extent.seconds,
        smaller=extent.smaller,
    )


def _constants() -> Fields:
    constants: Fields = read_shipped("mpsim.scenario.data", "extent.yaml")
    return constants


def _step(scenario: Scenario) -> Extent:
    constants, simulation = _constants(), scenario.simulation
    layers = scenario.transformer.layers
    stages = scenario.parallelism.pp * scenario.virtual_stages
    kernels = _kernels_a_layer(scenario)
    batches = scenario.training_step.batch_per_replica or (0,)
    microbatches = scenario.microbatches * len(set(batches))
    name = scenario.schedule.name
    order = schedule(name) if name is not None else None
    actions = microbatches * stages * (3 if order and order.splits else 2)
    rows = actions * _segments(scenario) + 2 * microbatches * (stages - 1)
    if scenario.replicas > 1:
        # a first forward and a last backward fall apart where parameters and gradients travel
        rows += 4 * layers
    fine = microbatches * layers * kernels + 2 * microbatches * (stages - 1)
    if simulation.interference:
        runs, engine = fine, "interference"
    elif simulation.network == "flow":
        runs, engine = (fine if _leaves_domain(scenario) else rows), "flow"
    else:
        runs, engine = rows, "simpy" if simulation.engine == "simpy" else "replay"
    row, inside = constants["rows"][engine], constants["kernel"]
    # templates are made once: a layer's forward and backward, twice where gradients leave
    tiled = 2.0 * kernels * -(-layers // stages)
    memory = runs * row["memory"] + tiled * inside["memory"]
    seconds = runs * row["time"] + tiled * inside["time"]
    if order and order.is_timed:  # it is searched for the times of its actions
        seconds += actions * constants["order"]
    ways = {
        "interference": "simulation.interference: false",
        "flow": "simulation.network: analytic",
    }
    smaller = [ways[engine]] if engine in ways else []
    if tiled * inside["memory"] > runs * row["memory"]:
        smaller.insert(0, "framework.grouped_gemm: true, fewer model.moe.experts")
    what = f"{microbatches:,} microbatches on {stages} stages, about {_count(runs)} operations"
    variation, copies = scenario.variation, _copies(scenario)
    drawn = variation.samples if variation is not None and variation.is_random else 1
    apart = copies * scenario.parallelism.pp
    if variation is not None and apart**2 * constants["pair"] > MEMORY_LIMIT / 2:
        memory += apart**2 * constants["pair"]
        what += f", who waits for whom among {apart:,} ranks"
        smaller.insert(0, "variation: name slow ranks and links, or fewer replicas")
    if drawn > 1:
        each = constants["sample"] if engine == "replay" else row["time"]
        memory += runs * (copies - 1) * row["memory"]
        seconds += drawn * copies * runs * each
        what += f", drawn {drawn:,} times on {copies} replicas of their own"
        most = drawn * min(1.0, TIME_LIMIT / seconds)
        smaller.insert(0, f"variation.samples: at most about {_rounded(most):,}")
    if tiled > runs:
        what += f", {_count(tiled)} kernels in a stage"
    elif drawn == 1:
        most = scenario.training_step.global_batch * min(
            MEMORY_LIMIT / memory, TIME_LIMIT / seconds
        )
        smaller.append(f"training.global_batch: at most about {_rounded(most):,}")
    return Extent(runs, memory, seconds, what, tuple(smaller))


def _kernels_a_layer(scenario: Scenario) -> float:
    """Kernels of a layer, forward and backward."""
    constants, model = _constants(), scenario.transformer
    kernels = float(constants["kernels_a_layer"])
    if scenario.training_step.recompute != "none":
        kernels += constants["kernels_recomputed"]
    if model.moe is not None:
        kernels += constants["kernels_routed"]
        if not scenario.software.experts.grouped_gemm:
            mine = -(-model.moe.experts // scenario.parallelism.ep)
            kernels += constants["products_an_expert"] * mine
    return kernels


def _segments(scenario: Scenario) -> float:
    """Rows of an action: one, or one a unit of sharded parameters with its gather and reduction."""
    data, parallelism = scenario.software.data, scenario.parallelism
    stages = parallelism.pp * scenario.virtual_stages
    keeps = parallelism.pp > 1 and data.pipeline_unsharded
    if parallelism.zero < 3 or keeps or scenario.replicas == 1:
        return 1.0
    units = scenario.transformer.layers / stages / max(1, data.unit_layers) + 2
    return 2.5 * units


def _leaves_domain(scenario: Scenario) -> bool:
    """Whether collectives in layers may leave a scale-up domain: each kernel is a row."""
    parallelism, cluster = scenario.parallelism, scenario.hardware
    inside = parallelism.tp * parallelism.cp * parallelism.ep
    return inside > cluster.domain_size or parallelism.order != "tp-cp-ep-dp-pp"


def _copies(scenario: Scenario) -> int:
    """Replicas that are followed apart."""
    variation = scenario.variation
    if variation is None:
        return 1
    if any((variation.speed, variation.jitter, variation.network_jitter, variation.experts)):
        return scenario.dp
    return min(scenario.dp, 1 + len(variation.slow) + len(variation.links))


def _service(scenario: Scenario, requests: int) -> Extent:
    constants, load = _constants()["request"], scenario.service.workload
    expected = requests or expected_requests(load) or _USUAL
    long = is_long(load) and scenario.service.disaggregated is None
    kept = 0.2 * constants["kept"] if long else math.inf
    batches, look = _batches(scenario), constants[scenario.service.routing]
    each = constants["time"] + look * batches
    most = min(MEMORY_LIMIT / constants["memory"], TIME_LIMIT / each)
    smaller = f"serving.workload.requests: at most about {_rounded(most):,}"
    if load.duration is not None:
        smaller = f"serving.workload.duration: for about {_rounded(most):,} requests"
    return Extent(
        rows=float(expected),
        memory_bytes=min(expected, kept) * constants["memory"],
        seconds=expected * each,
        what=f"{expected:,} requests" + (f" routed to {batches:,} batches" if look else ""),
        smaller=(smaller,),
    )


def expected_requests(load: Workload) -> int:
    """Requests that a workload has, before they are drawn: of a trace nobody knows."""
    if load.trace is not None:
        return 0
    if load.duration is not None:
        return int((load.rate or 0.0) * load.duration)
    return load.requests or (10 * load.concurrency if load.concurrency else _USUAL)


def is_long(load: Workload) -> bool:
    """Whether a stream has so many requests that it is drawn page by page and none is kept."""
    follows = load.turns > 1 or load.think_time > 0.0  # requests of sessions are all kept
    return not follows and expected_requests(load) >= int(_constants()["request"]["kept"])


def _batches(scenario: Scenario) -> int:
    """Batches that a request is routed to one of: one a pipeline stage of every instance."""
    serving, p = scenario.service, scenario.parallelism
    if serving.disaggregated is not None:
        pools = serving.disaggregated.prefill, serving.disaggregated.decode
        return sum(pool.replicas * pool.pp for pool in pools)
    return (serving.replicas or max(1, scenario.world_size // (p.tp * p.pp))) * p.pp


def _rounded(number: float) -> int:
    """A number of one digit and zeros, no larger and at least 1."""
    if number < 1:
        return 1
    unit = int(10 ** math.floor(math.log10(number)))
    return math.floor(number / unit) * unit


def _count(number: float) -> str:
    """A number as people say it."""
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if number >= unit:
            return f"{number / unit:.2g}{name}"
    return f"{number:,.0f}"
