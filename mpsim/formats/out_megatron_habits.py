"""Switches of Megatron by which a run differs from what a reader takes for its version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpsim.formats.keys import keys
from mpsim.formats.out_megatron_settings import KEYS, Settings

__all__ = ["put_habits"]


def put_habits(s: Settings, usual: Mapping[str, Any]) -> None:
    """Switches by which the run differs from what a reader takes for its version."""
    _put_data(s, usual)
    _put_gradients(s, usual)
    _put_kernels(s, usual)
    _put_exchanges(s, usual)


def _set(s: Settings, name: str, value: object, **changes: object) -> None:
    """Write a switch where the version has it, with what a reader takes from it."""
    if s.has(name) and value is not None:  # None: the tool has no word for it
        s.given[name] = value
        s.changes |= changes


def _put_data(s: Settings, usual: Mapping[str, Any]) -> None:
    overlap = s.habit("gradient_overlap")
    if s.since("core_v0.4.0"):
        s.changes["gradient_overlap"] = "never"
        if overlap == "always":
            _set(s, "overlap-grad-reduce", True, gradient_overlap="always")
        if s.value("parallelism.zero"):
            gathers = bool(s.habit("parameter_gather_overlap"))
            s.changes["parameter_gather_overlap"] = gathers
            if gathers:
                _set(s, "overlap-param-gather", True)
    elif overlap != usual["gradient_overlap"]:
        local = "without-pipeline" if s.since("v2.0") else "never"
        for word, means in (("torch", "always"), ("local", local)):
            if overlap == means:
                _set(s, "DDP-impl", word, gradient_overlap=means)


def _put_gradients(s: Settings, usual: Mapping[str, Any]) -> None:
    wide = s.habit("gradient_bytes") == 4
    is_bf16 = bool(s.given.get("bf16"))
    narrow = {"gradient_bytes": 2, "weight_grad_bytes": 2}
    whole = {"gradient_bytes": 4, "weight_grad_bytes": 4, "accumulation_traffic": 0.0}
    if s.is_dataclass:
        s.given["accumulate-allreduce-grads-in-fp32"] = wide
        s.changes |= whole if wide else {}
    elif is_bf16 and s.since("v2.5"):
        s.changes |= whole
        if not wide and s.has("grad-reduce-in-bf16"):
            for field in whole:
                del s.changes[field]
            _set(s, "grad-reduce-in-bf16", True, **narrow)
    elif wide:
        _set(s, "accumulate-allreduce-grads-in-fp32", True, **whole)
    # what the reader makes of these switches: an era without grad-reduce-in-bf16 reduces bf16's gradients in 32 bits
    unfused = 8.0 if s.changes.get("gradient_bytes", usual["gradient_bytes"]) == 4 else 4.0
    if (
        s.habit("accumulation_traffic") == unfused
        and s.changes.get("accumulation_traffic", usual["accumulation_traffic"]) != unfused
    ):
        _set(s, "no-gradient-accumulation-fusion", True, accumulation_traffic=unfused)
    bucket, size = s.habit("bucket_bytes"), 4 if wide else 2
    if (
        bucket != usual["bucket_bytes"]
        and bucket % size == 0
        and not s.habit("bucket_bytes_per_replica")
    ):
        changes = {"bucket_bytes": f"{bucket:.0f} B", "bucket_bytes_per_replica": "0 B"}
        _set(s, "ddp-bucket-size", int(bucket // size), **changes)
    clips = bool(s.habit("gradient_norm"))
    _set(s, "clip-grad", 1.0 if clips else 0.0, gradient_norm=clips)
    if (
        s.habit("gathered_bytes") == 1
        and usual["gathered_bytes"] != 1
        and s.value("parallelism.zero")
    ):
        _set(s, "fp8-param-gather", True, gathered_bytes=1)


def _put_kernels(s: Settings, usual: Mapping[str, Any]) -> None:
    fused = bool(s.habit("fused_attention"))
    core = s.since("core_v0.4.0")
    if core and not s.since("core_v0.6.0") and not s.is_dataclass:
        s.changes["fused_attention"] = False
        if fused:
            _set(s, "transformer-impl", "transformer_engine", fused_attention=True)
    elif fused != usual["fused_attention"] and fused:
        kernel = {} if core else {"attention_kernel": "flash2" if s.since("23.06") else "flash1"}
        _set(s, "use-flash-attn", True, fused_attention=True, **kernel)
    elif fused != usual["fused_attention"]:
        name, word = (
            ("attention-backend", "unfused")
            if s.has("attention-backend")
            else ("transformer-impl", "local")
        )
        _set(s, name, word, fused_attention=False)
    if s.habit("loss_bytes_per_logit") == 24 != usual["loss_bytes_per_logit"]:
        _set(s, "cross-entropy-loss-fusion", True, loss_bytes_per_logit=24.0)
    gated = s.scenario.transformer.gated_mlp
    for field, name in (
        ("fused_softmax", "no-masked-softmax-fusion"),
        ("fused_bias_activation", "no-bias-swiglu-fusion" if gated else "no-bias-gelu-fusion"),
        ("fused_bias_dropout_add", "no-bias-dropout-fusion"),
    ):
        if usual[field] and not s.habit(field):
            _set(s, name, True, **{field: False})


def _put_exchanges(s: Settings, usual: Mapping[str, Any]) -> None:
    p = s.scenario.parallelism
    overlap = s.habit("tensor_overlap")
    if usual["tensor_overlap"] == "decomposed" and p.tp > 1 and not p.sequence_parallel:
        s.changes["tensor_overlap"] = "weight-gradient"  # a reader knows that user buffers need it
    if p.tp > 1 and overlap != usual["tensor_overlap"]:
        if overlap == "decomposed" and p.sequence_parallel:
            _set(s, "tp-comm-overlap", True, tensor_overlap="decomposed")
        elif overlap == "weight-gradient" and s.is_dataclass and p.sequence_parallel:
            _set(s, "tp-comm-overlap", False, tensor_overlap="weight-gradient")
        elif overlap == "none":
            _set(s, "no-async-tensor-model-parallel-allreduce", True, tensor_overlap="none")
    if p.cp > 1 and s.habit("context_exchange") != usual["context_exchange"]:
        row = next(key for key in keys(KEYS) if key.name == "cp-comm-type")
        _set(
            s,
            "cp-comm-type",
            row.word(s.habit("context_exchange")),
            context_exchange=s.habit("context_exchange"),
        )
    if p.pp > 1:
        _put_messages(s, usual)
    if s.scenario.transformer.moe is not None:
        _put_dispatch(s, usual)


def _put_dispatch(s: Settings, usual: Mapping[str, Any]) -> None:
    row = next(key for key in keys(KEYS) if key.name == "moe-token-dispatcher-type")
    dispatch = s.habit("expert_dispatch")
    if not s.is_dataclass:
        s.changes["expert_dispatch"] = "all-gather"
    _set(s, "moe-token-dispatcher-type", row.word(dispatch), expert_dispatch=dispatch)
    if s.habit("expert_overlap") == "microbatch" != usual["expert_overlap"]:
        _set(s, "overlap-moe-expert-parallel-comm", True, expert_overlap="microbatch")
    elif s.habit("expert_overlap") == "shared-expert" != usual["expert_overlap"]:
        _set(s, "moe-shared-expert-overlap", True, expert_overlap="shared-expert")


def _put_messages(s: Settings, usual: Mapping[str, Any]) -> None:
    sends = s.habit("blocking_sends")
    if sends != usual["blocking_sends"]:
        if sends == "always":
            _set(s, "no-overlap-p2p-communication", True, blocking_sends="always")
        elif sends == "plain":
            _set(s, "overlap-p2p-communication", True, blocking_sends="plain")
    if s.habit("overlap_warmup_flush") and not usual["overlap_warmup_flush"]:
        _set(s, "overlap-p2p-communication-warmup-flush", True, overlap_warmup_flush=True)
    if usual["scatter_gather"] and not s.habit("scatter_gather"):
        _set(s, "no-scatter-gather-tensors-in-pipeline", True, scatter_gather=False)
