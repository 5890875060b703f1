"""Adaptation: what a row asks for that its framework's preset lacks, exchanged for the nearest that it has, each told to the reader."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

from mpsim.errors import CalibrationError, HardwareError, ScenarioError
from mpsim.formats import Assumed
from mpsim.framework import (
    ContextExchange,
    Framework,
    SelectiveRecompute,
    TensorOverlap,
    framework,
)
from mpsim.hardware import accelerator
from mpsim.schedule import schedule

__all__ = ["adapted", "hidden_experts"]

Sections = dict[str, Any]
_CUT = ("decomposed", "micro-pipeline")  # products cut in chunks of tokens
_INSTEAD = {"bf16": ("fp16",), "fp16": ("bf16",), "nvfp4": ("mxfp8", "bf16"), "tf32": ("fp32",)}
_INSTEAD |= dict.fromkeys(("fp8", "mxfp8", "fp8_block"), ("bf16", "fp16"))
_WIDEST = {"flash1": 128}  # FlashAttention 0.2 to 1.0 (README: head dimensions up to 128)
_NEAR = 0.1  # a batch rounded by more is another run
_HIDING = "microbatch"  # overlap of experts that needs a forward beside a backward


def adapted(scenario: Sections) -> tuple[Sections, tuple[Assumed, ...]]:
    """A scenario that can be simulated, as near to the given one as there is.

    Parameters
    ----------
    scenario : dict
        As a file would hold it; not changed.

    Returns
    -------
    dict
        With all that no preset or schedule here supports exchanged.
    tuple of Assumed
        Each exchange and its reason.

    Raises
    ------
    CalibrationError
        If its replicas do not share out its batch, nor one that is near.
    """
    nearest = copy.deepcopy(scenario)
    exchanged = [step(nearest) for step in _STEPS]
    return nearest, tuple(exchange for exchange in exchanged if exchange is not None)


def _software(scenario: Sections) -> Framework:
    choice = scenario["framework"]
    rest = {name: value for name, value in choice.items() if name != "preset"}
    return framework(choice["preset"], rest)


def _compiler(scenario: Sections) -> Assumed | None:
    """Nothing is switched that a stack does not compile."""
    choice = scenario["framework"]
    if "compile" not in choice:
        return None
    try:
        _software(scenario)
    except ScenarioError:
        del choice["compile"]
    return None


def _per_op(scenario: Sections) -> Assumed | None:
    """Products are kept one by one in layers with names for them: not those of experts or latent attention, or beside scores in memory."""
    model, training, software = scenario["model"], scenario["training"], _software(scenario)
    own = software.kernels.recompute_selective is SelectiveRecompute.PER_OP
    modules = training.get("recompute_modules")
    if training["recompute"] != "per-op" and not (training["recompute"] == "selective" and own):
        return None
    if not modules and (model.get("moe") or model.get("mla")):
        # grouped products are on no list of what is kept (torchtitan distributed/activation_checkpoint.py)
        again = {"layernorm": True, "moe": model.get("moe"), "mla_up_proj": model.get("mla")}
        instead = {"recompute_modules": [name for name, has in again.items() if has]}
    elif not modules and not software.lowering.fused_attention:
        instead = {}
    else:
        return None
    training.pop("recompute_keeps", None)
    training |= {"recompute": "selective", **instead}
    told = ", ".join(instead.get("recompute_modules", ["attention"]))
    return Assumed("recompute", told, "the nearest to a policy of single products in such layers")


def _sharding(scenario: Sections) -> Assumed | None:
    """No more sharding than the framework has."""
    mesh, data = scenario["parallelism"], _software(scenario).data
    most = min(data.zero_limit, data.pipeline_zero_limit if mesh["pp"] > 1 else data.zero_limit)
    asked = mesh["zero"]
    if asked <= most:
        return None
    mesh["zero"] = most
    if not most:
        mesh.pop("shard", None)
    where = " in a pipeline" if mesh["pp"] > 1 else ""
    why = f"{scenario['framework']['preset']} shards no more{where}"
    return Assumed("zero_stage", str(most), why, f"zero_stage {asked} counts as {most} ({why})")


def _chunks(scenario: Sections) -> Assumed | None:
    """A rank has as many chunks as the schedule."""
    choice = scenario["schedule"]
    given, facts = choice.get("virtual_stages"), schedule(choice["name"])
    if facts.interleaves or given is None or facts.chunks is None:
        return None
    del choice["virtual_stages"]
    if given in (1, facts.chunks, facts.directions):  # some count a direction as a chunk
        return None
    why = f"{facts.name} has {facts.chunks}"
    return Assumed("vp_chunks_per_rank", "", why, f"vp_chunks_per_rank {given} is left out ({why})")


def hidden_experts(scenario: Sections) -> Assumed | None:
    """Exchanges of experts hide behind another microbatch only where one is beside them."""
    choice, name = scenario["framework"], scenario["schedule"]["name"]
    if choice.get("expert_overlap") != _HIDING or not scenario["model"].get("moe"):
        return None
    training = scenario["training"]
    again = training["recompute"] == "full" or "moe" in training.get("recompute_modules", ())
    if schedule(name).fuses_on(scenario["parallelism"]["pp"]) and not again:
        return None
    choice["expert_overlap"] = "none"
    why = f"nothing runs beside a microbatch in schedule {name} with this recomputation"
    return Assumed("expert_overlap", "none", why)


def _expert_tokens(scenario: Sections) -> Assumed | None:
    """Ranks of tensor parallelism route different tokens, so the sequence is divided among them."""
    mesh = scenario["parallelism"]
    if not scenario["model"].get("moe") or mesh["tp"] == 1 or mesh["sequence_parallel"]:
        return None
    mesh["sequence_parallel"] = True
    return Assumed(
        "sequence_parallel", "1", "a mixture of experts with tensor parallelism needs it"
    )


def _sequence(scenario: Sections) -> Assumed | None:
    """A sequence is divided over tensor parallelism only where it divides."""
    mesh, tokens = scenario["parallelism"], scenario["training"]["sequence_length"]
    if not mesh["sequence_parallel"] or tokens % (mesh["tp"] * mesh["cp"]) == 0:
        return None
    mesh["sequence_parallel"] = False
    return Assumed("sequence_parallel", "0", f"{tokens} tokens do not divide by tp {mesh['tp']}")


def _context(scenario: Sections) -> Assumed | None:
    """Keys and values go around a ring only where a fused kernel over the whole sequence takes them."""
    software, model = _software(scenario), scenario["model"]
    ring = software.tensor.context_exchange not in (
        ContextExchange.ALL_GATHER,
        ContextExchange.ULYSSES,
    )
    mesh = scenario["parallelism"]
    ulysses = software.tensor.context_exchange is ContextExchange.ULYSSES
    if ulysses and model.get("heads", 0) % (mesh["tp"] * mesh["cp"]):
        scenario["framework"]["context_exchange"] = ContextExchange.HIERARCHICAL.value
        return Assumed("context_exchange", "hierarchical", "more ranks than heads to divide")
    if mesh["cp"] == 1 or not ring:
        return None
    if 0 < model.get("window", 0) < scenario["training"]["sequence_length"]:
        scenario["framework"]["context_exchange"] = ContextExchange.ALL_GATHER.value
        return Assumed("context_exchange", "all-gather", "no ring skips to a window")
    if software.lowering.fused_attention:
        return None
    scenario["framework"]["fused_attention"] = True
    return Assumed("fused_attention", "true", "context parallelism needs a fused kernel")


def _kernel(scenario: Sections) -> Assumed | None:
    """Heads no wider than the fused kernel takes."""
    software, model = _software(scenario), scenario["model"]
    if not software.lowering.fused_attention:
        return None
    most = _WIDEST.get(software.kernels.attention_kernel)
    if most is None or "heads" not in model:
        return None
    width = model.get("head_dim") or model["hidden"] // model["heads"]
    if width <= most or scenario["parallelism"]["cp"] > 1:
        return None
    scenario["framework"]["fused_attention"] = False
    why = f"{software.kernels.attention_kernel} takes heads up to {most}, not of {width}"
    return Assumed("fused_attention", "false", why)


def _tensor_chunks(scenario: Sections) -> Assumed | None:
    """All-reduces are not cut into chunks."""
    mesh, overlap = scenario["parallelism"], _software(scenario).tensor.tensor_overlap
    if mesh["tp"] == 1 or mesh["sequence_parallel"] or overlap not in _CUT:
        return None
    scenario["framework"]["tensor_overlap"] = TensorOverlap.WEIGHT_GRADIENT.value
    return Assumed(
        "tensor_overlap", "weight-gradient", "without sequence parallelism all-reduces are not cut"
    )


def _batch(scenario: Sections) -> Assumed | None:
    """Every replica has as many whole microbatches."""
    training, dp = scenario["training"], scenario["parallelism"]["dp"]
    batch, each = training["global_batch"], training["micro_batch"]
    if batch % (dp * each) == 0:
        return None
    if batch % dp == 0:
        training["micro_batch"] = math.gcd(batch // dp, each)
        return Assumed(
            "micro_batch_seqs",
            str(training["micro_batch"]),
            f"{each} does not divide the {batch // dp} sequences of a replica",
        )
    near = max(1, round(batch / (dp * each))) * dp * each
    return _rounded(training, near, f"{batch} does not divide among {dp} replicas")


def _rounded(training: dict[str, Any], batch: int, why: str) -> Assumed:
    """Another batch, where it is near."""
    given, training["global_batch"] = training["global_batch"], batch
    if abs(batch / given - 1) > _NEAR:
        raise CalibrationError(f"global_batch_seqs: {why}")
    return Assumed("global_batch_seqs", str(batch), why)


def _rounds(scenario: Sections) -> Assumed | None:
    """Interleaving takes microbatches in equal rounds of at least as many as there are stages."""
    training, mesh = scenario["training"], scenario["parallelism"]
    step, stages = mesh["dp"] * training["micro_batch"], mesh["pp"]
    number = training["global_batch"] // step
    interleaves = schedule(scenario["schedule"]["name"]).interleaves
    whole = _software(scenario).pipeline.whole_groups
    rounds = number // stages
    if not interleaves or rounds < 1 or (number % rounds == 0 and not (whole and number % stages)):
        return None
    # it ran: its release has groups of other sizes than its stages
    near = (n for off in itertools.count() for n in (number - off, number + off) if n >= stages)
    count = next(n for n in near if n % (n // stages) == 0)
    if whole and count % stages:
        scenario["framework"]["whole_groups"] = False
    why = f"{number} microbatches are not whole rounds of {stages}"
    return _rounded(training, count * step, why)


def _sharers(scenario: Sections) -> Assumed | None:
    """Groups that share a copy divide the replicas."""
    mesh = scenario["parallelism"]
    shard, replicas = mesh.get("shard"), mesh["dp"] * mesh["cp"]
    if shard is None or replicas % shard == 0:
        return None
    mesh["shard"] = math.gcd(shard, replicas)
    return Assumed("shard", str(mesh["shard"]), f"{shard} does not divide {replicas} replicas")


def _precision(scenario: Sections) -> Assumed | None:
    """A format that the accelerator has instead of one that it lacks."""
    name, asked = scenario["cluster"].get("accelerator"), scenario["training"]["precision"]
    if name is None or _has(name, asked):
        return None
    instead = next(
        (format_name for format_name in _INSTEAD.get(asked, ()) if _has(name, format_name)), asked
    )
    scenario["training"]["precision"] = instead
    return Assumed("precision", instead, f"{name} has no {asked}") if instead != asked else None


def _has(name: str, precision: str) -> bool:
    try:
        accelerator(name).peak(precision)
    except HardwareError:
        return False
    return True


_STEPS: tuple[Callable[[Sections], Assumed | None], ...] = (
    _compiler,
    _per_op,
    _sharding,
    _chunks,
    hidden_experts,
    _expert_tokens,
    _sequence,
    _kernel,
    _context,
    _tensor_chunks,
    _sharers,
    _precision,
    _batch,
    _rounds,
)
