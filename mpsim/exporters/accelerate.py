"""Hugging Face Accelerate's YAML: FSDP, DeepSpeed, DDP or Megatron-LM, whichever the framework of the scenario is nearest to."""

from __future__ import annotations

from typing import Any

from mpsim.exporters.outgoing import Exported, Outgoing, header
from mpsim.exporters.written import yaml_text
from mpsim.formats import key_to, values_of
from mpsim.formats.words import table
from mpsim.framework import framework, framework_aliases
from mpsim.scenario import Scenario

__all__ = ["export_accelerate"]


def export_accelerate(scenario: Scenario) -> Exported:
    """Write the configuration of a scenario.

    Raises
    ------
    FormatError
        If it serves.
    """
    out = Outgoing(scenario)
    preset = framework_aliases().get(scenario.framework.preset, scenario.framework.preset)
    cluster, kind = scenario.hardware, _kind(scenario, preset)
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "num_machines": cluster.nodes,
        "num_processes": cluster.accelerators,
        "machine_rank": 0,
        "main_training_function": "main",
    }
    out.lose_cluster(
        f"no key names accelerators, links and NICs: import it with --cluster {cluster.name}"
    )
    out.hold("parallelism.dp", "num_processes")
    _put_precision(out, data)
    put = {"FSDP": _put_fsdp, "DEEPSPEED": _put_deepspeed, "MEGATRON_LM": _put_megatron}
    if kind in put:
        put[kind](out, data)
    else:
        out.hold("parallelism.zero", "distributed_type")
        narrow = data["mixed_precision"] in ("fp16", "bf16")
        out.behave("torch-ddp-autocast" if narrow else "torch-ddp", {}, tool="distributed_type")
    out.lose_section("model", "an Accelerate file holds no model; export hf too")
    for key in ("global_batch", "micro_batch", "sequence_length"):
        out.lose(f"training.{key}", "said by the program")
    text = "".join(f"# {line}\n" for line in header(scenario, f"Accelerate, {kind}"))
    return out.close(
        "accelerate", tool=f"Hugging Face Accelerate, {kind}", text=text + yaml_text(data)
    )


def _kind(scenario: Scenario, preset: str) -> str:
    """The way of distributing whose reader takes the fewest habits otherwise."""
    p = scenario.parallelism
    if p.pp > 1 or preset.startswith(("megatron", "nemo")):
        return "MEGATRON_LM"
    if preset.startswith("deepspeed"):
        return "DEEPSPEED"
    return "FSDP" if p.zero > 1 else "MULTI_GPU" if p.zero == 0 else "DEEPSPEED"


def _put_precision(out: Outgoing, data: dict[str, Any]) -> None:
    row = key_to("accelerate", "training.precision")
    word = row.word(out.scenario.training_step.precision)
    if word is None:
        out.lose("training.precision", "Accelerate has no such format; bf16 is written")
    else:
        out.hold("training.precision", row.name)
    data["mixed_precision"] = word or "bf16"


