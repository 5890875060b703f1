"""Switches by which Megatron's software differs from a version's preset, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mpsim.formats.megatron_settings import Reading, Writing
from mpsim.formats.words import Key, keys, keys_to
from mpsim.framework import framework

_FRAMEWORK = "framework."
_WIDE = {"gradient_bytes": 4, "weight_grad_bytes": 4, "accumulation_traffic": 0.0}
_NARROW = {"gradient_bytes": 2, "weight_grad_bytes": 2}


class _Change(NamedTuple):
    """A field of the framework that settings decide."""

    names: list[str]
    field: str
    value: object
    why: str = "Megatron's default"


def _counts(row: Key, scenario: Mapping[str, Any]) -> bool:
    """Whether a row's condition holds for a scenario by dotted keys."""
    if row.when in ("tp", "pp", "cp"):
        return int(scenario.get(f"parallelism.{row.when}") or 1) > 1
    if row.when in ("gated", "plain"):
        return bool(scenario.get("model.gated_mlp")) == (row.when == "gated")
    if row.when == "experts":
        return scenario.get("model.moe.experts") is not None
    return row.when != "zero" or bool(scenario.get("parallelism.zero"))


def _rows(scenario: Mapping[str, object]) -> Iterator[tuple[Key, str]]:
    """Rows of the table that decide a field of the framework alone, and the field."""
    for row in keys("megatron"):
        decides = row.says is not None or (row.values and row.when)
        if decides and row.to.startswith(_FRAMEWORK) and _counts(row, scenario):
            yield row, row.to.removeprefix(_FRAMEWORK)


def _preset(given: Reading) -> str:
    """The preset of the era, or that of Megatron-FSDP, which shards all states."""
    fsdp = given.on("use-megatron-fsdp") and given.since("core_v0.14.0")
    return "megatron-fsdp" if fsdp and given.scenario("parallelism.zero") == 3 else given.preset


def read_habits(given: Reading) -> None:
    """Put the preset of the era, and the switches that differ from its habits, into the ledger."""
    preset = _preset(given)
    stated = [] if preset == given.preset else ["use-megatron-fsdp"]
    given.put(stated, "framework.preset", preset, "the preset of the version")
    usual = framework(preset, {}).fields()
    for change in _changes(given, usual):
        if usual[change.field] != change.value:
            given.put(change.names, f"{_FRAMEWORK}{change.field}", change.value, change.why)


def _buffers(given: Reading, usual: Mapping[str, object]) -> Iterator[_Change]:
    """User buffers of tensor parallelism, which a preset may have and a run may lack."""
    tp, name, to = given.scenario("parallelism.tp", 1), "tp-comm-overlap", "tensor_overlap"
    divided = given.scenario("parallelism.sequence_parallel")
    if given.on(name) and tp > 1:
        if divided:
            yield _Change([name], to, "decomposed")
        else:
            given.refuse(name, "needs --sequence-parallel")
    elif usual[to] == "decomposed" and tp > 1 and (name in given.values or not divided):
        yield _Change([name], to, "weight-gradient", "user buffers need sequence parallelism")


def _changes(given: Reading, usual: Mapping[str, object]) -> Iterator[_Change]:
    """Fields of the framework that the settings decide."""
    yield from _data_changes(given)
    yield from _buffers(given, usual)
    yield from _gradient_changes(given)
    yield from _attention_changes(given)
    if given.scenario("model.moe.experts") is not None and not given.on("moe-grouped-gemm"):
        # SequentialMLP: a loop in Python over modules of one expert each
        yield _Change(["moe-grouped-gemm"], "grouped_gemm", False)
        yield _Change(["moe-grouped-gemm"], "product_launch_cost", 0.0)
    decided = {"tensor_overlap"} if given.on("tp-comm-overlap") else set()
    for row, field in _rows(given.ledger.scenario):
        if row.values:
            sends = field == "expert_dispatch" and not given.is_dataclass
            word = "allgather" if sends else None  # what the command line's default says
            value = given.meant(row.name, word)
        else:
            value = row.says if given.on(row.name) else None
        if value is not None and field not in decided:
            decided.add(field)
            yield _Change([row.name], field, value)


def _data_changes(given: Reading) -> Iterator[_Change]:
    stays = keys_to("megatron", f"{_FRAMEWORK}reshard_after_forward")[0].name
    if given.on("use-torch-fsdp2") and given.on(stays):
        yield _Change([stays], "reshard_after_forward", False)
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
    size = keys_to("megatron", "framework.bucket_bytes")[0].name
    bucket = given.integer(size)
    if bucket is not None:
        yield _Change([size], "bucket_bytes", f"{bucket * (4 if wide else 2)} B")
        yield _Change([size], "bucket_bytes_per_replica", "0 B")
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
    """Put switches: values that bring what a reader takes nearer to the run's habits are kept."""
    chosen = put.run.framework
    wanted = framework(chosen.preset, chosen.overrides).fields()
    missed = _missed(put, put.given, wanted)
    for row in keys("megatron"):
        field = row.to.removeprefix(_FRAMEWORK)
        is_flag = put.is_dataclass and row.always == "flag"
        if field == row.to or is_flag or not (put.has(row.name) and _counts(row, put.values)):
            continue
        says = row.always == "file" or (row.always == "dataclass" and put.is_dataclass)
        for value in _tries(row, wanted, is_dataclass=put.is_dataclass):
            tried = {**put.given, row.name: value}
            left = _missed(put, tried, wanted)
            if (field not in left and (len(left) < len(missed) or says)) or (
                says and value is False
            ):
                put.given, missed = tried, left
                break


def _tries(row: Key, wanted: Mapping[str, Any], *, is_dataclass: bool) -> Sequence[object]:
    """Values of a setting that may say a field of the framework."""
    if row.kind == "elements":  # a flag says one size for any number of replicas
        size = 0 if wanted["bucket_bytes_per_replica"] else wanted["bucket_bytes"]
        return [int(size // each) for each in (4, 2) if size and size % each == 0]
    tries = row.tries or list(row.values) or [True]
    return [value for value in tries if value is not False or is_dataclass]


def _missed(put: Writing, given: Mapping[str, object], wanted: Mapping[str, object]) -> set[str]:
    """Fields of the framework that a reader of these settings takes otherwise."""
    reading = put.reading(given)
    preset = _preset(reading)
    usual = framework(preset, {}).fields()
    changes = {change.field: change.value for change in _changes(reading, usual)}
    found = framework(preset, changes).fields()
    return {field for field, value in wanted.items() if value != found[field]}
