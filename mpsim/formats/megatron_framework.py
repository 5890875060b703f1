"""Settings of Megatron that change how its software behaves, as overrides of the preset of the version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mpsim.formats.megatron_settings import Settings
from mpsim.framework import framework

__all__ = ["put_framework"]


def put_framework(s: Settings, mesh: Mapping[str, int]) -> None:
    """The preset of the era, and the switches that differ from its habits."""
    fsdp = (
        s.on("use-megatron-fsdp")
        and s.since_tag("core_v0.14.0")
        and s.ledger.scenario.get("parallelism.zero") == 3
    )
    preset = "megatron-fsdp" if fsdp else s.preset
    stated = [name for name in ("use-megatron-fsdp",) if fsdp]
    s.put(stated, "framework.preset", preset, "the preset of the version")
    habits = framework(preset, {}).fields()
    usual = getattr(habits["tensor_overlap"], "value", "")
    buffered = usual == "decomposed" and mesh["tp"] > 1 and not s.on("tp-comm-overlap")
    if buffered and "tp-comm-overlap" in s.values:
        s.put("tp-comm-overlap", "framework.tensor_overlap", "weight-gradient")
    elif buffered and not s.ledger.scenario.get("parallelism.sequence_parallel"):
        why = "user buffers need sequence parallelism"
        s.ledger.assume("framework.tensor_overlap", "weight-gradient", why)
    for names, field, value in _switches(s, mesh):
        usual = habits[field]
        if getattr(usual, "value", usual) == value:
            keys = [s.keys[name] for name in names if name in s.keys]
            s.ledger.ignore(keys, f"the preset {preset} has it")
        else:
            s.put(names, f"framework.{field}", value)
    for name in _SWITCHES:
        s.ignore(name, "off, or not simulated apart from the preset")


_SWITCHES: Final = (
    "overlap-grad-reduce overlap-param-gather tp-comm-overlap no-async-tensor-model-parallel-allreduce grad-reduce-in-bf16 "
    "accumulate-allreduce-grads-in-fp32 no-gradient-accumulation-fusion use-flash-attn attention-backend transformer-impl cross-entropy-loss-fusion "
    "fp8-param-gather moe-token-dispatcher-type moe-grouped-gemm moe-shared-expert-overlap moe-enable-deepep moe-flex-dispatcher-backend "
    "overlap-moe-expert-parallel-comm cp-comm-type hierarchical-context-parallel-sizes no-overlap-p2p-communication overlap-p2p-communication "
    "overlap-p2p-comm overlap-p2p-communication-warmup-flush no-scatter-gather-tensors-in-pipeline DDP-impl ddp-bucket-size no-masked-softmax-fusion "
    "no-scaled-masked-softmax-fusion no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion clip-grad use-megatron-fsdp moe-extended-tp"
).split()


def _switches(s: Settings, mesh: Mapping[str, int]) -> list[tuple[list[str], str, object]]:
    """Fields of the framework that the settings decide, with the settings that do."""
    core = s.since_tag("core_v0.4.0")
    found: list[tuple[list[str], str, object]] = []
    if core and not s.on("use-torch-fsdp2"):
        found.append(
            (
                ["overlap-grad-reduce"],
                "gradient_overlap",
                "always" if s.on("overlap-grad-reduce") else "never",
            )
        )
        if s.ledger.scenario.get("parallelism.zero"):
            found.append(
                (["overlap-param-gather"], "parameter_gather_overlap", s.on("overlap-param-gather"))
            )
    if s.text("DDP-impl") in ("local", "torch"):
        local = "never" if not s.since_tag("v2.0") else "without-pipeline"
        found.append(
            (["DDP-impl"], "gradient_overlap", "always" if s.text("DDP-impl") == "torch" else local)
        )
    found += (
        _tensor_switches(s, mesh)
        + _gradient_switches(s)
        + _kernel_switches(s, mesh)
        + _pipeline_switches(s, mesh)
    )
    if s.has_experts:
        found += _expert_switches(s)
    return found


def _tensor_switches(s: Settings, mesh: Mapping[str, int]) -> list[tuple[list[str], str, object]]:
    if mesh["tp"] == 1:
        return []
    if s.on("tp-comm-overlap"):
        if s.ledger.scenario.get("parallelism.sequence_parallel"):
            return [(["tp-comm-overlap"], "tensor_overlap", "decomposed")]
        s.ledger.refuse(f"{s.place('tp-comm-overlap')}: needs --sequence-parallel")
    if s.on("no-async-tensor-model-parallel-allreduce"):
        return [(["no-async-tensor-model-parallel-allreduce"], "tensor_overlap", "none")]
    return []


def _gradient_switches(s: Settings) -> list[tuple[list[str], str, object]]:
    wide = s.on("accumulate-allreduce-grads-in-fp32")
    if "accumulate-allreduce-grads-in-fp32" not in s.values:  # bf16 switches it on
        wide = s.on("bf16") and s.since_tag("v2.5") and not s.on("grad-reduce-in-bf16")
    names = ["accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16", "bf16"]
    names = [name for name in names[:2] if name in s.keys] or names[2:]
    found: list[tuple[list[str], str, object]] = []
    if wide or s.on("grad-reduce-in-bf16"):
        found += [
            (names, "gradient_bytes", 4 if wide else 2),
            (names, "weight_grad_bytes", 4 if wide else 2),
        ]
        if wide and not s.on("no-gradient-accumulation-fusion"):
            found.append((names, "accumulation_traffic", 0.0))
    if s.on("no-gradient-accumulation-fusion"):
        found.append(
            (["no-gradient-accumulation-fusion"], "accumulation_traffic", 8.0 if wide else 4.0)
        )
    bucket = s.integer("ddp-bucket-size", least=1)
    if bucket is not None:
        found += [
            (["ddp-bucket-size"], "bucket_bytes", f"{bucket * (4 if wide else 2)} B"),
            (["ddp-bucket-size"], "bucket_bytes_per_replica", "0 B"),
        ]
    clip = s.number("clip-grad")
    if clip is not None:
        found.append((["clip-grad"], "gradient_norm", clip > 0))
    if s.on("fp8-param-gather") and s.ledger.scenario.get("parallelism.zero"):
        found.append((["fp8-param-gather"], "gathered_bytes", 1))
    return found


def _kernel_switches(s: Settings, mesh: Mapping[str, int]) -> list[tuple[list[str], str, object]]:
    found: list[tuple[list[str], str, object]] = []
    local = s.text("transformer_impl") == "local" or s.text("transformer-impl") == "local"
    usual_local = (
        s.since_tag("core_v0.4.0")
        and not s.since_tag("core_v0.6.0")
        and s.text("transformer-impl") is None
    )
    backend = s.text("attention-backend")
    fused = s.on("use-flash-attn") or backend in ("flash", "fused")
    names = [
        name
        for name in ("transformer-impl", "use-flash-attn", "attention-backend")
        if name in s.keys
    ]
    if backend in ("unfused", "local") or ((local or usual_local) and not fused):
        found.append((names, "fused_attention", False))
    elif fused or s.text("transformer-impl") == "transformer_engine":
        found.append((names, "fused_attention", True))
        if s.on("use-flash-attn") and not s.since_tag("core_v0.4.0"):
            found.append(
                (names, "attention_kernel", "flash2" if s.since_tag("23.06") else "flash1")
            )
    if s.on("cross-entropy-loss-fusion"):
        found.append((["cross-entropy-loss-fusion"], "loss_bytes_per_logit", 24.0))
    for name, field in (
        ("no-masked-softmax-fusion", "fused_softmax"),
        ("no-scaled-masked-softmax-fusion", "fused_softmax"),
        ("no-bias-gelu-fusion", "fused_bias_activation"),
        ("no-bias-swiglu-fusion", "fused_bias_activation"),
        ("no-bias-dropout-fusion", "fused_bias_dropout_add"),
    ):
        gelu = name == "no-bias-gelu-fusion" and s.ledger.scenario.get("model.gated_mlp")
        if s.on(name) and not gelu:
            found.append(([name], field, False))
    exchange = None if mesh["cp"] == 1 else s.meant("cp-comm-type")
    if exchange is not None:
        names = ["cp-comm-type", "hierarchical-context-parallel-sizes"]
        found.append((names, "context_exchange", exchange))
    return found


def _pipeline_switches(s: Settings, mesh: Mapping[str, int]) -> list[tuple[list[str], str, object]]:
    if mesh["pp"] == 1:
        return []
    found: list[tuple[list[str], str, object]] = []
    if s.on("no-overlap-p2p-communication"):
        found.append((["no-overlap-p2p-communication"], "blocking_sends", "always"))
    elif s.on("overlap-p2p-communication") or s.on("overlap-p2p-comm"):
        found.append((["overlap-p2p-communication", "overlap-p2p-comm"], "blocking_sends", "plain"))
    if s.on("overlap-p2p-communication-warmup-flush"):
        found.append((["overlap-p2p-communication-warmup-flush"], "overlap_warmup_flush", True))
    if s.on("no-scatter-gather-tensors-in-pipeline"):
        found.append((["no-scatter-gather-tensors-in-pipeline"], "scatter_gather", False))
    return found


def _expert_switches(s: Settings) -> list[tuple[list[str], str, object]]:
    found: list[tuple[list[str], str, object]] = []
    usual = None if s.is_dataclass else "allgather"
    dispatch = s.meant("moe-token-dispatcher-type", usual)
    if dispatch is not None:
        names = ["moe-token-dispatcher-type", "moe-enable-deepep", "moe-flex-dispatcher-backend"]
        found.append((names, "expert_dispatch", dispatch))
    if s.on("overlap-moe-expert-parallel-comm"):
        found.append((["overlap-moe-expert-parallel-comm"], "expert_overlap", "microbatch"))
    elif s.on("moe-shared-expert-overlap"):
        found.append((["moe-shared-expert-overlap"], "expert_overlap", "shared-expert"))
    return found
