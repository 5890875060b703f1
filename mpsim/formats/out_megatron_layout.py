"""How a scenario divides the work, and what one step trains on, as settings of Megatron."""

from __future__ import annotations

from typing import Final

from mpsim.formats.keys import keys
from mpsim.formats.out_megatron_settings import KEYS, Settings

__all__ = ["put_layout", "put_training"]

_FP8: Final = {"fp8": "delayed", "fp8_block": "blockwise", "mxfp8": "mxfp8"}


def put_layout(s: Settings) -> None:
    """Put degrees, sharding and the schedule into the settings."""
    p, cluster = s.scenario.parallelism, s.scenario.hardware
    for axis in ("tp", "pp"):
        s.put_value(f"parallelism.{axis}")
    for axis in ("cp", "ep"):
        if getattr(p, axis) > 1:
            s.put_value(f"parallelism.{axis}")
    s.out.hold("parallelism.dp", "the launcher")
    if s.scenario.transformer.moe is not None and p.etp is not None:
        s.put_value("parallelism.etp")
    elif p.etp is not None:
        s.out.hold("parallelism.etp", "without experts it does nothing")
    if p.sequence_parallel and p.tp > 1:
        s.put("sequence-parallel", True, "parallelism.sequence_parallel")
    elif p.sequence_parallel:
        s.out.lose(
            "parallelism.sequence_parallel", "Megatron switches it off without tensor parallelism"
        )
    _put_sharding(s)
    if p.order == "tp-cp-ep-pp-dp":
        s.put("use-tp-pp-dp-mapping", True, "parallelism.order")
    else:
        s.out.lose("parallelism.order", "Megatron lays ranks tp-cp-ep-dp-pp, or pp before dp")
    _put_schedule(s)
    s.out.lose_cluster(
        f"no setting names accelerators, links and NICs: import it with --cluster {cluster.name}"
    )


def _put_sharding(s: Settings) -> None:
    p = s.scenario.parallelism
    if p.zero == 1:
        s.put("use-distributed-optimizer", True, "parallelism.zero")
    elif p.zero > 1:
        fsdp = "use-megatron-fsdp" if s.has("use-megatron-fsdp") else "use-custom-fsdp"
        if s.put(fsdp, True, "parallelism.zero"):
            word = next(
                key for key in keys(KEYS) if key.name == "data-parallel-sharding-strategy"
            ).word(p.zero)
            s.put("data-parallel-sharding-strategy", word, "parallelism.zero")
            s.given["use-distributed-optimizer"] = True
    s.out.lose("parallelism.shard", "which ranks share one copy is not read from a setting")
    if p.offload == "optimizer" and p.offload_to == "host":
        s.put("optimizer-cpu-offload", True, "parallelism.offload")
    else:
        s.out.lose(
            ["parallelism.offload", "parallelism.offload_to"],
            "Megatron offloads the optimizer, to the host",
        )


def _put_schedule(s: Settings) -> None:
    p, schedule, model = s.scenario.parallelism, s.scenario.schedule, s.scenario.transformer
    usual = schedule.name in ("1f1b", "interleaved-1f1b")
    chunks = s.scenario.virtual_stages if usual else 1
    if usual and (p.pp > 1 or schedule.name == "1f1b"):
        s.out.hold(["schedule.name", "schedule.virtual_stages"], "--pipeline-model-parallel-size")
    else:
        s.out.lose_section("schedule", "Megatron runs 1F1B, plain or interleaved")
    ends = {"embedding": p.embedding_counts_as_layer, "loss": p.loss_counts_as_layer}
    if s.scenario.stage_layers is not None:
        _put_stages(s, list(s.scenario.stage_layers), chunks)
        return
    for end, counts in ends.items():
        if counts:
            s.put(
                f"account-for-{end}-in-pipeline-split", True, f"parallelism.{end}_counts_as_layer"
            )
    if chunks == 1 or p.pp == 1:
        return
    each = (model.layers + sum(ends.values())) // p.pp // chunks
    if s.is_dataclass:
        s.given["virtual-pipeline-model-parallel-size"] = chunks
    elif s.has("num-virtual-stages-per-pipeline-rank"):
        s.put("num-virtual-stages-per-pipeline-rank", chunks, "schedule.virtual_stages")
    else:
        s.put("num-layers-per-virtual-pipeline-stage", each, "schedule.virtual_stages")


