"""Checks of a scenario that serves: an instance's layout, formats, keys of training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mpsim.errors import Problem, nearest
from mpsim.hardware import SCALED_FORMATS, accelerator, accelerator_names
from mpsim.scenario.checks.common import mistake
from mpsim.scenario.checks.step import absent_parts
from mpsim.scenario.servers import server_problems
from mpsim.scenario.settled import released

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_MULTIPLIED: Final = ("fp8_block", "nvfp4", "bf16", "fp16", "fp8", "int8")
_TRAINING_KEYS: Final = (
    "dp cp etp zero shard offload offload_to offload_fraction order sequence_parallel"
    " layers_per_stage embedding_counts_as_layer loss_counts_as_layer"
).split()
_DRAWN: Final = ("jitter", "network_jitter", "experts", "links")


def check_job(scenario: Written) -> Iterator[Problem]:
    """Refuse a scenario that trains and serves."""
    if scenario.training is not None and scenario.serving is not None:
        yield mistake("two_jobs", scenario, job="serving" if scenario.server is None else "server")


def check_server(scenario: Written) -> Iterator[Problem]:
    """Refuse options of a server that its engine does not have, or that are not simulated."""
    if scenario.server:
        preset, places = scenario.service.engine.preset, scenario.source.places
        yield from server_problems(scenario.server, preset, places=places)


def check_service_model(scenario: Written) -> Iterator[Problem]:
    """Refuse images, which requests do not have, and what is not simulated of layers with a state
    for keys and values.
    """
    model, serving = scenario.transformer, scenario.service
    if model.vision is not None:
        yield mistake("served_tower", scenario)
    if model.state is None:
        return
    if not any(kind.mixer == "attention" for kind in model.kinds):
        yield mistake("no_attention", scenario)
    tp = scenario.parallelism.tp // serving.attention_dp
    if tp and model.state.heads % tp:
        yield mistake("state_heads", scenario, tp=tp)
    apart = {
        "serving.disaggregated": serving.disaggregated is not None,
        "serving.speculation": serving.speculation is not None,
        "serving.workload.shared_prefix": serving.workload.shared_prefix > 0,
    }
    for key, given in apart.items():
        if given:
            yield mistake("state_service", scenario, apart=key)


def check_training_keys(scenario: Written) -> Iterator[Problem]:
    """Refuse degrees that only training knows."""
    p = scenario.parallelism
    for name in _TRAINING_KEYS:
        # dp may be null: left out
        if name in p.model_fields_set and (value := getattr(p, name)) is not None:
            mend = "it out, and give serving.replicas" if name == "dp" else "it out"
            yield mistake("training_key", scenario, name=name, value=value, mend=mend)


def _layout(section: str) -> str:
    """The section with the degrees of instances whose other choices stand in a section."""
    return "parallelism" if section == "serving" else section


def check_service_parts(scenario: Written) -> Iterator[Problem]:
    """Refuse nodes that differ, which instances of a service are not told apart by."""
    for part in ("stages", "replicas"):
        if getattr(scenario.cluster, part) is not None:
            yield mistake("served_parts", scenario, part=part)


def check_service_variation(scenario: Written) -> Iterator[Problem]:
    """Refuse variation that services do not have, and nodes and ranks that are not there."""
    variation, cluster = scenario.variation, scenario.hardware
    if variation is None:
        return
    for name in _DRAWN:
        if getattr(variation, name):
            yield mistake("served_variation", scenario, name=name)
    if variation.outages and scenario.service.disaggregated is not None:
        yield mistake("pool_outages", scenario)
    yield from absent_parts(variation, cluster.nodes, cluster.accelerators)


def check_pools(scenario: Written) -> Iterator[Problem]:
    """Refuse a layout beside two pools', pools without room, caches that do not agree."""
    serving = scenario.service
    if serving.disaggregated is None:
        return
    own = ("replicas", "attention_dp", "kv_blocks")
    for beside in (
        *(f"parallelism.{key}" for key in scenario.parallelism.model_fields_set),
        *(f"serving.{key}" for key in own if key in serving.model_fields_set),
    ):
        yield mistake("pool_layout", scenario, beside=beside)
    prefill, decode = (pool.accelerators for pool in scenario.pools.values())
    need, world = prefill + decode, scenario.world_size
    if need > world and max(prefill, decode) <= world:
        yield mistake("pool_room", scenario, prefill=prefill, decode=decode, need=need)
    first, second = (pool.kv for pool in scenario.pools.values())
    if first != second:
        yield mistake("pool_caches", scenario, first=first, second=second)


