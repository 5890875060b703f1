"""Settings of Megatron that divide the work: degrees, sharding, the schedule with its layers on stages, and the checks that they go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mpsim.formats.ledger import MOST_LAYERS, shortened
from mpsim.formats.megatron_settings import Settings

__all__ = ["check_mesh", "put_parallelism", "put_schedule"]


def put_parallelism(s: Settings) -> dict[str, int]:
    """Put degrees, sharding and the order of ranks into the ledger; returns the degrees."""
    tensor = (
        "model-parallel-size" if "model-parallel-size" in s.keys else "tensor-model-parallel-size"
    )
    degrees = {
        "tp": tensor,
        "pp": "pipeline-model-parallel-size",
        "cp": "context-parallel-size",
        "ep": "expert-model-parallel-size",
    }
    mesh: dict[str, int] = {}
    for axis, name in degrees.items():
        mesh[axis] = s.integer(name, least=1) or 1
        if axis in ("tp", "pp") or name in s.keys:
            s.put(name, f"parallelism.{axis}", mesh[axis])
    has_experts = s.has_experts
    etp = s.integer("expert-tensor-parallel-size", least=1)
    if etp is not None and has_experts:
        s.put("expert-tensor-parallel-size", "parallelism.etp", etp)
        mesh["etp"] = etp
    s.ignore("expert-tensor-parallel-size", "without experts it does nothing")
    sequence = s.on("sequence-parallel") and mesh["tp"] > 1
    s.put("sequence-parallel", "parallelism.sequence_parallel", sequence)
    if s.on("sequence-parallel") and not sequence:
        s.ledger.note(
            "parallelism.sequence_parallel", "without tensor parallelism Megatron switches it off"
        )
    _sharding(s)
    library = s.meant("distributed-backend", "nccl")
    if library != "nccl" and library is not None:
        s.put("distributed-backend", "cluster.library", library)
    s.ignore("distributed-backend", "the library that the vendor ships")
    if s.on("use-tp-pp-dp-mapping"):
        s.put("use-tp-pp-dp-mapping", "parallelism.order", "tp-cp-ep-pp-dp")
    return mesh


def _sharding(s: Settings) -> None:
    """Which states data-parallel ranks share."""
    names = [
        "use-distributed-optimizer",
        "use-megatron-fsdp",
        "use-custom-fsdp",
        "use-torch-fsdp2",
        "data-parallel-sharding-strategy",
    ]
    usual = "optim_grads_params" if s.since_tag("core_v0.18.0") else "no_shard"
    stage = s.meant("data-parallel-sharding-strategy", usual)
    if stage is None:
        return
    if s.on("use-torch-fsdp2"):
        stays = s.on("torch-fsdp2-no-reshard-after-forward")
        s.put(
            ["use-torch-fsdp2", "torch-fsdp2-no-reshard-after-forward"],
            "parallelism.zero",
            2 if stays else 3,
        )
    elif s.on("use-megatron-fsdp") or s.on("use-custom-fsdp"):
        s.put(names[1:], "parallelism.zero", max(stage, int(s.on("use-distributed-optimizer"))))
    else:
        s.put(
            "use-distributed-optimizer", "parallelism.zero", int(s.on("use-distributed-optimizer"))
        )
    s.ignore(
        [*names, "torch-fsdp2-no-reshard-after-forward"], "another flag decides what is sharded"
    )
    if s.on("optimizer-cpu-offload"):
        fraction = s.number("optimizer-offload-fraction")
        s.put(
            ["optimizer-cpu-offload", "optimizer-offload-fraction"],
            "parallelism.offload",
            "optimizer",
        )
        if fraction not in (None, 1.0):
            s.ledger.warn(
                f"{s.place('optimizer-offload-fraction')}: a part of the optimizer is offloaded; all of it is simulated"
            )
    s.ignore(["optimizer-cpu-offload", "optimizer-offload-fraction"], "nothing is offloaded")


def put_schedule(s: Settings, mesh: Mapping[str, int], layers: int | None) -> None:
    """Put the schedule and the layers of every stage into the ledger."""
    pp = mesh["pp"]
    layout = s.text("pipeline-model-parallel-layout")
    each, chunks = s.integer("num-layers-per-virtual-pipeline-stage", least=1), None
    names = [
        "num-layers-per-virtual-pipeline-stage",
        "num-virtual-stages-per-pipeline-rank",
        "virtual-pipeline-model-parallel-size",
    ]
    for name in names[1:]:
        chunks = chunks or s.integer(name, least=1)
    uneven = any(name in s.keys for name in _ENDS)
    if layout is not None:
        chunks = _from_layout(s, layout, pp, layers)
    elif each is not None and layers is not None:
        ends = int(s.on("account-for-embedding-in-pipeline-split")) + int(
            s.on("account-for-loss-in-pipeline-split")
        )
        if (layers + ends) % (pp * each):
            s.ledger.refuse(
                f"{s.place('num-layers-per-virtual-pipeline-stage')}: {layers + ends} layers on {pp} stages are no whole chunks of {each}; needed a divisor of "
                f"{(layers + ends) // pp}"
            )
            return
        chunks = (layers + ends) // pp // each
    chunks = chunks or 1
    if pp == 1 and chunks > 1:
        s.ledger.refuse(
            f"{s.keys[next(name for name in (*names, 'pipeline-model-parallel-layout') if name in s.keys)]}: virtual stages need pipeline parallelism"
        )
        return
    s.put(
        [name for name in names if name in s.keys] or ["pipeline-model-parallel-layout"],
        "schedule.name",
        "interleaved-1f1b" if chunks > 1 else "1f1b",
    )
    if chunks > 1:
        s.put(
            [name for name in names if name in s.keys] or ["pipeline-model-parallel-layout"],
            "schedule.virtual_stages",
            chunks,
        )
    for name, to in (
        ("account-for-embedding-in-pipeline-split", "embedding_counts_as_layer"),
        ("account-for-loss-in-pipeline-split", "loss_counts_as_layer"),
    ):
        if s.on(name):
            s.put(name, f"parallelism.{to}", True)
        s.ignore(name, "off")
    if uneven and layout is None and layers is not None:
        _uneven(s, pp, chunks, layers)
    s.ignore(_ENDS, "the layout decides")


_ENDS: Final = (
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "num-layers-in-first-pipeline-stage",
    "num-layers-in-last-pipeline-stage",
)


def _uneven(s: Settings, pp: int, chunks: int, layers: int) -> None:
    """Fewer or more layers on the first and the last pipeline rank; each rank's are divided evenly among its chunks."""
    if max(pp, chunks) > MOST_LAYERS:  # said where the degrees are put
        return
    first = next((s.integer(name, least=1) for name in _ENDS[::2] if name in s.keys), None)
    last = next((s.integer(name, least=1) for name in _ENDS[1::2] if name in s.keys), None)
    inner = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    stated = [name for name in _ENDS if name in s.keys]
    each = rest // inner if inner > 0 else 0
    counts = [each] * pp
    if first is not None:
        counts[0] = first
    if last is not None:
        counts[-1] = last
    if rest < 0 or inner < 0 or sum(counts) != layers or any(count % chunks for count in counts):
        s.ledger.refuse(
            f"{', '.join(s.keys[name] for name in stated)}: {layers} layers do not divide among {pp} stages of {chunks} chunks with these ends"
        )
        return
    s.put(
        stated,
        "parallelism.layers_per_stage",
        [counts[rank] // chunks for _ in range(chunks) for rank in range(pp)],
    )


def _from_layout(s: Settings, text: str, pp: int, layers: int | None) -> int | None:
    """Layers of every stage as a layout string lists them; returns the chunks of a rank."""
    expanded = _expanded_layout(text)
    if expanded is None:
        s.ledger.refuse(
            f"{s.place('pipeline-model-parallel-layout')}: got {shortened(text)}; needed stages such as 'Et*3|(tt|)*29,m|L'"
        )
        return None
    stages = expanded.split("|")
    counts = [stage.count("t") + stage.count("m") for stage in stages]
    further = sum(stage.count("m") for stage in stages)
    if len(stages) % pp or (layers is not None and sum(counts) - further != layers):
        s.ledger.refuse(
            f"{s.place('pipeline-model-parallel-layout')}: {len(stages)} stages with {sum(counts) - further} layers; needed a multiple of {pp} stages with {layers} layers"
        )
        return None
    s.put("pipeline-model-parallel-layout", "parallelism.layers_per_stage", counts)
    return len(stages) // pp


def _expanded_layout(text: str) -> str | None:
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


def check_mesh(s: Settings, mesh: Mapping[str, int], ranks: int | None) -> None:
    """Refuse degrees that do not divide what they must."""
    scenario = s.ledger.scenario
    each = mesh["tp"] * mesh["pp"] * mesh["cp"]
    words = f"tp {mesh['tp']} x pp {mesh['pp']} x cp {mesh['cp']} = {each}"
    if ranks is not None and ranks % each:
        s.ledger.refuse(f"{ranks} accelerators do not divide by {words}")
        return
    heads = scenario.get("model.heads")
    if heads is not None and heads % mesh["tp"]:
        s.ledger.refuse(
            f"{s.place('num-attention-heads')}: {heads} heads do not divide among tp {mesh['tp']}"
        )
    layers = (scenario.get("model.layers") or 0) - (scenario.get("model.mtp_layers") or 0)
    ends = sum(
        bool(scenario.get(f"parallelism.{name}_counts_as_layer")) for name in ("embedding", "loss")
    )
    stages = mesh["pp"] * (scenario.get("schedule.virtual_stages") or 1)
    if layers and "parallelism.layers_per_stage" not in scenario and (layers + ends) % stages:
        s.ledger.refuse(
            f"{s.place('num-layers')}: {layers + ends} layers do not divide among {stages} stages"
        )
    experts = scenario.get("model.moe.experts")
    if experts is not None and experts % mesh["ep"]:
        s.ledger.refuse(
            f"{s.place('expert-model-parallel-size')}: {experts} experts do not divide among ep {mesh['ep']}"
        )
    micro, batch = scenario.get("training.micro_batch"), scenario.get("training.global_batch")
    if ranks is not None and micro and batch and batch % (micro * (ranks // each)):
        s.ledger.refuse(
            f"{s.place('global-batch-size')}: {batch} sequences do not divide by micro-batch {micro} x dp {ranks // each}"
        )
