"""Runs: a row of a training table as a scenario, and what the simulator says of it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from mpsim.calibration.validate.assumptions import Filled, fill_in, slices_of, system_of
from mpsim.calibration.validate.machines import gpu, links_of, nic_named
from mpsim.calibration.validate.rows import Cells
from mpsim.calibration.validate.tables import lookup, table
from mpsim.errors import CalibrationError
from mpsim.result import simulate
from mpsim.result.memory import memory_constants
from mpsim.scenario import Scenario

__all__ = ["filled", "rule_of", "scenario_of", "simulated"]

_LAYER_PARTS = ("forward", "backward", "weight_gradient", "recompute", "exposed_tp")
_ENDS = 2  # embedding and head, where they take the place of a layer each


def rule_of(cells: Cells) -> Mapping[str, Any]:
    """The first family of the table whose words all occur in the row, with what it says of such rows besides."""
    for entry in table("training")["families"]:
        if _fits(cells, entry):
            rule = dict(entry)
            for more in entry.get("also", ()):
                if _fits(cells, more):
                    rule = _on_top(rule, more)
            return rule
    raise CalibrationError("no family fits the row")


def _fits(cells: Cells, entry: Mapping[str, Any]) -> bool:
    return all(word in cells.text(column) for column, word in entry["where"].items())


def _on_top(rule: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A rule with another on top of it, mappings key by key."""
    merged = {
        key: {**rule.get(key, {}), **value} if isinstance(value, Mapping) else value
        for key, value in more.items()
        if key != "where"
    }
    return {**rule, **merged}


def filled(cells: Cells, rule: Mapping[str, Any]) -> Filled:
    """The row with what its family, and then what is usual, has where columns are empty."""
    found = fill_in(cells, rule)
    more = tuple(f"precision: {entry}" for entry in _told("precisions", found.cells, "precision"))
    if not any(words in found.cells.text("recompute") for words in rule.get("recomputations", {})):
        told = _told("recomputations", found.cells, "recompute")
        more += tuple(f"recompute: {entry}" for entry in told)
    more += tuple(
        f"attention: {entry}" for entry in _told("attention", found.cells, "attention_type")
    )
    return Filled(found.cells, (*found.assumed, *more))


def _told(section: str, cells: Cells, column: str) -> list[str]:
    """What an entry of a table says that it leaves out, where it says so."""
    try:
        entry = lookup("training", section, cells.text(column))
    except CalibrationError:
        return []
    return [str(entry["assumed"])] if "assumed" in entry else []


