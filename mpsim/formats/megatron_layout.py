"""Division of the work in Megatron's settings, and what a step trains on, read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mpsim.formats.ledger import MOST_LAYERS
from mpsim.formats.megatron_settings import Reading, Writing
from mpsim.formats.words import keys_to
from mpsim.inputs import shown

_AXES: Final = ("tp", "pp", "cp")
_CHUNKS: Final = (
    "num-virtual-stages-per-pipeline-rank",
    "virtual-pipeline-model-parallel-size",
    "num-layers-per-virtual-pipeline-stage",
)
_LAYOUT: Final = "pipeline-model-parallel-layout"
_FIRST: Final = ("decoder-first-pipeline-num-layers", "num-layers-in-first-pipeline-stage")
_LAST: Final = ("decoder-last-pipeline-num-layers", "num-layers-in-last-pipeline-stage")
_MODULES: Final = tuple("core_attn layernorm mlp moe_act moe shared_experts mla_up_proj".split())
_COUNTED: Final = ("parallelism.embedding_counts_as_layer", "parallelism.loss_counts_as_layer")


def mesh_of(given: Reading) -> Mapping[str, int]:
    """Degrees of the scenario so far."""
    return {axis: given.scenario(f"parallelism.{axis}", 1) for axis in (*_AXES, "ep")}


def read_layout(given: Reading, layers: int | None) -> None:
    """Put degrees, sharding, the order of ranks and the schedule into the ledger."""
    given.read("parallelism.tp", "parallelism.pp", "parallelism.cp", "parallelism.ep")
    mesh = mesh_of(given)
    if given.scenario("model.moe.experts") is not None:
        given.read("parallelism.etp")
        if given.scenario("parallelism.etp") is None and mesh["tp"] > 1:
            why = "without expert-tensor-parallel-size experts divide as the rest does"
            given.ledger.assume("parallelism.etp", mesh["tp"], why)
    sequence = given.on("sequence-parallel") and mesh["tp"] > 1
    given.put("sequence-parallel", "parallelism.sequence_parallel", sequence)
    if given.on("sequence-parallel") and not sequence:
        why = "without tensor parallelism Megatron switches it off"
        given.ledger.note("parallelism.sequence_parallel", why)
    _read_sharding(given)
    library = given.meant("distributed-backend", "nccl")
    if library not in ("nccl", None):
        given.put("distributed-backend", "cluster.library", library)
    given.read("parallelism.order")
    _read_schedule(given, mesh["pp"], layers)


def _read_sharding(given: Reading) -> None:
    """Which states data-parallel ranks share."""
    own, torch = ("use-megatron-fsdp", "use-custom-fsdp"), "use-torch-fsdp2"
    strategy = "data-parallel-sharding-strategy"
    usual = "optim_grads_params" if given.since("core_v0.18.0") else "no_shard"
    stage = given.meant(strategy, usual)
    distributed = int(given.on("use-distributed-optimizer"))
    if given.on(torch):
        given.put(torch, "parallelism.zero", 3)
    elif given.on(*own) and stage is not None:
        given.put([*own, torch, strategy], "parallelism.zero", max(stage, distributed))
    else:
        given.put("use-distributed-optimizer", "parallelism.zero", distributed)
    given.read("parallelism.offload")
    share, offloaded = "optimizer-offload-fraction", given.scenario("parallelism.offload")
    if share in given.keys and offloaded:
        names = [*(row.name for row in keys_to("megatron", "parallelism.offload")), share]
        given.put(names, "parallelism.offload", offloaded)
        if given.number(share) not in (None, 1.0):
            given.put([share], "parallelism.offload_fraction", given.number(share))


def _read_schedule(given: Reading, pp: int, layers: int | None) -> None:
    """Put the schedule and the layers of every stage into the ledger."""
    given.read(*_COUNTED)
    ends = sum(bool(given.scenario(end)) for end in _COUNTED)
    layout = given.text(_LAYOUT)
    names = [name for name in _CHUNKS if name in given.keys] or [_LAYOUT]
    if layout is not None:
        chunks = _read_stages(given, layout, pp, layers)
    else:
        chunks = _read_chunks(given, pp, layers, ends)
    if chunks is None:
        return
    if pp == 1 and chunks > 1:
        given.ledger.refuse(f"{given.keys[names[0]]}: virtual stages need pipeline parallelism")
        return
    given.put(names, "schedule.name", "interleaved-1f1b" if chunks > 1 else "1f1b")
    if chunks > 1:
        given.put(names, "schedule.virtual_stages", chunks)
    uneven = any(name in given.keys for name in (*_FIRST, *_LAST))
    if uneven and layout is None and layers is not None:
        _read_ends(given, pp, chunks, layers)


def _read_chunks(given: Reading, pp: int, layers: int | None, ends: int) -> int | None:
    """Chunks of a rank, as stated or as its layers make; None where they do not divide."""
    chunks = given.integer(_CHUNKS[0]) or given.integer(_CHUNKS[1]) or 1
    each = given.integer(_CHUNKS[2])
    if each is None or layers is None:
        return chunks
    if (layers + ends) % (pp * each):
        needed = f"needed a divisor of {(layers + ends) // pp}"
        why = f"{layers + ends} layers on {pp} stages are no whole chunks of {each}; {needed}"
        given.refuse(_CHUNKS[2], why)
        return None
    return (layers + ends) // pp // each


def _read_ends(given: Reading, pp: int, chunks: int, layers: int) -> None:
    """Fewer or more layers on the first and last pipeline rank, divided evenly among chunks."""
    if max(pp, chunks) > MOST_LAYERS:  # said where the degrees are put
        return
    first, last = given.integer(given.first(*_FIRST)), given.integer(given.first(*_LAST))
    inner = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    stated = [name for name in (*_FIRST, *_LAST) if name in given.keys]
    counts = [rest // inner if inner > 0 else 0] * pp
    counts[0] = counts[0] if first is None else first
    counts[-1] = counts[-1] if last is None else last
    if rest < 0 or inner < 0 or sum(counts) != layers or any(count % chunks for count in counts):
        names = ", ".join(given.keys[name] for name in stated)
        why = f"{layers} layers do not divide among {pp} stages of {chunks} chunks with these ends"
        given.ledger.refuse(f"{names}: {why}")
        return
    stages = [counts[rank] // chunks for _ in range(chunks) for rank in range(pp)]
    given.put(stated, "parallelism.layers_per_stage", stages)


def _read_stages(given: Reading, text: str, pp: int, layers: int | None) -> int | None:
    """Layers of every stage as a layout string lists them; returns the chunks of a rank."""
    expanded = _expanded(text)
    if expanded is None:
        why = f"got {shown(text)}; needed stages such as 'Et*3|(tt|)*29,m|L'"
        given.refuse(_LAYOUT, why)
        return None
    stages = expanded.split("|")
    counts = [stage.count("t") + stage.count("m") for stage in stages]
    plain = sum(stage.count("t") for stage in stages)
    if len(stages) % pp or (layers is not None and plain != layers):
        got = f"{len(stages)} stages with {plain} layers"
        given.refuse(_LAYOUT, f"{got}; needed a multiple of {pp} stages with {layers} layers")
        return None
    given.put(_LAYOUT, "parallelism.layers_per_stage", counts)
    return len(stages) // pp


def _expanded(text: str) -> str | None:
    """A layout string with its repetitions written out; None where it is none."""
    text = re.sub(r"[\s,'\"]", "", text)
    while (match := re.search(r"\(([^()]*)\)\*(\d{1,4})", text)) is not None:
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
        if len(text) > 20_000:
            return None
    if sum(int(count) for count in re.findall(r"\*(\d{1,6})", text)) > 20_000:
        return None
    text = re.sub(r"([A-Za-z|])\*(\d{1,4})", lambda match: match[1] * int(match[2]), text)
    return text if re.fullmatch(r"[EtmL|]+", text) else None


def check_mesh(given: Reading, ranks: int | None) -> None:
    """Refuse degrees that do not divide what they must."""
    mesh = mesh_of(given)
    tp, pp, cp, ep = mesh.values()
    each = tp * pp * cp
    if ranks is not None and ranks % each:
        words = f"tp {tp} x pp {pp} x cp {cp} = {each}"
        given.ledger.refuse(f"{ranks} accelerators do not divide by {words}")
        return
    heads, experts = given.scenario("model.heads"), given.scenario("model.moe.experts")
    if heads is not None and heads % tp:
        given.refuse("model.heads", f"{heads} heads do not divide among tp {tp}")
    if experts is not None and experts % ep:
        given.refuse("parallelism.ep", f"{experts} experts do not divide among ep {ep}")
    layers = given.scenario("model.layers", 0) - given.scenario("model.mtp_layers", 0)
    for end in ("embedding", "loss"):
        layers += bool(layers and given.scenario(f"parallelism.{end}_counts_as_layer"))
    stages = pp * given.scenario("schedule.virtual_stages", 1)
    if given.scenario("parallelism.layers_per_stage") is None and layers % stages:
        given.refuse("num-layers", f"{layers} layers do not divide among {stages} stages")
    micro, batch = given.scenario("training.micro_batch"), given.scenario("training.global_batch")
    if ranks is not None and micro and batch and batch % (micro * (ranks // each)):
        why = f"{batch} sequences do not divide by micro-batch {micro} x dp {ranks // each}"
        given.refuse("training.global_batch", why)


def read_training(given: Reading, ranks: int | None) -> None:
    """Put batches, precision and recomputation into the ledger."""
    mesh = mesh_of(given)
    each = mesh["tp"] * mesh["pp"] * mesh["cp"]
    given.read("training.micro_batch", "training.global_batch")
    micro = given.scenario("training.micro_batch")
    if given.scenario("training.global_batch") is None:
        if micro is not None and ranks is not None and ranks % each == 0 and ranks >= each:
            why = "one microbatch for each data-parallel replica"
            given.ledger.assume("training.global_batch", micro * (ranks // each), why)
        else:
            given.ledger.ask("training.global_batch")
    given.read("training.sequence_length")
    _read_precision(given)
    _read_recompute(given)


def _read_precision(given: Reading) -> None:
    variant = "hybrid" if given.on("fp8-hybrid") else "e4m3" if given.on("fp8-e4m3") else None
    narrow = given.text("fp8-format")
    if given.on("fp8-format"):  # NeMo's switch, with the format beside it
        narrow = variant or "e4m3"
    elif "fp8-format" not in given.values:
        narrow = variant
    if given.text("fp4-format") is not None:
        given.put(["fp4-format", "fp4-recipe"], "training.precision", "nvfp4")
    elif narrow is not None:
        meant = given.meant("fp8-recipe", "delayed")
        if meant is not None:
            names = ["fp8-format", "fp8-hybrid", "fp8-e4m3", "fp8-recipe"]
            given.put(names, "training.precision", meant)
    else:
        wide = next((name for name in ("bf16", "fp16") if given.on(name)), "fp32")
        given.put(["bf16", "fp16"], "training.precision", wide)


def _read_recompute(given: Reading) -> None:
    method = keys_to("megatron", "training.recompute_method")[1].name
    old = given.stated("checkpoint-activations", method)
    how = given.text("recompute-granularity")
    if how is None and given.on("recompute-activations"):
        how = "selective"
    how = "full" if old else how
    if how not in (None, "full", "selective"):
        given.refuse("recompute-granularity", f"got {shown(how)}; needed full or selective")
        return
    names = ["recompute-granularity", "recompute-activations", *old]
    given.put(names, "training.recompute", how or "none")
    if how == "full":
        given.read("training.recompute_method", "training.recompute_layers")
    elif how == "selective":
        _read_modules(given)
    elif given.on("moe-layer-recompute"):
        given.put("moe-layer-recompute", "training.recompute", "selective")
        given.put("moe-layer-recompute", "training.recompute_modules", ["moe"])


def _read_modules(given: Reading) -> None:
    modules, more = given.values.get("recompute-modules"), given.on("moe-layer-recompute")
    if modules is None or modules is True:
        modules = "core_attn" if more else ""
    listed = modules if isinstance(modules, list) else str(modules).replace(",", " ").split()
    listed = [*listed, "moe"] if more and "moe" not in listed else listed
    known = [module for module in listed if module in _MODULES]
    if known:
        names = ["recompute-modules", "moe-layer-recompute"]
        given.put(names, "training.recompute_modules", known)
    if len(known) < len(listed):
        others = ", ".join(str(module)[:20] for module in listed if module not in _MODULES)
        given.ledger.warn(f"{given.place('recompute-modules')}: {others} are not simulated")


def write_layout(put: Writing) -> None:
    """Put degrees, sharding and the schedule into the settings."""
    p = put.run.parallelism
    put.write("parallelism.tp", "parallelism.pp")
    put.write(*(f"parallelism.{axis}" for axis in ("cp", "ep") if getattr(p, axis) > 1))
    if put.run.transformer.moe is not None and p.etp is not None:
        put.write("parallelism.etp")
    if p.sequence_parallel and p.tp > 1:
        put.put("sequence-parallel", True)
    _write_sharding(put)
    put.write("parallelism.order")
    _write_schedule(put)


def _write_sharding(put: Writing) -> None:
    p = put.run.parallelism
    if p.zero == 1:
        put.put("use-distributed-optimizer", True)
    elif p.zero > 1:
        fsdp = "use-megatron-fsdp" if put.has("use-megatron-fsdp") else "use-custom-fsdp"
        if put.put(fsdp, True):
            row = next(row for row in keys_to("megatron", "parallelism.zero") if row.values)
            put.put(row.name, row.word(p.zero))
            put.given["use-distributed-optimizer"] = True
    if p.offload_to == "host":
        put.write("parallelism.offload")


def _write_schedule(put: Writing) -> None:
    p, schedule, model = put.run.parallelism, put.run.schedule, put.run.transformer
    usual = schedule.name in ("1f1b", "interleaved-1f1b")
    chunks = put.run.virtual_stages if usual else 1
    if put.run.stage_layers is not None:
        _write_stages(put, list(put.run.stage_layers), chunks)
        return
    put.write(*_COUNTED)
    if chunks == 1 or p.pp == 1:
        return
    if put.is_dataclass:
        put.given[_CHUNKS[1]] = chunks
    elif put.has(_CHUNKS[0]):
        put.put(_CHUNKS[0], chunks)
    else:
        layers = model.layers + p.embedding_counts_as_layer + p.loss_counts_as_layer
        put.put(_CHUNKS[2], layers // p.pp // chunks)


def _write_stages(put: Writing, counts: list[int], chunks: int) -> None:
    """Layers of every stage as a layout string, or by the two ends where that says it."""
    further = put.run.transformer.mtp_layers
    if put.has(_LAYOUT):
        stages = ["t" * count for count in counts]
        stages[0] = "E" + stages[0]
        if further:
            stages[-1] = stages[-1].removesuffix("t" * further) + "m" * further
        stages[-1] += "L"
        put.put(_LAYOUT, "|".join(stages))
    elif chunks == 1 and put.run.parallelism.pp > 2 and len(set(counts[1:-1])) == 1:
        put.put(_FIRST[0], counts[0])
        put.put(_LAST[0], counts[-1])
    else:
        put.why["parallelism.layers_per_stage"] = f"--{_LAYOUT} came with core_v0.13.0"


def write_training(put: Writing) -> None:
    """Put batches, precision and recomputation into the settings."""
    put.write("training.micro_batch")
    if put.has_any("training.global_batch"):
        put.write("training.global_batch")
    else:
        put.why["training.global_batch"] = "this version has one microbatch a step"
    put.write("training.sequence_length")
    _write_precision(put, put.run.training_step.precision)
    _write_recompute(put)


def _write_precision(put: Writing, precision: str) -> None:
    if precision in ("bf16", "fp16"):
        put.put(precision, True)
    if precision in ("bf16", "fp16", "fp32"):
        return
    put.given["bf16"] = True
    row = keys_to("megatron", "training.precision")
    recipe = next((item.word(precision) for item in row if item.values), None)
    if recipe is not None:
        # before --fp8-recipe came, scaling was delayed and nothing else
        if put.put("fp8-format", "hybrid") and (
            recipe != "delayed" or put.has("fp8-recipe") or put.is_dataclass
        ):
            put.put("fp8-recipe", recipe)
    elif precision == "nvfp4":
        put.put("fp4-format", "e2m1")


def _write_recompute(put: Writing) -> None:
    training = put.run.training_step
    how, modules = training.recompute, training.recompute_modules
    method, layers = "training.recompute_method", "training.recompute_layers"
    if how == "full":
        if put.has("recompute-granularity"):
            put.put("recompute-granularity", how)
        elif not put.has_any(method):
            put.put("checkpoint-activations", True)
        if put.has_any(method):
            put.write(method, usual="uniform")
            put.write(layers, usual=1)
        elif training.recompute_method in (None, "uniform"):
            put.write(layers, usual=1)
    elif how == "selective":
        put.put("recompute-granularity", how)
        if modules:
            text = list(modules) if put.is_dataclass else " ".join(modules)
            put.put("recompute-modules", text)