def _put_stages(s: Settings, counts: list[int], chunks: int) -> None:
    """Layers of every stage as a layout string, or by the two ends where that says it."""
    key, pp = "parallelism.layers_per_stage", s.scenario.parallelism.pp
    further = s.scenario.transformer.mtp_layers
    if s.has("pipeline-model-parallel-layout"):
        stages = ["t" * count for count in counts]
        stages[0] = "E" + stages[0]
        if further:
            stages[-1] = stages[-1].removesuffix("t" * further) + "m" * further
        stages[-1] += "L"
        s.put("pipeline-model-parallel-layout", "|".join(stages), key, "schedule.virtual_stages")
        return
    middle = set(counts[1:-1])
    if chunks == 1 and pp > 2 and len(middle) == 1:
        s.put("decoder-first-pipeline-num-layers", counts[0], key)
        s.put("decoder-last-pipeline-num-layers", counts[-1], key)
    else:
        s.out.lose(key, "--pipeline-model-parallel-layout came with core_v0.13.0")


def put_training(s: Settings) -> None:
    """Put batches, precision and recomputation into the settings."""
    training = s.scenario.training_step
    s.put_value("training.micro_batch")
    if s.has("global-batch-size"):
        s.put_value("training.global_batch")
    elif training.global_batch == training.micro_batch * s.scenario.dp:
        s.out.hold("training.global_batch", "--batch-size")
    else:
        s.out.lose("training.global_batch", "this version has one microbatch a step")
    s.put_value("training.sequence_length")
    s.out.lose("training.batch_per_replica", "every replica has as many sequences")
    precision = training.precision
    if precision in ("fp8", "mxfp8", "fp8_block"):
        s.given["bf16"] = True
        if s.put("fp8-format", "hybrid", "training.precision") and _FP8[precision] != "delayed":
            s.put("fp8-recipe", _FP8[precision], "training.precision")
    elif precision == "nvfp4":
        s.given["bf16"] = True
        s.put("fp4-format", "e2m1", "training.precision")
    elif precision in ("bf16", "fp16"):
        s.put(precision, True, "training.precision")
    elif precision == "fp32":
        s.out.hold("training.precision", "without --bf16 and --fp16")
    else:
        s.given["bf16"] = True
        s.out.lose("training.precision", "Megatron has no such format")
    _put_recompute(s)


def _put_recompute(s: Settings) -> None:
    training = s.scenario.training_step
    how = training.recompute
    layers = training.recompute_layers or 1
    method = training.recompute_method or "uniform"
    rest = ("training.recompute_method", "training.recompute_layers")
    if how == "full" and s.has("recompute-granularity"):
        s.put("recompute-granularity", "full", "training.recompute")
        s.put("recompute-method", method, rest[0])
        s.put("recompute-num-layers", layers, rest[1])
    elif how == "full" and s.has("activations-checkpoint-method"):
        s.put("activations-checkpoint-method", method, "training.recompute", rest[0])
        s.put("activations-checkpoint-num-layers", layers, rest[1])
    elif how == "full":
        s.put("checkpoint-activations", True, "training.recompute")
        if method == "uniform":
            s.put("checkpoint-num-layers", layers, *rest)
    elif how == "selective":
        s.put("recompute-granularity", "selective", "training.recompute")
        modules = training.recompute_modules
        if modules:
            text = list(modules) if s.is_dataclass else " ".join(modules)
            s.put("recompute-modules", text, "training.recompute_modules")
    elif how != "none":
        s.out.lose("training.recompute", "Megatron recomputes all of a layer, or named modules")
