"""Switches of Megatron by which its software differs from the preset of the version, read and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mpsim.formats.keys import Key, keys
from mpsim.formats.megatron_settings import Reading, Writing
from mpsim.framework import framework

__all__ = ["read_habits", "write_habits"]

_FRAMEWORK = "framework."
_WIDE = {"gradient_bytes": 4, "weight_grad_bytes": 4, "accumulation_traffic": 0.0}
_NARROW = {"gradient_bytes": 2, "weight_grad_bytes": 2}


class _Change(NamedTuple):
    """A field of the framework that settings decide."""

    names: list[str]
    field: str
    value: object


def _counts(row: Key, scenario: Mapping[str, Any]) -> bool:
    """Whether a row's condition holds for a scenario by dotted keys."""
    if row.when in ("tp", "pp", "cp"):
        return int(scenario.get(f"parallelism.{row.when}") or 1) > 1
    if row.when in ("gated", "plain"):
        return bool(scenario.get("model.gated_mlp")) == (row.when == "gated")
    if row.when == "experts":
        return scenario.get("model.moe.experts") is not None
    return row.when != "zero" or bool(scenario.get("parallelism.zero"))


def _rows(scenario: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Rows of the table that decide a field of the framework alone, and the field."""
    for row in keys("megatron"):
        decides = row.says is not None or (row.values and row.when)
        if decides and row.to.startswith(_FRAMEWORK) and _counts(row, scenario):
            yield row, row.to.removeprefix(_FRAMEWORK)


def _plain(habits: Mapping[str, Any]) -> dict[str, Any]:
    return {field: getattr(value, "value", value) for field, value in habits.items()}


def read_habits(given: Reading) -> None:
    """Put the preset of the era, and the switches that differ from its habits, into the ledger."""
    fsdp = given.on("use-megatron-fsdp") and given.since("core_v0.14.0")
    fsdp = fsdp and given.scenario("parallelism.zero") == 3
    preset = "megatron-fsdp" if fsdp else given.preset
    stated = ["use-megatron-fsdp"] if fsdp else []
    given.put(stated, "framework.preset", preset, "the preset of the version")
    usual = _plain(framework(preset, {}).fields())
    _read_buffers(given, usual)
    for change in _changes(given):
        if usual[change.field] != change.value:
            given.put(change.names, f"{_FRAMEWORK}{change.field}", change.value)


def _read_buffers(given: Reading, usual: Mapping[str, Any]) -> None:
    """User buffers of tensor parallelism, which a preset may have and a run may lack."""
    tp, name = given.scenario("parallelism.tp", 1), "tp-comm-overlap"
    if usual["tensor_overlap"] != "decomposed" or tp == 1 or given.on(name):
        return
    if name in given.values:
        given.put(name, "framework.tensor_overlap", "weight-gradient")
    elif not given.scenario("parallelism.sequence_parallel"):
        why = "user buffers need sequence parallelism"
        given.ledger.assume("framework.tensor_overlap", "weight-gradient", why)


def _changes(given: Reading) -> Iterator[_Change]:
    """Fields of the framework that the settings decide."""
    yield from _data_changes(given)
    if given.on("tp-comm-overlap") and given.scenario("parallelism.tp", 1) > 1:
        if given.scenario("parallelism.sequence_parallel"):
            yield _Change(["tp-comm-overlap"], "tensor_overlap", "decomposed")
        else:
            given.refuse("tp-comm-overlap", "needs --sequence-parallel")
    yield from _gradient_changes(given)
    yield from _attention_changes(given)
    decided = {"tensor_overlap"} if given.on("tp-comm-overlap") else set()
    for row, field in _rows(given.ledger.scenario):
        if row.values:
            usual = "allgather" if row.when == "experts" and not given.is_dataclass else None
            value = given.meant(row.name, usual)
        else:
            value = row.says if given.on(row.name) else None
        if value is not None and field not in decided:
            decided.add(field)
            yield _Change([row.name], field, value)


def _data_changes(given: Reading) -> Iterator[_Change]:
    if given.since("core_v0.4.0") and not given.on("use-torch-fsdp2"):
        word = "always" if given.on("overlap-grad-reduce") else "never"
        yield _Change(["overlap-grad-reduce"], "gradient_overlap", word)
        if given.scenario("parallelism.zero"):
            gathers = given.on("overlap-param-gather")
            yield _Change(["overlap-param-gather"], "parameter_gather_overlap", gathers)
    if given.text("DDP-impl") in ("local", "torch"):
        local = "without-pipeline" if given.since("v2.0") else "never"
        word = "always" if given.text("DDP-impl") == "torch" else local
        yield _Change(["DDP-impl"], "gradient_overlap", word)


def _gradient_changes(given: Reading) -> Iterator[_Change]:
    names = ["accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16"]
    narrow, unfused = given.on(names[1]), given.on("no-gradient-accumulation-fusion")
    wide = given.on(names[0])
    if names[0] not in given.values:  # bf16 switches it on
        wide = given.on("bf16") and given.since("v2.5") and not narrow
    stated = [name for name in names if name in given.keys] or ["bf16"]
    if wide or narrow:
        for field, value in (_WIDE if wide else _NARROW).items():
            if field != "accumulation_traffic" or not unfused:
                yield _Change(stated, field, value)
    if unfused:
        name = "no-gradient-accumulation-fusion"
        yield _Change([name], "accumulation_traffic", 8.0 if wide else 4.0)
    bucket = given.integer("ddp-bucket-size")
    if bucket is not None:
        yield _Change(["ddp-bucket-size"], "bucket_bytes", f"{bucket * (4 if wide else 2)} B")
        yield _Change(["ddp-bucket-size"], "bucket_bytes_per_replica", "0 B")
    clip = given.number("clip-grad")
    if clip is not None:
        yield _Change(["clip-grad"], "gradient_norm", clip > 0)


def _attention_changes(given: Reading) -> Iterator[_Change]:
    names = ["transformer-impl", "use-flash-attn", "attention-backend"]
    kernels, backend = given.text("transformer-impl"), given.text("attention-backend")
    core = given.since("core_v0.4.0")
    usual = "local" if core and not given.since("core_v0.6.0") else None
    fused = given.on("use-flash-attn") or backend in ("flash", "fused")
    if backend in ("unfused", "local") or ((kernels or usual) == "local" and not fused):
        yield _Change(names, "fused_attention", False)
    elif fused or kernels == "transformer_engine":
        yield _Change(names, "fused_attention", True)
        if given.on("use-flash-attn") and not core:
            kernel = "flash2" if given.since("23.06") else "flash1"
            yield _Change(names, "attention_kernel", kernel)


def write_habits(put: Writing) -> None:
    """Put switches by which the run differs from what a reader takes for its version into the settings."""
    fsdp = put.given.get("use-megatron-fsdp") and put.since("core_v0.14.0")
    if fsdp and put.scenario("parallelism.zero") == 3:
        put.preset = "megatron-fsdp"
    usual = _plain(framework(put.preset, {}).fields())
    _write_data(put, usual)
    _write_gradients(put, usual)
    _write_attention(put, usual)
    _write_buffers(put, usual)
    for row, field in _rows(put.out.values):
        value = put.habit(field)
        if row.when == "experts" and row.values:  # always written: its default is not the preset's
            if not put.is_dataclass:
                put.changes[field] = "all-gather"
            put.change(row.name, row.word(value), **{field: value})
        elif row.values and value != usual[field]:
            put.change(row.name, row.word(value), **{field: value})
        elif not row.values and value == row.says not in (usual[field], put.changes.get(field)):
            put.change(row.name, True, **{field: value})
    put.out.behave(put.preset, put.changes, tool=f"Megatron-LM {put.tag}")


def _write_data(put: Writing, usual: Mapping[str, Any]) -> None:
    overlap = put.habit("gradient_overlap")
    if put.since("core_v0.4.0"):
        put.changes["gradient_overlap"] = "never"
        if overlap == "always":
            put.change("overlap-grad-reduce", True, gradient_overlap="always")
        if put.scenario("parallelism.zero"):
            gathers = bool(put.habit("parameter_gather_overlap"))
            put.changes["parameter_gather_overlap"] = gathers
            if gathers:
                put.change("overlap-param-gather", True)
    elif overlap != usual["gradient_overlap"]:
        local = "without-pipeline" if put.since("v2.0") else "never"
        word = {"always": "torch", local: "local"}.get(overlap)
        put.change("DDP-impl", word, gradient_overlap=overlap)


def _write_gradients(put: Writing, usual: Mapping[str, Any]) -> None:
    wide = put.habit("gradient_bytes") == 4
    if put.is_dataclass:
        put.given["accumulate-allreduce-grads-in-fp32"] = wide
        put.changes |= _WIDE if wide else {}
    elif put.given.get("bf16") and put.since("v2.5"):
        if wide or not put.has("grad-reduce-in-bf16"):
            put.changes |= _WIDE
        else:
            put.change("grad-reduce-in-bf16", True, **_NARROW)
    elif wide:
        put.change("accumulate-allreduce-grads-in-fp32", True, **_WIDE)
    # what the reader makes of these switches: an era without grad-reduce-in-bf16 reduces bf16's gradients in 32 bits
    read = {**usual, **put.changes}
    unfused = 8.0 if read["gradient_bytes"] == 4 else 4.0
    if put.habit("accumulation_traffic") == unfused != read["accumulation_traffic"]:
        name = "no-gradient-accumulation-fusion"
        put.change(name, True, accumulation_traffic=unfused)
    bucket, size = put.habit("bucket_bytes"), 4 if wide else 2
    whole = bucket % size == 0 and not put.habit("bucket_bytes_per_replica")
    if bucket != usual["bucket_bytes"] and whole:
        changes = {"bucket_bytes": f"{bucket:.0f} B", "bucket_bytes_per_replica": "0 B"}
        put.change("ddp-bucket-size", int(bucket // size), **changes)
    clips = bool(put.habit("gradient_norm"))
    put.change("clip-grad", 1.0 if clips else 0.0, gradient_norm=clips)


def _write_attention(put: Writing, usual: Mapping[str, Any]) -> None:
    fused, core = bool(put.habit("fused_attention")), put.since("core_v0.4.0")
    if core and not put.since("core_v0.6.0") and not put.is_dataclass:
        put.changes["fused_attention"] = False
        if fused:
            put.change("transformer-impl", "transformer_engine", fused_attention=True)
    elif fused == usual["fused_attention"]:
        return
    elif fused:
        kernel = {} if core else {"attention_kernel": "flash2" if put.since("23.06") else "flash1"}
        put.change("use-flash-attn", True, fused_attention=True, **kernel)
    elif put.has("attention-backend"):
        put.change("attention-backend", "unfused", fused_attention=False)
    else:
        put.change("transformer-impl", "local", fused_attention=False)


def _write_buffers(put: Writing, usual: Mapping[str, Any]) -> None:
    p, overlap, name = put.run.parallelism, put.habit("tensor_overlap"), "tp-comm-overlap"
    if p.tp == 1:
        return
    if usual["tensor_overlap"] == "decomposed" and not p.sequence_parallel:
        put.changes["tensor_overlap"] = "weight-gradient"  # a reader knows that buffers need it
    elif overlap == usual["tensor_overlap"] or not p.sequence_parallel:
        return
    elif overlap == "decomposed":
        put.change(name, True, tensor_overlap="decomposed")
    elif overlap == "weight-gradient" and put.is_dataclass:
        put.change(name, False, tensor_overlap="weight-gradient")
