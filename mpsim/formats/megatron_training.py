"""Settings of Megatron about one step: batches, number formats and recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mpsim.formats.ledger import shortened
from mpsim.formats.megatron_settings import Settings

__all__ = ["put_training"]

_MODULES: Final = (
    "core_attn",
    "layernorm",
    "mlp",
    "moe_act",
    "moe",
    "shared_experts",
    "mla_up_proj",
)


def put_training(s: Settings, mesh: Mapping[str, int], ranks: int | None) -> None:
    """Put batches, precision and recomputation into the ledger."""
    micro_name = "batch-size" if "batch-size" in s.keys else "micro-batch-size"
    micro = s.integer(micro_name, least=1)
    if micro is None:
        s.ledger.ask("training.micro_batch")
    else:
        s.put(micro_name, "training.micro_batch", micro)
    each = mesh["tp"] * mesh["pp"] * mesh["cp"]
    replicas = ranks // each if ranks is not None and ranks % each == 0 else None
    batch = s.integer("global-batch-size", least=1)
    if batch is not None:
        s.put("global-batch-size", "training.global_batch", batch)
    elif micro is not None and replicas:
        s.ledger.assume(
            "training.global_batch",
            micro * replicas,
            "one microbatch for each data-parallel replica",
        )
    else:
        s.ledger.ask("training.global_batch")
    s.ledger.ignore(
        [s.keys[name] for name in ("rampup-batch-size",) if name in s.keys],
        "the batch it grows to is simulated",
    )
    names = [
        name
        for name in ("seq-length", "encoder-seq-length", "decoder-seq-length")
        if name in s.keys
    ]
    length = s.integer(names[0], least=1) if names else None
    if length is None:
        s.ledger.ask("training.sequence_length")
    else:
        s.put(names[:1], "training.sequence_length", length)
    s.ignore(names[1:], "one sequence length is simulated")
    _precision(s)
    _recompute(s)


def _precision(s: Settings) -> None:
    off = (None, "None", "null", "False", "false")
    variant = "hybrid" if s.on("fp8-hybrid") else "e4m3" if s.on("fp8-e4m3") else None
    switch = s.values.get("fp8-format")
    if switch is True or str(switch) in (
        "True",
        "true",
    ):  # NeMo's switch, with the format beside it
        narrow = variant or "e4m3"
    elif "fp8-format" in s.values and s.text("fp8-format") in off:
        narrow = None
    else:
        narrow = s.text("fp8-format") or variant
    names = ["fp8-format", "fp8-hybrid", "fp8-e4m3", "fp8-recipe"]
    wide = "bf16" if s.on("bf16") else "fp16" if s.on("fp16") else "fp32"
    if s.text("fp4-format") not in off:
        s.put(["fp4-format", "fp4-recipe"], "training.precision", "nvfp4")
    elif narrow not in off:
        meant = s.meant("fp8-recipe", "delayed")
        if meant is None:
            return
        s.put(names, "training.precision", meant)
    else:
        s.put(["bf16", "fp16"], "training.precision", wide)
    s.ignore([*names, "fp4-format", "fp4-recipe"], "without a narrow format it does nothing")
    s.ignore(["bf16", "fp16"], "what is not in the narrow format")


def _recompute(s: Settings) -> None:
    granularity = s.text("recompute-granularity")
    granularity = None if granularity in ("None", "null", "none") else granularity
    old = [
        name
        for name in ("checkpoint-activations", "activations-checkpoint-method")
        if name in s.keys and s.values[name] not in (None, False)
    ]
    if granularity is None and s.on("recompute-activations"):
        granularity = "selective"
    if old:
        granularity = "full"
    if granularity not in (None, "full", "selective"):
        s.ledger.refuse(
            f"{s.place('recompute-granularity')}: got {shortened(granularity)}; needed full or selective"
        )
        return
    s.put(
        ["recompute-granularity", "recompute-activations", *old],
        "training.recompute",
        granularity or "none",
    )
    names = [
        "recompute-method",
        "recompute-num-layers",
        "activations-checkpoint-method",
        "activations-checkpoint-num-layers",
        "checkpoint-num-layers",
    ]
    if granularity == "full":
        _full(s)
    elif granularity == "selective":
        modules = s.values.get("recompute-modules")
        listed = (
            modules
            if isinstance(modules, list)
            else str(modules).replace(",", " ").split()
            if modules not in (None, True)
            else []
        )
        known = [module for module in listed if module in _MODULES]
        if known:
            s.put("recompute-modules", "training.recompute_modules", known)
        if len(known) < len(listed):
            others = ", ".join(str(module)[:20] for module in listed if module not in _MODULES)
            s.ledger.warn(f"{s.place('recompute-modules')}: {others} are not simulated")
    s.ignore([*names, "recompute-modules"], "without that recomputation it does nothing")
    s.ignore(["recompute-activations"], "--recompute-granularity decides")
    for name in ("distribute-saved-activations", "distribute-checkpointed-activations"):
        if name in s.keys:
            s.ledger.ignore(
                s.keys[name],
                "not simulated: saved activations are not divided among tensor-parallel ranks",
                matters=True,
            )
    if s.on("moe-layer-recompute") and granularity is None:
        s.put("moe-layer-recompute", "training.recompute", "selective")
        s.put("moe-layer-recompute", "training.recompute_modules", ["moe"])
    s.ignore("moe-layer-recompute", "recomputation is stated otherwise")


def _full(s: Settings) -> None:
    for name in ("recompute-method", "activations-checkpoint-method"):
        method = s.text(name)
        if method in ("uniform", "block"):
            s.put(name, "training.recompute_method", method)
        elif method is not None:
            s.ledger.refuse(f"{s.place(name)}: got {shortened(method)}; needed uniform or block")
    for name in (
        "recompute-num-layers",
        "activations-checkpoint-num-layers",
        "checkpoint-num-layers",
    ):
        count = s.integer(name, least=1)
        if count is not None:
            s.put(name, "training.recompute_layers", count)
