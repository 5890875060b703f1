"""Peaks: tables of measured peak memory of training runs, one configuration a row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.rows import Row
from bench.runs import reading_of, readings
from bench.tables import lookup, named, of_stack, on_top, rule_of, seen_as, table
from mpsim.errors import CalibrationError
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells
from mpsim.formats.words import gpu
from mpsim.scenario import Scenario
from mpsim.simulate import resolve
from mpsim.training.intervals import setting_of
from mpsim.training.memory.account import account_memory
from mpsim.training.memory.states import model_states
from mpsim.training.plan import Plan
from mpsim.validate.records import Record
from mpsim.workload.models import transformer_of

__all__ = ["MEASURED", "blank", "peak_of", "predict", "scenario_of"]

MEASURED = (
    *("outcome", "peak_value", "peak_unit", "peak_gib"),
    *("tokens_per_s_per_accel", "step_time_ms", "tflops_per_accel"),
)
_GIBI = 2.0**30
_BILLION = 1e9
_FAR, _OTHER = 0.03, 0.25  # parameters that differ by more are told; are those of another model
_NARROW_STATES = r"paged|8[- ]?bit|4[- ]?bit"
_SEVERAL = {
    "mlp": ("up", "down"),
    "all": ("query", "key", "value", "output", "up", "down"),
}  # words for several products
_NARROW = ("mxfp8", "nvfp4")


def blank(row: Row) -> list[Record]:
    """The row's record without a prediction; a run that ended for want of memory has no measured peak."""
    cells = row.configuration
    measured = row.measured.number("peak_gib")
    record = Record(
        id=row.id,
        family=cells.text("family") or "family not stated",
        kind="memory",
        unit="B",
        measured=None if measured is None else measured * _GIBI,
        size=cells.number("num_accel"),
    )
    return [record]


