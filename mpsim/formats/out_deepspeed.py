"""DeepSpeed's ds_config: batches, ZeRO, offloading, precision and buckets; the model and the degrees are the program's."""

from __future__ import annotations

import json
from typing import Any

from mpsim.formats.keys import values_of
from mpsim.formats.outgoing import Exported, Outgoing
from mpsim.formats.words import table
from mpsim.framework import framework
from mpsim.scenario import Scenario

__all__ = ["export_deepspeed", "put_zero"]


def export_deepspeed(scenario: Scenario) -> Exported:
    """Write the ds_config of a scenario.

    Raises
    ------
    FormatError
        If it serves.
    """
    out = Outgoing(scenario)
    training, p = scenario.training_step, scenario.parallelism
    steps, left = divmod(training.global_batch, training.micro_batch * scenario.dp)
    data: dict[str, Any] = {
        "train_batch_size": training.global_batch,
        "train_micro_batch_size_per_gpu": training.micro_batch,
    }
    if not left:
        data["gradient_accumulation_steps"] = steps
    out.hold("training.global_batch", "train_batch_size")
    out.hold("training.micro_batch", "train_micro_batch_size_per_gpu")
    zero: dict[str, Any] = {"stage": p.zero}
    data["zero_optimization"] = zero
    out.hold("parallelism.zero", "zero_optimization.stage")
    put_zero(out, zero)
    _put_precision(out, data)
    _put_habits(out, data, zero)
    out.lose_section("model", "a ds_config holds no model")
    out.lose_section("schedule", "the order of a pipeline is the engine's")
    out.lose(["training.sequence_length", "training.recompute"], "said by the program")
    for axis in ("tp", "pp", "cp", "ep"):
        out.lose(f"parallelism.{axis}", "a degree is a flag of the program, not of its ds_config")
    out.lose_cluster("the launcher and its hosts decide")
    out.lose("parallelism.dp", "follows from the accelerators")
    return out.close("deepspeed", tool="DeepSpeed", text=json.dumps(data, indent=2) + "\n")


def put_zero(out: Outgoing, zero: dict[str, Any]) -> None:
    """Put what is offloaded into the section of ZeRO."""
    p = out.scenario.parallelism
    if p.offload == "none":
        return
    device = "nvme" if p.offload_to == "nvme" else "cpu"
    keys = ["parallelism.offload", "parallelism.offload_to"]
    zero["offload_optimizer"] = {"device": device}
    if p.offload == "parameters":
        zero["offload_param"] = {"device": device}
    out.hold(keys, "zero_optimization.offload_optimizer.device")


def _put_precision(out: Outgoing, data: dict[str, Any]) -> None:
    precision = out.scenario.training_step.precision
    if precision in ("bf16", "fp16"):
        data[precision] = {"enabled": True}
        out.hold("training.precision", f"{precision}.enabled")
    elif precision == "fp32":
        out.hold("training.precision", "without bf16 and fp16")
    else:
        data["bf16"] = {"enabled": True}
        out.lose("training.precision", "DeepSpeed has no such format; bf16 is written")


def _put_habits(out: Outgoing, data: dict[str, Any], zero: dict[str, Any]) -> None:
    chosen = out.scenario.framework
    wanted = framework(chosen.preset, chosen.overrides)
    stage = out.scenario.parallelism.zero
    preset = table("mpsim.formats.data", "deepspeed")["presets"][str(stage)]
    usual = framework(preset, {})
    changes: dict[str, object] = {}
    overlap = wanted.data.gradient_overlap.value
    word = next((w for w, value in values_of("deepspeed", "zero_optimization.overlap_comm").items() if value == overlap), None)  # fmt: skip
    if word is not None:
        zero["overlap_comm"] = word == "true"
        changes["gradient_overlap"] = overlap
    size = 4 if out.scenario.training_step.precision == "fp32" else 2  # as the file has it
    bucket = wanted.data.bucket_bytes
    if bucket % size == 0:
        zero["reduce_bucket_size"] = int(bucket // size)
        changes["bucket_bytes"] = f"{bucket:.0f} B"
    if stage in (1, 2):
        reduction = wanted.data.gradient_reduction.value
        if reduction == usual.data.gradient_reduction.value:
            zero["reduce_scatter"] = True
        elif reduction == "all-reduce":
            zero["reduce_scatter"] = False
            changes["gradient_reduction"] = reduction
    travels = {2: "fp16" if out.scenario.training_step.precision == "fp16" else "bfp16", 4: "fp32"}
    if wanted.data.reduced_bytes in travels:
        data["communication_data_type"] = travels[wanted.data.reduced_bytes]
        changes["reduced_bytes"] = wanted.data.reduced_bytes
    data["gradient_clipping"] = 1.0 if wanted.optimizer.gradient_norm else 0.0
    changes["gradient_norm"] = wanted.optimizer.gradient_norm
    out.behave(preset, changes, tool="zero_optimization.stage")
