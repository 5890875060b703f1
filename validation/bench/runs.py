"""Runs: a row of a training table as a scenario, and what the simulator says of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from bench.adapt import adapted, hidden_experts
from bench.assumptions import BY_FAMILY, FEW, Filled, fill_in
from bench.attention import attention_of
from bench.clusters import cluster_of
from bench.layouts import parallelism_of, schedule_of
from bench.shapes import counted, kin_of, layers_of_experts, stated
from bench.tables import affirmed, lookup, on_top, rule_of, said, table
from mpsim.arrays import Floats
from mpsim.errors import CalibrationError, MpsimError
from mpsim.formats import Assumed, Imported
from mpsim.formats.tables import Cells
from mpsim.memo import remembered
from mpsim.result import Memory
from mpsim.result.residuals import Setting
from mpsim.scenario import Scenario
from mpsim.simulate import resolve, simulate_step
from mpsim.study.usual import Tried, settled
from mpsim.training.intervals import told
from mpsim.training.memory.account import account_memory, outside_allocator
from mpsim.training.plan import Plan
from mpsim.workload import model_names

__all__ = ["Simulated", "described", "filled", "fitting", "opened_of", "reading_of", "readings"]
__all__ += ["scenario_of", "simulated"]

_ALSO_TOLD = {"schedules": "schedule", "sharding": "zero_stage"}
_WHOLE = {
    "tp": ("tp", 1),
    "pp": ("pp", 1),
    "zero": ("zero_stage", 1),
}  # degrees that divide no parameters
_TOO_LARGE = "no accelerator holds the whole model"
_COLUMNS = {
    "training.recompute": "recompute",
    "training.offload_activations": "offload",
    "training.offload_layers": "offload_layers",
    "training.micro_batch": "micro_batch_seqs",
    "training.adapter.base": "frozen weights",
    "parallelism.etp": "etp",
    "parallelism.zero": "zero_stage",
    "parallelism.tp": "tp",
    "parallelism.pp": "pp",
    "parallelism.cp": "cp",
    "parallelism.ep": "ep",
    "parallelism.offload": "offload",
    "parallelism.sequence_parallel": "sequence_parallel",
}
_TRIED = ("recompute", "micro_batch_seqs", "etp", "zero_stage")
_LEAST: dict[str, object] = {"training.recompute": "full", "training.micro_batch": 1}
_LEFT_OUT = {"base": "bf16", "recompute": "none", "offload": "none"}
_SAYS_AGAIN = ("recompute", "offload")
_MOST = 0.8  # of the parameters of a dense model are in its layers
_LAYER_PARTS = ("forward", "backward", "weight_gradient", "recompute", "exposed_tp")


def filled(cells: Cells, rule: Mapping[str, Any]) -> Filled:
    """The row with what its family, and then what is usual, has where columns are empty."""
    whole = fill_in(cells, rule)
    assumed = [Assumed("framework", "", str(why)) for why in rule.get("assumed", ())]
    assumed += [Assumed(to, "", str(why)) for to, why in rule.get("told", {}).items()]
    assumed += _meant_by("precisions", affirmed(whole.cells.text("precision")), to="precision")
    known, text = rule.get("recomputations", {}), whole.cells.text("recompute")
    meant = [entry for words, entry in known.items() if re.search(words, text, re.IGNORECASE)]
    if meant and isinstance(meant[0], Mapping) and "assumed" in meant[0]:
        assumed.append(Assumed("recompute", "", str(meant[0]["assumed"])))
    if not meant and not _modules(whole.cells):
        assumed += _meant_by("recomputations", text, to="recompute")
    # what is refused says so where the scenario is made
    with contextlib.suppress(CalibrationError):
        assumed += attention_of(whole.cells)[1]
    if preset := _mixed(whole.cells):
        assumed.append(Assumed("model", preset, "it has these sizes"))
    for section, column in _ALSO_TOLD.items():
        assumed += _meant_by(section, whole.cells.text(column), to=section)
    if whole.cells.whole("moe_experts"):
        found = layers_of_experts(whole.cells)
        assumed += [Assumed(f"moe_{name}", str(n), why) for name, (n, why) in found.items() if why]
    if whole.cells.text("seq_len") and (alone := _document(whole.cells)):
        assumed.append(Assumed("document_tokens", str(alone[0]), alone[1]))
    return Filled(whole.cells, (*whole.assumed, *assumed))


def _meant_by(section: str, text: str, *, to: str) -> Iterator[Assumed]:
    """The assumption of the entry that a column's words mean, where it states one."""
    try:
        entry = lookup("training", section, text)
    except CalibrationError:
        return
    if "assumed" in entry:
        yield Assumed(to, "", str(entry["assumed"]))