def predict(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Fill in the peak memory.

    Raises
    ------
    CalibrationError, ScenarioError
        If the row does not describe a run whose memory is accounted.
    """
    cells = row.configuration
    rule = _rule(cells)
    scenario, assumed = scenario_of(cells)
    plan = resolve(Scenario.from_mapping(scenario))
    statistic = _entry("statistics", cells.text("memory_statistic"), "memory", assumed)
    setting = seen_as(of_stack(setting_of(plan), rule), statistic["seen"])
    read = reading_of(statistic["seen"], rule)
    peak = peak_of(plan, read, last=rule.get("logs") == "last rank")
    _check_states(plan, cells)
    told = tuple(map(str, assumed))
    return [
        dataclasses.replace(record, predicted=peak, assumed=told, figure="memory", setting=setting)
        for record in blanks
    ]


def _check_states(plan: Plan, cells: Cells) -> None:
    """Refuse a row whose states alone are more than its accelerator has: optimizer, sharding or weights were not as its columns say."""
    capacity, states = cells.number("accel_mem_gb"), model_states(plan)
    needed = max(sum(part[rank] for part in states.values()) for rank in range(plan.layout.mesh.pp))
    if capacity and needed > capacity * _GIBI:
        raise CalibrationError(
            f"parameters, gradients and optimizer of the columns take {needed / _BILLION:.1f} GB alone, more than the {capacity:g} GB of an accelerator"
        )


def peak_of(plan: Plan, seen: str, *, last: bool = False) -> float:
    """Peak memory of the fullest rank as a tool reads it, or of the last one, where that alone writes logs [B].

    Parameters
    ----------
    plan : Plan
    seen : str
        One of the `bench.runs.readings`.
    last : bool
        Whether its software logs what the last rank's allocator says; a device reports itself.
    """
    memory = account_memory(plan)
    rank = -1 if last and seen != "memory" else memory.fullest
    return float(readings(plan, memory)[seen][rank])


def scenario_of(cells: Cells) -> tuple[dict[str, Any], list[Assumed]]:
    """The scenario that a row describes, as a file would hold it, and what was assumed for it.

    Parameters
    ----------
    cells : Cells
        Configuration columns.

    Raises
    ------
    CalibrationError
        If the row does not say enough, or says what is not simulated.
    """
    trains = lookup("peaks", "methods", cells.text("method"))
    method = str(trains["method"])
    rule, assumed = _rule(cells), list[Assumed]()
    assumed += [Assumed("framework", "", str(why)) for why in rule.get("assumed", ())]
    numbers = _numbers(cells)
    cells = _on_its_devices(cells, rule, numbers, assumed)
    steps = _entry("optimizers", cells.text("optimizer"), "optimizer", assumed)
    which = named("optimizers", cells.text("optimizer"))
    if "unnamed" in steps and (which is None or "told" in which):
        raise CalibrationError(steps["unnamed"])
    stepped = (which or {}).get("training", {}) | steps.get("training", {})
    framework = dict(rule["framework"])
    own = "optimizer" in stepped  # the catalog has its states
    paged = "" if own else _states(cells, method, assumed)
    for section, text in (
        ("weights", cells.text("base_weights")),
        ("states", paged if "zero" not in steps else ""),
        ("losses", cells.text("loss")),
    ):
        if section != "losses" and ("zero" in steps or rule.get("training")):
            continue  # a master copy beside the weights: the preset has its sizes
        framework |= _entry(section, text, section, assumed).get("framework", {})
    framework |= steps["framework"]
    precision = str(
        _entry("precisions", cells.text("compute_dtype"), "precision", assumed)["precision"]
    )
    training, schedule = _training(cells, numbers, precision, assumed)
    if method != "full":
        training |= {"method": method, "adapter": _adapter(cells, rule, assumed)}
    mesh = _parallelism(cells, steps)
    offload = _entry("offloads", cells.text("offload"), "offload", assumed)
    training |= offload.get("training", {}) | stepped | trains.get("training", {})
    mesh |= offload.get("parallelism", {})
    if training["global_batch"] > training["micro_batch"] * (cells.whole("dp") or 1):
        framework |= rule.get("accumulating", {})
    scenario = {
        "schema": 1,
        "model": _model(cells, rule, assumed),
        "cluster": _cluster(cells, precision, assumed),
        "parallelism": mesh,
        "schedule": schedule,
        "training": training,
        "framework": framework,
    }
    return scenario, assumed


def _rule(cells: Cells) -> Mapping[str, Any]:
    """The family of a row; of software that training runs know, what their table says of it."""
    rule = rule_of(cells, "peaks")
    if not rule.get("training"):
        return rule
    columns = {
        "framework": "software",
        "measured_date": "source_date",
        "precision": "compute_dtype",
        "overlap_notes": "notes",
    }
    renamed = {column: cells.text(name) for column, name in columns.items()}
    stage = str(lookup("training", "sharding", cells.text("sharding") or "none")["zero"])
    gated = "1" if _model(cells, {"model": {}}, [])["gated_mlp"] else "0"
    renamed |= {"zero_stage": stage, "family": "", "software": "", "gated_mlp": gated}
    known = rule_of(Cells({**cells.values, **renamed}))
    return {**known, **rule, "framework": {**known["framework"], **rule["framework"]}}


def _entry(section: str, text: str, to: str, assumed: list[Assumed]) -> Mapping[str, Any]:
    """The entry that words mean; a guess is told."""
    entry = lookup("peaks", section, text)
    if "assumed" in entry:
        assumed.append(Assumed(to, "", str(entry["assumed"])))
    return entry


def _states(cells: Cells, method: str, assumed: list[Assumed]) -> str:
    """Words for the format of the optimizer's states: those of the row, else that of what trains, as torch's optimizers have it."""
    stated = cells.text("optimizer_states_dtype")
    if stated or re.search(_NARROW_STATES, cells.text("optimizer"), re.IGNORECASE):
        return stated or cells.text("optimizer")
    weights = cells.text("base_weights") if method == "full" else "fp32"
    if weights:
        why = "states have the format of the parameters that train"
        assumed.append(Assumed("optimizer_states_dtype", weights, why))
    return weights


def _numbers(cells: Cells) -> dict[str, int]:
    """Numbers that stand in the notes of a row, by what they are."""
    found = {
        name: re.search(pattern, cells.text("notes"), flags=re.IGNORECASE)
        for name, pattern in table("peaks")["numbers"].items()
    }
    return {name: int(match[1]) for name, match in found.items() if match}


def _on_its_devices(
    cells: Cells, rule: Mapping[str, Any], numbers: Mapping[str, int], assumed: list[Assumed]
) -> Cells:
    """The row on as many devices as the run's own file asks for, where the notes quote it and the columns have those of the machine."""
    count = numbers.get("devices")
    if count is None or count >= cells.required("num_accel"):
        return cells
    instead = {"num_accel": str(count), "dp": str(count)}
    if count == 1:
        instead |= {name: str(value) for name, value in rule.get("one_device", {}).items()}
    assumed.append(Assumed("num_accel", str(count), "the run's own file asks for as many"))
    return Cells({**cells.values, **instead})


def _cluster(cells: Cells, precision: str, assumed: list[Assumed]) -> dict[str, Any]:
    name, count = cells.text("accelerator"), cells.required("num_accel")
    try:
        chip = gpu(re.sub(r"\(.*", "", name).strip()).name
    except CalibrationError:
        lent = table("peaks")["stand_in"]
        chip = lent["narrow" if precision in _NARROW else "wide"]
        assumed.append(Assumed("accelerator", str(chip), f"{name or 'it'} is {lent['why']}"))
    each = min(count, 8)
    if count % each:
        raise CalibrationError(f"num_accel is {count}; needed a multiple of 8, or fewer")
    cluster: dict[str, Any] = {"accelerator": chip, "accelerators_per_node": each}
    if count > each:
        cluster |= {"nic": "400 Gb/s", "nics_per_node": each, "fabric": {"kind": "fat-tree"}}
    return {**cluster, "nodes": count // each}


def _parallelism(cells: Cells, steps: Mapping[str, Any]) -> dict[str, Any]:
    tp = cells.whole("tp") or 1
    degrees = {axis: cells.whole(axis) or 1 for axis in ("pp", "dp", "cp", "ep")}
    words = cells.text("sharding")
    zero = int(lookup("training", "sharding", words)["zero"]) if words else steps.get("zero", 0)
    alone = degrees["dp"] * degrees["cp"] == 1 and not steps.get("zero")
    divided = tp > 1 and cells.flag("sequence_parallel") is not False
    return {"tp": tp, **degrees, "sequence_parallel": divided, "zero": 0 if alone else zero}


def _training(
    cells: Cells, numbers: Mapping[str, int], precision: str, assumed: list[Assumed]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `training` and `schedule`."""
    each, dp = cells.required("micro_batch_seqs"), cells.whole("dp") or 1
    repeats = cells.whole("grad_accum")
    if repeats is None:
        batch = numbers.get("global_batch", each * dp)
        repeats = max(1, batch // (each * dp))
        assumed.append(
            Assumed("grad_accum", str(repeats), "of the batch in the notes, or the least")
        )
    training = {
        "global_batch": each * dp * repeats,
        "micro_batch": each,
        "sequence_length": cells.required("seq_len"),
        "precision": precision,
        **_recompute(cells, assumed),
    }
    _entry("lengths", cells.text("seq_len_kind"), "seq_len", assumed)
    chunks, pp = numbers.get("virtual_stages", 1), cells.whole("pp") or 1
    schedule: dict[str, Any] = {"name": "1f1b"}
    if pp > 1 and chunks > 1:
        schedule = {
            "name": "interleaved-1f1b",
            "virtual_stages": _dividing(cells, pp, chunks, assumed),
        }
    return training, schedule


def _adapter(cells: Cells, rule: Mapping[str, Any], assumed: list[Assumed]) -> dict[str, Any]:
    """The section `training.adapter`: rank and modules of the row, or those that its software has by default."""
    usual = dict(rule.get("adapter", {"rank": 8, "targets": "q_proj,v_proj"}))
    rank, targets = cells.whole("adapter_rank"), cells.text("adapter_targets")
    if rank is None:
        assumed.append(Assumed("adapter_rank", str(usual["rank"]), "its software's default"))
    if not targets or targets.startswith("see "):
        targets = usual["targets"]
        assumed.append(Assumed("adapter_targets", targets, "its software's default"))
    words = (part.strip() for part in targets.split(","))
    entries = [str(lookup("peaks", "adapters", word)["module"]) for word in words]
    modules = [name for entry in entries for name in _SEVERAL.get(entry, (entry,))]
    base = lookup("peaks", "bases", cells.text("base_weights"))["base"]
    return {
        "rank": rank or usual["rank"],
        "modules": list(dict.fromkeys(modules)),
        "dropout": usual.get("dropout", 0.0),
        "base": base,
    }


def _dividing(cells: Cells, pp: int, chunks: int, assumed: list[Assumed]) -> int:
    """Chunks a rank that divide the layers: as many as are stated, or the next fewer."""
    layers = cells.required("layers")
    fits = next(count for count in range(chunks, 0, -1) if layers % (pp * count) == 0)
    if fits != chunks:
        assumed.append(
            Assumed("virtual stages", str(fits), f"{layers} layers are not {pp * chunks} chunks")
        )
    return fits


def _recompute(cells: Cells, assumed: list[Assumed]) -> dict[str, Any]:
    text = cells.text("recompute")
    if "+" in text or text == "mlp":
        entries = [_entry("modules", name, "recompute", assumed) for name in text.split("+")]
        return {
            "recompute": "selective",
            "recompute_modules": [entry["module"] for entry in entries if "module" in entry],
        }
    try:
        return {"recompute": str(_entry("recomputations", text, "recompute", assumed)["recompute"])}
    except CalibrationError:  # words that training runs have for it
        entry = lookup("training", "recomputations", text)
    if "assumed" in entry:
        assumed.append(Assumed("recompute", "", str(entry["assumed"])))
    return {"recompute": str(entry["recompute"])}


def _model(cells: Cells, rule: Mapping[str, Any], assumed: list[Assumed]) -> dict[str, Any]:
    """The model of the columns, of the style whose parameters come nearest to those stated."""
    shape = {name: cells.required(name) for name in ("layers", "hidden", "heads", "vocab")}
    given = {name: cells.whole(name) for name in ("kv_heads", "ffn_hidden")}
    shape |= {name: value for name, value in given.items() if value is not None}
    if shape["hidden"] % shape["heads"] == 0:
        shape["head_dim"] = shape["hidden"] // shape["heads"]
    named = lookup("training", "named", cells.text("model"))["model"]
    stated = cells.number("params_billion")
    styles = [
        {"gated_mlp": gated, **table("training")["models"][kind], **rest}
        for gated, kind in ((True, "gated"), (False, "plain"))
        for tied in (False, True)
        for rest in ({"tied_embeddings": tied},)
    ]
    name = cells.text("model") or "run"

    def off(style: Mapping[str, Any]) -> float:
        whole = transformer_of(name, {**shape, **style, **named})
        return abs(whole.parameters().total / (stated * _BILLION) - 1.0) if stated else 0.0

    best = min(styles, key=off)
    if off(best) > _OTHER:
        raise CalibrationError(
            f"params_billion is {stated}, which no dense model of these layers and widths has; experts are not stated"
        )
    if off(best) > _FAR:
        assumed.append(
            Assumed("model", "", f"no style has the {stated} B parameters that are stated")
        )
    return on_top({"name": name, **shape, **best, **named}, rule["model"])
