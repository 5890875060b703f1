"""Checks of a scenario that serves: an instance's layout, formats, keys of training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mpsim.errors import Problem, nearest
from mpsim.hardware import accelerator, accelerator_names
from mpsim.scenario.checks.machine import absent_parts
from mpsim.scenario.servers import server_problems
from mpsim.scenario.settled import released

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_COMPUTE: Final = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "int8": "int8",
}
_TRAINING_KEYS: Final = (
    "dp cp etp zero shard offload offload_to offload_fraction order sequence_parallel"
    " layers_per_stage embedding_counts_as_layer loss_counts_as_layer"
).split()
_DRAWN: Final = ("jitter", "network_jitter", "experts", "links")


def check_job(scenario: Written) -> Iterator[Problem]:
    """Refuse a scenario that trains and serves."""
    if scenario.training is not None and scenario.serving is not None:
        key = "serving" if scenario.server is None else "server"
        yield Problem(f"got both training and {key}; needed one of them: leave the other out", key)


def check_server(scenario: Written) -> Iterator[Problem]:
    """Refuse options of a server that its engine does not have, or that are not simulated."""
    if scenario.server:
        preset, places = scenario.service.engine.preset, scenario.source.places
        yield from server_problems(scenario.server, preset, places=places)


def check_service_state(scenario: Written) -> Iterator[Problem]:
    """Refuse what services do not simulate of layers with a state for keys and values."""
    model, serving = scenario.transformer, scenario.service
    if model.state is None:
        return
    if not any(kind.mixer == "attention" for kind in model.kinds):
        message = (
            f"got {model.name} without attention, whose requests no cache limits; needed a hybrid:"
            " some layers with attention"
        )
        yield Problem(message, "model")
    tp = scenario.parallelism.tp // serving.attention_dp
    if tp and model.state.heads % tp:
        message = (
            f"got {tp}, which does not divide the {model.state.heads} heads of the state; needed a"
            " divisor"
        )
        yield Problem(message, "parallelism.tp")
    apart = {
        "serving.disaggregated": serving.disaggregated is not None,
        "serving.speculation": serving.speculation is not None,
        "serving.workload.shared_prefix": serving.workload.shared_prefix > 0,
    }
    for key, given in apart.items():
        if given:
            message = f"is not simulated for {model.name}, whose layers carry states; leave it out"
            yield Problem(message, key)


def check_service_vision(scenario: Written) -> Iterator[Problem]:
    """Refuse images, which requests of services do not have."""
    if scenario.transformer.vision is not None:
        message = (
            f"got {scenario.transformer.name} with a vision tower, which services do not simulate;"
            " leave model.vision out, and count tokens of images among the prompt's"
        )
        yield Problem(message, "model.vision")


def check_training_keys(scenario: Written) -> Iterator[Problem]:
    """Refuse degrees that only training knows."""
    p = scenario.parallelism
    for key in _TRAINING_KEYS:
        # dp may be null: left out
        if key in p.model_fields_set and (value := getattr(p, key)) is not None:
            mend = "it out, and give serving.replicas" if key == "dp" else "it out"
            known = "which only training knows; needed tp, pp and ep: leave"
            yield Problem(f"got {value!r}, {known} {mend}", f"parallelism.{key}")


def _layout(section: str) -> str:
    """The section with the degrees of instances whose other choices stand in a section."""
    return "parallelism" if section == "serving" else section


def check_service_parts(scenario: Written) -> Iterator[Problem]:
    """Refuse nodes that differ, which instances of a service are not told apart by."""
    for key in ("stages", "replicas"):
        if getattr(scenario.cluster, key) is not None:
            mend = "leave it out, or simulate a service of each kind"
            message = f"got nodes that differ, which is not simulated for services; {mend}"
            yield Problem(message, f"cluster.{key}")


def check_service_variation(scenario: Written) -> Iterator[Problem]:
    """Refuse variation that services do not have, and nodes and ranks that are not there."""
    variation, cluster = scenario.variation, scenario.hardware
    if variation is None:
        return
    for key in _DRAWN:
        if getattr(variation, key):
            message = "is not simulated for services (slow, speed and outages are); leave it out"
            yield Problem(message, f"variation.{key}")
    if variation.outages and scenario.service.disaggregated is not None:
        message = "got outages beside serving.disaggregated, simulated for one pool; leave one out"
        yield Problem(message, "variation.outages")
    yield from absent_parts(variation, cluster.nodes, cluster.accelerators)


def check_pools(scenario: Written) -> Iterator[Problem]:
    """Refuse a layout beside two pools', pools without room, caches that do not agree."""
    serving, pools = scenario.service, scenario.service.disaggregated
    if pools is None:
        return
    own = ("replicas", "attention_dp", "kv_blocks")
    for key in (
        *(f"parallelism.{key}" for key in scenario.parallelism.model_fields_set),
        *(f"serving.{key}" for key in own if key in serving.model_fields_set),
    ):
        message = "got a layout beside serving.disaggregated: pools have their own; leave it out"
        yield Problem(message, key)
    prefill, decode = (pool.accelerators for pool in scenario.pools.values())
    need, world = prefill + decode, scenario.world_size
    if need > world and max(prefill, decode) <= world:
        message = (
            f"got {prefill} accelerators to prefill and {decode} to decode, {need} of {world};"
            f" needed at most {world}: lower replicas or tp, or add nodes"
        )
        yield Problem(message, "serving.disaggregated")
    first, second = (pool.kv for pool in scenario.pools.values())
    if first != second:
        message = (
            f"got {second}, but prompts come with keys and values in {first}; needed the same in"
            " both pools"
        )
        yield Problem(message, "serving.disaggregated.decode.kv")