def described(cells: Cells, rule: Mapping[str, Any]) -> Imported:
    """The scenario of a row with what its columns leave open, and all that was assumed for it.

    Raises
    ------
    CalibrationError
        If the row does not say enough, or says what is not simulated.
    """
    whole = filled(cells, rule)
    scenario, exchanged = adapted(scenario_of(whole.cells, rule))
    told = [_adapter_told(whole.cells)] if "method" in rule and "adapter" not in rule else ()
    assumed = (*whole.assumed, *told, *cluster_of(whole.cells)[1], *exchanged)
    return Imported(scenario=scenario, assumed=assumed)


def read_run(cells: Cells, *, ran: bool = True) -> tuple[Mapping[str, Any], Imported]:
    """The rule of a row, and its run with what it leaves open settled as `mpsim plan` settles it: as little recomputation and division as fits in memory.

    Parameters
    ----------
    ran : bool
        Whether the row is of a run that ended, whose memory is a witness against the recomputation that it states.

    Raises
    ------
    CalibrationError
        If the row does not say enough, or says what is not simulated.
    """
    rule = rule_of(cells)
    run = described(cells, rule)
    return rule, fitting(run, rule, cells, ran=ran)


def _guessed(run: Imported, column: str) -> bool:
    """Whether a column is a guess, neither of the row, nor of its family, nor what other columns leave."""
    guesses = {entry["why"] for entry in table("assumptions")["columns"][column]} - {BY_FAMILY}
    return any(each.to == column and each.why in guesses for each in run.assumed)


def opened_of(run: Imported, cells: Cells | None) -> set[str]:
    """Keys of a run's scenario that are guesses; those of its layout where the row states no division and its software has none of its own."""
    opened = {key for key, column in _COLUMNS.items() if column in _TRIED and _guessed(run, column)}
    if cells is None or cells.text("tp"):
        return opened
    parts = run.scenario["parallelism"]
    guessed = {each.to for each in run.assumed if each.why == FEW}
    own = [
        parts[name] > usual and not cells.text(column) and column not in guessed
        for name, (column, usual) in _WHOLE.items()
    ]
    if any(own):
        return opened
    usual = rule_of(cells).get(
        "assume", {}
    )  # of its software, which comes before what divides models elsewhere
    layout = {
        key
        for key, column in _COLUMNS.items()
        if key.startswith("parallelism.") and not cells.text(column) and column not in usual
    }
    staged = re.search(table("assumptions")["staged"], cells.text("framework"))
    return opened | layout | (set() if staged else {"schedule"})