def check_pool_chips(scenario: Written) -> Iterator[Problem]:
    """Refuse unknown accelerators, prices of none, pools of two kinds on one node."""
    pools, known = scenario.service.disaggregated, accelerator_names()
    if pools is None:
        return
    for key, pool in scenario.pools.items():
        if (chip := pool.accelerator) is not None and chip not in known:
            chip, near = chip[:60], nearest(chip, known)
            yield mistake("pool_chip", scenario, pool=key, chip=chip, near=near)
        if pool.price_per_hour is not None and chip is None:
            yield mistake("pool_price", scenario, pool=key)
    first = next(iter(scenario.pools.values())).accelerators
    each = scenario.hardware.node.accelerators
    if pools.prefill.accelerator != pools.decode.accelerator and first % each:
        yield mistake("pool_nodes", scenario, first=first, each=each)


def check_autoscale(scenario: Written) -> Iterator[Problem]:
    """Refuse autoscaling of pools and beside outages, and a floor above the instances there are."""
    serving = scenario.service
    if (scaling := serving.autoscale) is None:
        return
    if serving.disaggregated is not None:
        yield mistake("scaled_pools", scenario)
    elif scenario.variation is not None and scenario.variation.outages:
        yield mistake("scaled_outages", scenario)
    (pool, *_) = scenario.pools.values()
    most = serving.replicas or max(1, scenario.world_size // (pool.tp * pool.pp))
    if scaling.least > most:
        yield mistake("scaled_least", scenario, least=scaling.least, most=most)


def check_instances(scenario: Written) -> Iterator[Problem]:
    """Refuse instances that the cluster has no room for."""
    world, layers = scenario.world_size, scenario.transformer.layers
    for section, pool in scenario.pools.items():
        layout = _layout(section)
        if pool.pp > layers:
            yield mistake("instance_stages", scenario, layout=layout, pool=pool)
        if pool.accelerators > world:
            most = world // (pool.tp * pool.pp)
            mend = f"set replicas to at most {most}" if most else "lower tp or pp, or add nodes"
            blamed = f"{section}.replicas" if most else f"{layout}.tp"
            yield mistake("instances", scenario, blamed=blamed, pool=pool, mend=mend)
        if pool.tp % pool.attention_dp:
            yield mistake("attention_dp", scenario, section=section, pool=pool)
        if pool.kv_blocks is not None and pool.kv_blocks < pool.pp:
            yield mistake("kv_blocks", scenario, section=section, pool=pool)


def check_service_lengths(scenario: Written) -> Iterator[Problem]:
    """Refuse requests that are longer than the table of learned positions, and a shared prefix that
    no prompt is longer than, which nothing would share.
    """
    model, load = scenario.transformer, scenario.service.workload
    length = load.prompt.tokens + load.output.tokens
    if load.trace is not None:
        return
    if model.positions == "learned" and 0 < model.max_positions < length:
        yield mistake("request_positions", scenario, length=length)
    if load.prompt.kind != "lognormal" and load.shared_prefix >= load.prompt.tokens:
        yield mistake("long_prefix", scenario)


def check_service_heads(scenario: Written) -> Iterator[Problem]:
    """Refuse tensor parallelism that does not divide the heads."""
    model, wrong = scenario.transformer, []
    for section, pool in scenario.pools.items():
        inside = max(1, pool.tp // pool.attention_dp)
        figures = {"layout": _layout(section), "pool": pool}
        if model.heads % inside:
            wrong.append(mistake("served_heads", scenario, **figures))
        elif model.mla is None and model.kv_heads % inside and inside % model.kv_heads:
            wrong.append(mistake("served_kv_heads", scenario, **figures))
    yield from wrong
    if model.encoder_layers and not wrong:
        yield mistake("served_stacks", scenario)


def check_service_experts(scenario: Written) -> Iterator[Problem]:
    """Refuse expert parallelism that does not divide experts or ranks."""
    moe = scenario.transformer.moe
    for section, pool in scenario.pools.items():
        figures = {"layout": _layout(section), "pool": pool}
        if pool.ep == 1:
            continue
        if moe is None:
            yield mistake("served_dense", scenario, **figures)
            continue
        fields = {**scenario.service.engine.overrides, **(pool.engine or {})}
        if moe.experts % pool.ep and not fields.get("eplb"):  # the plan counts the copies
            yield mistake("served_experts", scenario, **figures)
        if pool.tp % pool.ep:
            yield mistake("served_expert_ranks", scenario, **figures)


def check_service_precision(scenario: Written) -> Iterator[Problem]:
    """Refuse weights in a format that the accelerator cannot multiply."""
    own = released(scenario.transformer.name)
    for section, pool in scenario.pools.items():
        chip = accelerator(pool.accelerator) if pool.accelerator else scenario.hardware.accelerator
        has = [name for name in _MULTIPLIED if chip.multiplies(name)]
        if (need := str(pool.weights)) in _MULTIPLIED and need not in has:
            element = SCALED_FORMATS.get(need, need)
            need = need if element in chip.peak_flops else element
            got = f"{pool.weights}{', as released' if pool.weights == own else ''}"
            usable = ", ".join([*has, "w4a16 or mxfp4 (weights alone are narrow)"])
            figures = {"section": section, "got": got, "chip": chip.name, "need": need}
            yield mistake("weights", scenario, usable=usable, **figures)