def _put_fsdp(out: Outgoing, data: dict[str, Any]) -> None:
    scenario, p = out.scenario, out.scenario.parallelism
    chosen = scenario.framework
    wanted = framework(chosen.preset, chosen.overrides)
    aliases = framework_aliases()
    version = 1 if aliases.get(chosen.preset, chosen.preset).startswith("torch-fsdp1") else 2
    fsdp: dict[str, Any] = {
        "fsdp_version": version,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    data["fsdp_config"] = fsdp
    stage = 3 if p.zero == 3 else 2
    if version == 2:
        fsdp["fsdp_reshard_after_forward"] = stage == 3
        out.hold("parallelism.zero", "fsdp_config.fsdp_reshard_after_forward")
    else:
        fsdp["fsdp_sharding_strategy"] = key_to("accelerate", "parallelism.zero").word(stage)
        out.hold("parallelism.zero", "fsdp_config.fsdp_sharding_strategy")
    if p.zero != stage:
        out.force("parallelism.zero", "FSDP shares gradients and parameters too")
    degrees = {"tp": p.tp, "cp": p.cp}
    group = p.shard or scenario.dp * p.cp
    degrees |= {"dp_shard": group // p.cp, "dp_replicate": scenario.dp * p.cp // group}
    if degrees["dp_replicate"] > 1 or p.tp > 1 or p.cp > 1:
        head = "parallelism_config"
        data[head] = {f"{head}_{word}_size": degree for word, degree in degrees.items()}
    out.hold(["parallelism.tp", "parallelism.cp"], "parallelism_config")
    if p.shard is not None and degrees["dp_replicate"] > 1:
        out.hold("parallelism.shard", "parallelism_config.parallelism_config_dp_shard_size")
    elif p.shard is not None:
        out.hold("parallelism.shard", "one copy over all ranks")
    if p.offload == "parameters":
        fsdp["fsdp_offload_params"] = True
        out.hold("parallelism.offload", "fsdp_config.fsdp_offload_params")
    again = key_to("accelerate", "training.recompute").word(scenario.training_step.recompute)
    if again is not None:
        fsdp["fsdp_activation_checkpointing"] = again == "true"
        out.hold("training.recompute", "fsdp_config.fsdp_activation_checkpointing")
    ahead = wanted.data.prefetch_backward
    fsdp["fsdp_backward_prefetch"] = key_to("accelerate", "framework.prefetch_backward").word(ahead)
    _hold_order(out)
    changes: dict[str, object] = {} if ahead else {"prefetch_backward": False}
    preset = values_of("accelerate", "fsdp_config.fsdp_version")[str(version)]
    out.behave(preset, changes, tool="fsdp_config.fsdp_version")


def _hold_order(out: Outgoing) -> None:
    """One stage has no order."""
    if out.scenario.parallelism.pp == 1 and out.scenario.schedule.name == "1f1b":
        out.hold(["schedule.name", "schedule.virtual_stages"], "one stage")


def _put_deepspeed(out: Outgoing, data: dict[str, Any]) -> None:
    scenario, p = out.scenario, out.scenario.parallelism
    steps = max(
        1, scenario.training_step.global_batch // scenario.training_step.micro_batch // scenario.dp
    )
    section: dict[str, Any] = {"zero_stage": p.zero, "gradient_accumulation_steps": steps}
    data["deepspeed_config"] = section
    out.hold("parallelism.zero", "deepspeed_config.zero_stage")
    if p.offload != "none":
        device = "nvme" if p.offload_to == "nvme" else "cpu"
        section["offload_optimizer_device"] = device
        if p.offload == "parameters":
            section["offload_param_device"] = device
        out.hold(
            ["parallelism.offload", "parallelism.offload_to"],
            "deepspeed_config.offload_optimizer_device",
        )
    _hold_order(out)
    preset = table("mpsim.formats.data", "deepspeed")["presets"][str(p.zero)]
    out.behave(preset, {}, tool="deepspeed_config.zero_stage")


def _put_megatron(out: Outgoing, data: dict[str, Any]) -> None:
    scenario, p = out.scenario, out.scenario.parallelism
    head = "megatron_lm_"
    section: dict[str, Any] = {
        f"{head}tp_degree": p.tp,
        f"{head}pp_degree": p.pp,
        f"{head}num_micro_batches": scenario.microbatches,
        f"{head}sequence_parallelism": p.sequence_parallel,
        f"{head}use_distributed_optimizer": p.zero == 1,
    }
    data["megatron_lm_config"] = section
    for key, word in (("tp", "tp_degree"), ("pp", "pp_degree"), ("sequence_parallel", "sequence_parallelism")):  # fmt: skip
        out.hold(f"parallelism.{key}", f"megatron_lm_config.{head}{word}")
    if p.zero < 2:
        out.hold("parallelism.zero", f"megatron_lm_config.{head}use_distributed_optimizer")
    again = values_of("accelerate", f"megatron_lm_config.{head}recompute_activations")
    how = scenario.training_step.recompute
    section[f"{head}recompute_activations"] = again["true"] == how
    if how in again.values():
        out.hold("training.recompute", f"megatron_lm_config.{head}recompute_activations")
    _hold_order(out)
    out.behave("megatron-core", {}, tool="distributed_type")