def check_pool_chips(scenario: Written) -> Iterator[Problem]:
    """Refuse unknown accelerators, prices of none, pools of two kinds on one node."""
    pools = scenario.service.disaggregated
    if pools is None:
        return
    for key, pool in scenario.pools.items():
        if pool.accelerator is not None and pool.accelerator not in accelerator_names():
            message = (
                f"unknown accelerator {pool.accelerator[:60]!r};"
                f" {nearest(pool.accelerator, accelerator_names())}"
            )
            yield Problem(message, f"{key}.accelerator")
        if pool.price_per_hour is not None and pool.accelerator is None:
            message = (
                f"is the price of {key}.accelerator, which is left out; give"
                " cluster.price_per_hour, or the accelerator"
            )
            yield Problem(message, f"{key}.price_per_hour")
    first = next(iter(scenario.pools.values())).accelerators
    each = scenario.hardware.node.accelerators
    if pools.prefill.accelerator != pools.decode.accelerator and first % each:
        message = (
            f"got {first} accelerators to prefill on nodes of {each}, and others to decode; needed"
            f" whole nodes: a multiple of {each}"
        )
        yield Problem(message, "serving.disaggregated.prefill")


def check_autoscale(scenario: Written) -> Iterator[Problem]:
    """Refuse autoscaling of pools and beside outages, and a floor above the instances there are."""
    serving = scenario.service
    if (scaling := serving.autoscale) is None:
        return
    if serving.disaggregated is not None:
        yield Problem("is simulated for one pool; leave it out", "serving.autoscale")
    elif scenario.variation is not None and scenario.variation.outages:
        message = "got outages with serving.autoscale; leave one of them out"
        yield Problem(message, "variation.outages")
    (pool, *_) = scenario.pools.values()
    most = serving.replicas or max(1, scenario.world_size // (pool.tp * pool.pp))
    if scaling.least > most:
        message = f"got {scaling.least} instances at least, of {most}; needed at most as many"
        yield Problem(message, "serving.autoscale.least")


def check_instances(scenario: Written) -> Iterator[Problem]:
    """Refuse instances that the cluster has no room for."""
    world, layers = scenario.world_size, scenario.transformer.layers
    for section, pool in scenario.pools.items():
        if pool.pp > layers:
            message = f"got {pool.pp} stages for {layers} layers; needed at most as many"
            yield Problem(message, f"{_layout(section)}.pp")
        if pool.accelerators > world:
            most = world // (pool.tp * pool.pp)
            what = f"set replicas to at most {most}" if most else "lower tp or pp, or add nodes"
            key = f"{section}.replicas" if most else f"{_layout(section)}.tp"
            message = (
                f"got {pool.replicas} replicas of tp {pool.tp} x pp {pool.pp} on {world}"
                f" accelerators; {what}"
            )
            yield Problem(message, key)
        if pool.tp % pool.attention_dp:
            message = f"got {pool.attention_dp}, not a divisor of tp {pool.tp}; needed one"
            yield Problem(message, f"{section}.attention_dp")
        if pool.kv_blocks is not None and pool.kv_blocks < pool.pp:
            message = f"got {pool.kv_blocks} blocks for {pool.pp} stages; needed at least one each"
            yield Problem(message, f"{section}.kv_blocks")


def check_service_positions(scenario: Written) -> Iterator[Problem]:
    """Refuse requests that are longer than the table of learned positions."""
    model, load = scenario.transformer, scenario.service.workload
    length = load.prompt.tokens + load.output.tokens
    is_learned = model.positions == "learned" and model.max_positions > 0
    if is_learned and load.trace is None and length > model.max_positions:
        message = (
            f"got {length} tokens of prompt and output, but {model.name} has learned positions for"
            f" {model.max_positions}; set model.max_positions to {length}, or shorten the requests"
        )
        yield Problem(message, "serving.workload")


def check_service_heads(scenario: Written) -> Iterator[Problem]:
    """Refuse tensor parallelism that does not divide the heads."""
    model, divides = scenario.transformer, True
    for section, pool in scenario.pools.items():
        inside = max(1, pool.tp // pool.attention_dp)
        needed = ""
        if model.heads % inside:
            needed = f", which does not divide {model.heads} heads; needed a divisor"
        elif model.mla is None and model.kv_heads % inside and inside % model.kv_heads:
            needed = (
                f" with {model.kv_heads} key-value heads; needed a divisor or a multiple of them"
            )
        if needed:
            divides = False
            yield Problem(f"got {pool.tp}{needed}", f"{_layout(section)}.tp")
    if model.encoder_layers and divides:
        message = "got an encoder and a decoder; needed one stack: serving them is not simulated"
        yield Problem(message, "model")


def check_service_experts(scenario: Written) -> Iterator[Problem]:
    """Refuse expert parallelism that does not divide experts or ranks."""
    moe = scenario.transformer.moe
    for section, pool in scenario.pools.items():
        key = f"{_layout(section)}.ep"
        if pool.ep == 1:
            continue
        if moe is None:
            yield Problem(f"got {pool.ep} for a dense model; needed 1", key)
            continue
        if moe.experts % pool.ep:
            message = (
                f"got {pool.ep}, which does not divide {moe.experts} experts; needed a divisor"
            )
            yield Problem(message, key)
        if pool.tp % pool.ep:
            message = (
                f"got {pool.ep}, not a divisor of the {pool.tp} ranks of an instance's stage;"
                " needed one"
            )
            yield Problem(message, key)


def check_service_precision(scenario: Written) -> Iterator[Problem]:
    """Refuse weights in a format that the accelerator cannot multiply."""
    own = released(scenario.transformer.name)
    for section, pool in scenario.pools.items():
        chip = accelerator(pool.accelerator) if pool.accelerator else scenario.hardware.accelerator
        has = [name for name, compute in _COMPUTE.items() if compute in chip.peak_flops]
        usable = ", ".join([*has, "w4a16 or mxfp4 (weights alone are narrow)"])
        need = _COMPUTE.get(pool.weights or "")
        if need is not None and need not in chip.peak_flops:
            got = f"{pool.weights}{', as released' if pool.weights == own else ''}"
            message = f"got {got}, but {chip.name} has no {need}; needed one of {usable}"
            yield Problem(message, f"{section}.weights")