def fitting(
    run: Imported,
    rule: Mapping[str, Any] = types.MappingProxyType({}),
    cells: Cells | None = None,
    *,
    ran: bool = True,
) -> Imported:
    """The run with the fastest of what was guessed that fits in memory, or is nearest to it: who trains has tried; itself where nothing was guessed, or nothing comes near."""
    scenario = Scenario.from_mapping(run.scenario, checked=False)

    def laid(values: Mapping[str, object]) -> tuple[dict[str, Any], tuple[Assumed, ...]]:
        result, ranks = _laid(run.scenario, values), values.get("parallelism.pp", 1)
        if cells is None or ranks == 1:
            return result, ()
        # stages have the row's order, which one rank has no use for
        staged = Cells({**filled(cells, rule).cells.values, "pp": str(ranks)})
        result |= {"schedule": schedule_of(staged), "framework": dict(result["framework"])}
        exchange = hidden_experts(result)
        return result, () if exchange is None else (exchange,)

    def text(values: Mapping[str, object]) -> str:
        return json.dumps(laid(values)[0], sort_keys=True)

    tried = Tried(
        lambda values: _filled(text(values)),
        lambda values: _outcome(text(values)).figures["step"],
    )
    opened = opened_of(run, cells)
    if ran and "parallelism.tp" not in opened:
        # it ran, and so not as its row says
        opened |= _disbelieved(tried, "" if cells is None else cells.text("assumed_fields"))
    values = settled(scenario, opened, tried, _further(run, rule, opened, tried))
    divided = "parallelism.dp" in values
    told = [
        Assumed(
            _COLUMNS[key],
            _told(value),
            _TOO_LARGE
            if divided and key.startswith("parallelism.")
            else f"the fastest that fits in memory, not {_written(run.scenario, key)}",
        )
        for key, value in values.items()
        if key in _COLUMNS
    ]
    settled_run, exchanged = laid(values)
    return dataclasses.replace(run, scenario=settled_run, assumed=(*run.assumed, *told, *exchanged))


def _disbelieved(tried: Tried, assumed: str) -> set[str]:
    """Keys that a run cannot have as its row has them, by the memory that it would need; a run that contradicts itself says so elsewhere."""
    believed = table("assumptions")["believed"]
    try:
        filled = tried.filled({})
    except MpsimError:
        return set()
    if filled > believed["memory"]:
        return {"training.recompute"}
    if filled <= believed["assumed"]:
        return set()
    return {key for key, words in believed["words"].items() if re.search(words, assumed)}


def _laid(scenario: Mapping[str, Any], values: Mapping[str, object]) -> dict[str, Any]:
    """A scenario with values by dotted key."""
    result = dict(scenario)
    for key, value in values.items():
        section, dot, rest = key.partition(".")
        result[section] = _laid(result[section], {rest: value}) if dot else value
    return result


def _written(scenario: Mapping[str, Any], key: str) -> object:
    section, dot, rest = key.partition(".")
    return _written(scenario[section], rest) if dot else scenario.get(key, _LEFT_OUT.get(key, 1))