def scenario_of(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario that a row describes, as a file would hold it.

    Parameters
    ----------
    cells : Cells
        Configuration columns of published runs.
    rule : mapping
        What its family leaves unsaid.

    Raises
    ------
    CalibrationError
        If the row does not say enough, or says what is not simulated.
    """
    _refuse(cells, rule)
    return {
        "schema": 1,
        "model": _model(cells, rule),
        "cluster": _cluster(cells),
        "parallelism": _parallelism(cells, rule),
        "schedule": _schedule(cells),
        "training": {
            "global_batch": cells.required("global_batch_seqs"),
            "micro_batch": cells.required("micro_batch_seqs"),
            "sequence_length": cells.required("seq_len"),
            "precision": lookup("training", "precisions", cells.text("precision"))["precision"],
            **_recompute(cells, rule),
        },
        "framework": dict(rule["framework"]),
    }


def simulated(scenario: Mapping[str, Any], *, layer: bool, seen: str) -> tuple[float, float]:
    """Time and peak memory of a scenario.

    Parameters
    ----------
    scenario : mapping
    layer : bool
        Whether the time is that of one layer, forward and backward, instead of a step.
    seen : str
        Memory as ``memory`` (all of it), ``reserved`` (by the framework's allocator, without what libraries take beside it) or
        ``allocated`` (handed out by it, without fragments too).

    Returns
    -------
    float
        Time [s].
    float
        Memory of the fullest rank [B].
    """
    if layer:
        one, two = (_outcome(_with_layers(scenario, layers)) for layers in (1, 2))
        return two["layers"] - one["layers"], one[seen]
    outcome = _outcome(json.dumps(scenario, sort_keys=True))
    return outcome["step"], outcome[seen]


def _with_layers(scenario: Mapping[str, Any], layers: int) -> str:
    return json.dumps(
        {**scenario, "model": {**scenario["model"], "layers": layers}}, sort_keys=True
    )


@functools.lru_cache(maxsize=4096)
def _outcome(scenario: str) -> Mapping[str, float]:
    """What is read of a simulation; equal scenarios are simulated once."""
    result = simulate(Scenario.from_mapping(json.loads(scenario)))
    memory = result.summary["memory"]
    return {
        "step": float(result.summary["step_time_s"]),
        "layers": float(sum(result.breakdown[part] for part in _LAYER_PARTS)),
        "memory": float(memory["total"]),
        "reserved": float(memory["total"]) - memory_constants()["context"],
        "allocated": float(memory["total"] - memory["overhead"]),
    }


def _refuse(cells: Cells, rule: Mapping[str, Any]) -> None:
    """Refuse what is not simulated, before anything else is asked of the row."""
    if "refused" in rule:
        raise CalibrationError(rule["refused"])
    lookup("training", "attention", cells.text("attention_type"))
    if cells.text("zero_stage"):
        lookup("training", "sharding", cells.text("zero_stage"))


def _model(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    if "preset" in rule["model"]:
        return {**rule["model"], "layers": cells.required("layers")}
    gated = cells.flag("gated_mlp")
    if gated is None:
        raise CalibrationError("gated_mlp is not stated")
    shape = {name: cells.required(name) for name in ("layers", "hidden", "heads", "vocab")}
    more = {name: cells.whole(name) for name in ("kv_heads", "head_dim", "ffn_hidden")}
    given = {name: value for name, value in more.items() if value is not None}
    style = table("training")["models"]["gated" if gated else "plain"]
    read = {
        "name": cells.text("model") or "run",
        **shape,
        **given,
        "gated_mlp": gated,
        **style,
        **_attention(cells),
        **_experts(cells),
    }
    return _on_top(read, rule["model"])


def _attention(cells: Cells) -> dict[str, Any]:
    """Latent attention or a window, where the words of the row give one."""
    text = cells.text("attention_type")
    entry = lookup("training", "attention", text)
    if "mla" in entry:
        found = re.fullmatch(entry["pattern"], text)
        assert found is not None, "the pattern that was looked up fits"
        sizes = {name: int(found[place]) for place, name in enumerate(entry["mla"], start=1)}
        return {"mla": {**sizes, "qk_nope_head_dim": cells.required("head_dim")}}
    return dict(entry.get("model", {}))


def _experts(cells: Cells) -> dict[str, Any]:
    """Mixture of experts, where the row has one."""
    if not cells.whole("moe_experts"):
        if "deepseek" in cells.text("model").lower():
            raise CalibrationError("the experts of the model are not stated")
        return {}
    experts = {
        "experts": cells.required("moe_experts"),
        "top_k": cells.required("moe_topk"),
        "ffn_hidden": cells.required("moe_ffn_hidden"),
        "shared_experts": cells.whole("moe_shared_experts") or 0,
        "dense_layers": cells.whole("moe_dense_layers") or 0,
    }
    return {"moe": experts}


def _recompute(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    """What is run again: what the family's rule says its words mean, else what the words say."""
    text = cells.text("recompute")
    for words, meant in rule.get("recomputations", {}).items():
        if words in text:
            return dict(meant) if isinstance(meant, Mapping) else {"recompute": str(meant)}
    entry = lookup("training", "recomputations", text)
    said = {name: value for name, value in entry.items() if name.startswith("recompute")}
    if "layers" in entry:
        found = re.fullmatch(entry["pattern"], text)
        assert found is not None, "the pattern that was looked up fits"
        said["recompute_layers"] = int(found[1])
    return said


def _cluster(cells: Cells) -> dict[str, Any]:
    count = cells.required("num_accel")
    chip = gpu(cells.text("accelerator"))
    each = min(count, cells.required("accel_per_node"))
    if count % each:
        raise CalibrationError(f"{count} accelerators do not fill nodes of {each}")
    if (system := system_of(cells.text("accelerator"))) and not cells.whole("nics_per_node"):
        return _torus(cells, system, count, each)
    joined, _ = links_of(chip, cells.text("intra_node_link"))
    cluster: dict[str, Any] = {
        "accelerator": chip.name,
        "accelerators_per_node": each,
        "nodes": count // each,
        "scale_up": joined.name,
    }
    return cluster if count == each else {**cluster, **_network(cells)}


def _torus(cells: Cells, system: str, count: int, each: int) -> dict[str, Any]:
    """Slices of a system whose accelerators are joined beyond the node."""
    slices = slices_of(cells)
    if count % (slices * each):
        raise CalibrationError(f"{count} accelerators do not divide into {slices} slices")
    nodes = {"preset": system, "nodes": count // each, "accelerators_per_node": each}
    return {**nodes, "domain": count // slices}


def _network(cells: Cells) -> dict[str, Any]:
    ports, rate = cells.whole("nics_per_node"), cells.number("nic_gbit_s")
    if not ports or not rate:
        raise CalibrationError("the network between nodes is not stated")
    nic = nic_named(cells.text("inter_node_link"), rate)
    return {"nics_per_node": ports, "nic": {"preset": nic.name, "bandwidth": f"{rate:g} Gb/s"}}


def _parallelism(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    degrees = {axis: cells.required(axis) for axis in ("tp", "pp", "dp")}
    degrees |= {axis: cells.whole(axis) or 1 for axis in ("cp", "ep")}
    if degrees["ep"] > 1 and "etp" in rule:
        degrees["etp"] = rule["etp"]
    return {
        **degrees,
        "sequence_parallel": bool(cells.flag("sequence_parallel")) and degrees["tp"] > 1,
        **_sharding(cells, rule, degrees["dp"]),
        **_layer_split(cells, degrees["pp"] * _chunks(cells)),
    }


def _sharding(cells: Cells, rule: Mapping[str, Any], dp: int) -> dict[str, Any]:
    """What replicas share, and among how many of them where it is not all."""
    text = cells.text("zero_stage")
    if not text:
        if dp > 1:
            raise CalibrationError("zero_stage is not stated")
        return {"zero": 0}
    entry = lookup("training", "sharding", text)
    shared = {"zero": int(rule.get("zero", entry["zero"]))}
    group = _group(cells, rule, entry, text)
    return shared if group in (None, dp) else {**shared, "shard": group}


def _group(
    cells: Cells, rule: Mapping[str, Any], entry: Mapping[str, Any], text: str
) -> int | None:
    """Ranks that share one copy, where words or the family's rule say so."""
    if entry.get("groups") == "node":
        if rule.get("shard") != "node":
            raise CalibrationError("how many ranks share one copy is not stated")
        return cells.required("accel_per_node")
    if entry.get("groups"):
        found = re.fullmatch(entry["pattern"], text)
        assert found is not None, "the pattern that was looked up fits"
        return int(found[1])
    return None


def _chunks(cells: Cells) -> int:
    return (cells.whole("vp_chunks_per_rank") or 1) if (cells.whole("pp") or 1) > 1 else 1


def _layer_split(cells: Cells, stages: int) -> dict[str, Any]:
    """How layers are divided: evenly, with the two ends counted, or as evenly as it goes, early stages first."""
    layers = cells.required("layers")
    pattern = table("training")["layer_splits"]["pattern"]
    counted = bool(re.fullmatch(pattern, cells.text("overlap_notes")))
    if stages == 1 or (layers % stages == 0 and not counted):
        return {}
    if (layers + _ENDS) % stages == 0:
        return {"embedding_counts_as_layer": True, "loss_counts_as_layer": True}
    each, more = divmod(layers + (_ENDS if counted else 0), stages)
    split = [each + (stage < more) for stage in range(stages)]
    if counted:
        split[0] -= 1
        split[-1] -= 1
    return {"layers_per_stage": split}


def _schedule(cells: Cells) -> dict[str, Any]:
    if cells.required("pp") == 1:
        return {"name": "1f1b"}
    name = lookup("training", "schedules", cells.text("schedule"))["name"]
    chunks = _chunks(cells)
    if name == "interleaved-1f1b" and chunks == 1:
        raise CalibrationError("vp_chunks_per_rank is not stated")
    return {"name": name, "virtual_stages": chunks} if chunks > 1 else {"name": name}