def _told(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _further(
    run: Imported, rule: Mapping[str, Any], opened: Collection[str], tried: Tried
) -> Iterator[dict[str, object]]:
    """What is tried in turn while nothing fits: what recipes of its software have then; weights that adapters leave frozen in the 8 bits of the row's products; experts over ever more ranks, where those are a guess; the optimizer on the host; activations of ever more layers in host memory, where its software offloads and says not how many."""
    yield from rule.get("lean", ())
    degrees, moe = run.scenario["parallelism"], run.scenario["model"].get("moe")
    training = run.scenario["training"]
    narrow = training["precision"] == "fp8" and training.get("method") == "lora"
    if narrow and "base" not in training["adapter"]:
        yield {"training.adapter.base": "fp8"}
    if moe and "parallelism.ep" in opened and degrees["ep"] == 1:
        for count in range(2, degrees["dp"] + 1):
            if degrees["dp"] % count == moe["experts"] % count == 0:
                yield {"parallelism.ep": count}
    least = {key: value for key, value in _LEAST.items() if _written(run.scenario, key) != value}
    if degrees["zero"] and least.keys() <= {*opened}:
        with contextlib.suppress(MpsimError):
            if tried.filled(least) > table("assumptions")["believed"]["assumed"]:
                yield {**least, "parallelism.offload": "optimizer"}
    step = int(rule.get("offload_layers", 0))
    layers = int(run.scenario["model"].get("layers", 0)) if step else 0
    for count in range(step, layers + 1, step or 1):
        yield {"training.offload_activations": "all", "training.offload_layers": count}


def scenario_of(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario that a row with all its columns describes, as a file would hold it.

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
        "cluster": cluster_of(cells)[0],
        "parallelism": parallelism_of(cells, rule),
        "schedule": schedule_of(cells),
        "training": {
            "global_batch": cells.required("global_batch_seqs"),
            "micro_batch": cells.required("micro_batch_seqs"),
            "sequence_length": cells.required("seq_len"),
            "precision": _precision(cells, rule),
            **_recompute(cells, rule),
            **_method(cells, rule),
        },
        "framework": dict(rule["framework"]),
    }


def _method(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    """Adapters alone where the row's words say so, of the rank that they name, else as its software has them by default."""
    more = dict(rule.get("training", {}))
    if "method" not in rule:
        return more
    adapter = dict(rule.get("adapter", {}))
    if rank := _adapter_rank(cells):
        adapter["rank"] = rank
    return {**more, "method": rule["method"], "adapter": adapter}


def _adapter_rank(cells: Cells) -> int | None:
    """The rank of adapters that a row's words name."""
    text = f"{said(cells)} | {cells.text('notes')}"
    stated = re.search(table("training")["adapter_rank"], text, re.IGNORECASE)
    return int(stated[1]) if stated else None


def _adapter_told(cells: Cells) -> Assumed:
    """What is assumed of adapters whose software has no habit of its own."""
    if _adapter_rank(cells):
        return Assumed("adapter", "", "beside every product: where they stand is not stated")
    return Assumed("adapter", "rank 8", "beside every product: neither is stated")


def _precision(cells: Cells, rule: Mapping[str, Any]) -> str:
    """The number format of the row's words, or what its family's rule says they mean."""
    text = affirmed(cells.text("precision"))
    precision = str(lookup("training", "precisions", text)["precision"])
    return str(rule.get("precisions", {}).get(precision, precision))


@dataclasses.dataclass(frozen=True, slots=True)
class Simulated:
    """Figures that the simulator gives of a run.

    Parameters
    ----------
    seconds : float
        Of a step, or of a layer [s].
    memory : float
        Of the fullest rank [B].
    parameters : float
        Of the whole model; 0 for a layer.
    setting : Setting
        What the residuals of both depend on.
    filled : float
        Share of its accelerator's memory that a rank needs at most; 0 for a layer.
    """

    seconds: float
    memory: float
    parameters: float
    setting: Setting
    filled: float = 0.0


def simulated(scenario: Mapping[str, Any], *, layer: bool, seen: str) -> Simulated:
    """Time and peak memory of a scenario.

    Parameters
    ----------
    scenario : mapping
    layer : bool
        Whether the time is that of one layer, forward and backward, instead of a step.
    seen : str
        Memory as ``memory`` (all of it), ``reserved`` (by the framework's allocator, without what libraries take beside it),
        ``started`` (the same since a process whose model was whole at first) or ``allocated`` (handed out by it, without fragments too).

    Returns
    -------
    Simulated
    """
    if layer:
        single, double = (_outcome(_with_layers(scenario, layers), True) for layers in (1, 2))
        seconds = double.figures["layers"] - single.figures["layers"]
        return Simulated(seconds, single.figures[seen], 0.0, single.setting)
    outcome = _outcome(json.dumps(scenario, sort_keys=True))
    figures = outcome.figures
    return Simulated(
        figures["step"],
        figures[seen],
        figures["parameters"],
        outcome.setting,
        figures["filled"],
    )


def _with_layers(scenario: Mapping[str, Any], layers: int) -> str:
    return json.dumps(
        {**scenario, "model": {**scenario["model"], "layers": layers}}, sort_keys=True
    )


def readings(plan: Plan, memory: Memory) -> dict[str, Floats]:
    """Peak memory of each rank as tools read it [B], by the names that `simulated` takes."""
    layout, total = plan.layout, memory.total
    whole = float(layout.rank_parameters.max() * layout.framework.lowering.activation_bytes)
    reserved = total - outside_allocator(plan)
    return {
        "memory": total,
        "reserved": reserved,
        "started": np.maximum(reserved, whole),
        "allocated": total - memory.components["overhead"],
    }


def reading_of(seen: str, rule: Mapping[str, Any]) -> str:
    """Which of the `readings` a statistic is under a rule: one since the start of the process, of software whose models start whole."""
    return "started" if seen == "reserved" and rule.get("starts") == "whole" else seen


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """Figures of a simulation by name, and what their residuals depend on."""

    figures: Mapping[str, float]
    setting: Setting


@remembered(4096)
def _filled(scenario: str) -> float:
    """Share of its accelerator's memory that the fullest rank takes; nothing is simulated for it."""
    return account_memory(resolve(Scenario.from_mapping(json.loads(scenario)))).filled


@remembered(4096)
def _outcome(scenario: str, parts: bool = False) -> _Outcome:
    """Figures of a simulation, that of its layers if `parts` are asked for; equal scenarios are simulated once."""
    result = simulate_step(Scenario.from_mapping(json.loads(scenario)))
    memory, model = result.memory, result.plan.layout.model
    figures = {
        "step": result.timeline.step_time_s,
        "parameters": float(model.parameters().total),
        "filled": memory.filled,
        **{
            seen: float(size[memory.fullest])
            for seen, size in readings(result.plan, memory).items()
        },
    }
    if parts:
        figures["layers"] = float(sum(result.breakdown[part] for part in _LAYER_PARTS))
    return _Outcome(figures, told(result.headline))


def _refuse(cells: Cells, rule: Mapping[str, Any]) -> None:
    """Refuse what is not simulated, before anything else is asked of the row."""
    if "refused" in rule:
        raise CalibrationError(rule["refused"])
    if not _mixed(cells):
        attention_of(cells)
    if cells.text("zero_stage"):
        lookup("training", "sharding", cells.text("zero_stage"))


def _model(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    if "preset" in rule["model"]:
        return {**rule["model"], "layers": cells.required("layers")}
    known = cells.text("mpsim_model")
    if known in model_names() or (known := _mixed(cells)):
        return {"preset": known, "layers": cells.required("layers"), **_habits(rule)}
    gated = cells.flag("gated_mlp")
    if gated is None:
        raise CalibrationError("gated_mlp is not stated")
    shape = {name: cells.required(name) for name in ("layers", "hidden", "heads", "vocab")}
    shape["layers"] += int(rule["model"].get("mtp_layers", 0))
    sizes = {name: cells.whole(name) for name in ("kv_heads", "head_dim", "ffn_hidden")}
    given = {name: value for name, value in sizes.items() if value is not None}
    style = table("training")["models"]["gated" if gated else "plain"]
    read = {
        "name": cells.text("model") or "run",
        **shape,
        **given,
        "gated_mlp": gated,
        **style,
        **lookup("training", "named", cells.text("model"))["model"],
        **_attention(cells),
        **_experts(cells),
    }
    return on_top(read, rule["model"])


def _mixed(cells: Cells) -> str:
    """The published model of such sizes whose layers mix attention with others, which no column of a row describes."""
    kin = kin_of(cells)
    return kin.name if kin is not None and kin.layer_pattern else ""


def _habits(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Habits of a rule's software in a model whose shape is known."""
    return {name: value for name, value in rule["model"].items() if name == "dropout"}


def _attention(cells: Cells) -> dict[str, Any]:
    """Attention as its words say; documents that are packed into a sequence stand for a window where it has none."""
    fields, _ = attention_of(cells)
    alone = None if fields.get("window") or "mla" in fields else _document(cells)
    window = {"attention": "sliding", "window": alone[0]} if alone else {}
    return {**window, **fields}


def _document(cells: Cells) -> tuple[int, str] | None:
    """Tokens of a document among those packed into a sequence, and why so many; None where nothing is packed, or no more than one fits."""
    columns = (cells.text(name) for name in ("notes", "assumed_fields"))
    packed, text = table("training")["packed"], " | ".join((said(cells), *columns))
    if not re.search(packed["pattern"], affirmed(text), flags=re.IGNORECASE):
        return None
    stated = re.search(packed["mean"], text, flags=re.IGNORECASE)
    tokens = int(stated[1]) if stated else int(packed["tokens"])
    why = "as its words say" if stated else str(packed["why"])
    return (tokens, why) if tokens < cells.required("seq_len") else None


def _experts(cells: Cells) -> dict[str, Any]:
    """Mixture of experts, where the row has one."""
    if not cells.whole("moe_experts"):
        if "deepseek" in cells.text("model").lower() and not _explained(cells):
            raise CalibrationError("the experts of the model are not stated")
        return {}
    experts: dict[str, float] = {
        "experts": cells.required("moe_experts"),
        "top_k": cells.required("moe_topk"),
        "ffn_hidden": cells.required("moe_ffn_hidden"),
        **{name: value for name, (value, _) in layers_of_experts(cells).items()},
    }
    if cells.text("moe_capacity") == "busiest":
        most = experts["experts"] / experts["top_k"]
        experts["capacity_factor"] = 1.0 + table("assumptions")["busiest"]["share"] * (most - 1.0)
    elif capacity := cells.number("moe_capacity"):
        experts["capacity_factor"] = capacity
    if experts["every"] == 1:
        del experts["every"]  # left out where all layers have them
    return {"moe": experts}


def _explained(cells: Cells) -> bool:
    """Whether layers without experts hold most of the parameters that a row states."""
    dense = counted(cells, gated=bool(cells.flag("gated_mlp")))
    return 0 < _MOST * stated(cells) < dense


def _meant(cells: Cells, meant: object) -> dict[str, Any]:
    """The recomputation that a rule reads from words: a kind, or fields, of which a fraction is of the layers of a stage."""
    if not isinstance(meant, Mapping):
        return {"recompute": str(meant)}
    fields = {name: value for name, value in meant.items() if name.startswith(_SAYS_AGAIN)}
    if "fraction" in meant:
        layers = cells.required("layers") / cells.required("pp")
        fields["recompute_layers"] = max(1, round(layers * meant["fraction"]))
    return fields


def _has_latent(cells: Cells) -> bool:
    """Whether heads are latent, by the row's words or its sizes; words of layers that nobody knows are refused elsewhere."""
    with contextlib.suppress(CalibrationError):
        return "mla" in attention_of(cells)[0]
    return False


def _modules(cells: Cells) -> list[str]:
    """Modules run again that a row names one by one, as the framework's flag does, and that its model has."""
    experts = bool(cells.whole("moe_experts"))
    has = {
        "experts": experts,
        "shared": bool(cells.whole("moe_shared_experts")),
        "dense": bool(cells.whole("moe_dense_layers")) or not experts,
        "latent": _has_latent(cells),
    }
    has["split"] = has["experts"] or has["latent"]
    text = cells.text("recompute").lower()
    has["several"] = has["split"] or "mlp" in text  # alone it is what selective means
    return [
        str(entry["module"])
        for entry in table("training")["recompute_modules"]
        if has[entry["needs"]] and re.search(entry["pattern"], text)
    ]


def _recompute(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    """The recomputation of a row: as its family's rule reads its words, else as the words say."""
    text = cells.text("recompute")
    for words, meant in rule.get("recomputations", {}).items():
        if re.search(words, text, flags=re.IGNORECASE):
            return _meant(cells, meant)
    if named := _modules(cells):
        return {"recompute": "selective", "recompute_modules": named}
    entry = lookup("training", "recomputations", text)
    if "experts" in entry and cells.whole("moe_experts"):  # whose products have no names
        return {"recompute": entry["experts"]}
    fields = {name: value for name, value in entry.items() if name.startswith(_SAYS_AGAIN)}
    if "layers" in entry or "every" in entry:
        fields["recompute_layers"] = _some_layers(cells, entry, text)
    return fields


def _some_layers(cells: Cells, entry: Mapping[str, Any], text: str) -> int:
    """Layers of a stage that run again, of words such as ``every other layer``, ``5 of 32 layers`` or ``4 layers``, which are those of each stage."""
    match = re.fullmatch(entry["pattern"], text, flags=re.IGNORECASE)
    assert match is not None, "the pattern that was looked up fits"
    chunks = cells.required("pp") * int(schedule_of(cells).get("virtual_stages", 1))
    stage = cells.required("layers") / chunks
    if "every" in entry:
        share = 1 / int(entry["every"].get(match[1].lower(), match[1]))
    else:
        share = int(match[1]) / (int(match[2]) if match[2] else stage)
    return int(max(1, min(round(stage * share), math.ceil(stage))))
