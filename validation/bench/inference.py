"""Inference: measured points of served models, each predicted by serving its requests."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.assumptions import network_of
from bench.attention import attention_of
from bench.instances import layout_of, pools_of
from bench.machines import nic_named, per_node, rack_of
from bench.rows import Row
from bench.shapes import check_parameters, kin_of, layers_of_experts, misnamed
from bench.tables import affirmed, lookup, table
from mpsim.errors import CalibrationError, nearest
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells, tidied
from mpsim.formats.words import gpu
from mpsim.hardware import Cluster, build_cluster
from mpsim.memo import remembered
from mpsim.result.residuals import Setting
from mpsim.scenario.fields import LengthChoice
from mpsim.scenario.servers import preset_for
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.confidence import of_request, request_interval, setting_of
from mpsim.serving.engines import EnginePreset, calibrated, engine
from mpsim.serving.plan import CACHE_BYTES, ServicePlan
from mpsim.serving.result import ServedPoint, measurable
from mpsim.validate.records import Record
from mpsim.workload import Transformer
from mpsim.workload.variants import Experts, LatentAttention

__all__ = ["MEASURED", "blank", "plan_of", "predict", "served_point"]

_QUANTITIES = {
    "ttft": ("ttft_ms", "ms"),
    "tpot": ("tpot_ms", "ms"),
    "e2e": ("e2e_latency_ms", "ms"),
    "throughput": ("output_tokens_per_s", "tokens/s"),
    "ttft_p99": ("ttft_p99_ms", "ms"),
    "tpot_p99": ("tpot_p99_ms", "ms"),
}
MEASURED = (
    *(column for column, _ in _QUANTITIES.values()),
    *("requests_per_s", "total_tokens_per_s", "output_tokens_per_s_per_accel", "memory_gb"),
)
_UNITS = {"ms": 1e-3, "tokens/s": 1.0}
_TABLE = "inference"
_WITHOUT_LIMIT = 1 << 40  # blocks: a static batch was measured, so that it fitted
_DRAFTS_NOTHING = r"(none|no|not|off|without|disabled|false|0)\b"
_SPECULATES = r"\b(MTP|speculat\w*|draft|eagle)\b"
_UNSHARED = r"(prefix|radix)[-_ ]?cach\w*( is)?[ =:]+(off|disabled|false|no\b)|(no|without|disabled?|no-enable)[-_ ](prefix|radix)[-_ ]cach"
_EAGER = r"\benforce[-_ ]eager\b(?![ =:]+(false|0|no\b))|\beager mode|\b(no|without|disable)[-_ ]cuda[-_ ]?graphs?|\bcuda[-_ ]?graphs?[ =:]+(off|disabled|false)"
_EXPERT_KERNEL = r"\bexperts \w*?(trtllm|triton|marlin|cutlass|deepgemm)"  # others count as unsaid
_LIMITS = {
    "max_num_seqs": "max_sequences",
    "max_num_batched_tokens": "max_tokens",
    "block_tokens": "block",
    "poll_iterations": "poll_steps",
}
"""Whole numbers of an engine that a row may state, and the fields that they are."""


def blank(row: Row) -> list[Record]:
    """The row's records without predictions, one for each measured quantity."""
    measured = {name: row.measured.number(column) for name, (column, _) in _QUANTITIES.items()}
    names = [name for name, value in measured.items() if value] or ["throughput"]
    return [
        Record(
            id=f"{row.id}#{name}",
            family=row.configuration.text("family") or "family not stated",
            kind="inference",
            unit=_QUANTITIES[name][1],
            measured=measured[name],
            size=row.configuration.number("num_accel"),
        )
        for name in names
    ]


def predict(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Serve the requests of a row, and fill in what was measured of them.

    Raises
    ------
    CalibrationError, ScenarioError, HardwareError
        If the row does not say what matters, or cannot be served.
    """
    plan, assumed = plan_of(row)
    figures = measurable(plan)
    sentences = tuple(map(str, assumed))
    setting = setting_of(plan)
    if _first("engines", row.configuration).get("stands_in"):
        labels = {**setting.labels, "engine": ("", "")}  # what stands in was not what was measured
        setting = dataclasses.replace(setting, labels=labels, guessed=setting.guessed + 1)
    return [
        _filled(blank, blank.id.rsplit("#", 1)[1], figures, setting, sentences) for blank in blanks
    ]


def served_point(row: Row) -> ServedPoint | None:
    """The service that a row describes with what was measured of it, for a fit; None where nothing was.

    Raises
    ------
    CalibrationError, HardwareError
        If the row does not say what matters.
    """
    measured = {
        name: value * _UNITS[unit]
        for name, (column, unit) in _QUANTITIES.items()
        if (value := row.measured.number(column))
    }
    return ServedPoint(row.id, plan_of(row)[0], measured) if measured else None


def _filled(
    blank: Record,
    quantity: str,
    figures: Mapping[str, float],
    setting: Setting,
    assumed: tuple[str, ...],
) -> Record:
    """A record with its prediction; too few 99th percentiles were measured to have residuals of their own."""
    ends = None
    if quantity == "e2e":  # the interval is that of its parts
        ttft, e2e = (figures[name] / _UNITS[blank.unit] for name in ("ttft", "e2e"))
        setting = of_request(setting, ttft, e2e)
        ends = request_interval(setting, e2e)
    return dataclasses.replace(
        blank,
        predicted=figures[quantity] / _UNITS[blank.unit],
        assumed=assumed,
        figure=quantity.removesuffix("_p99"),
        setting=setting,
        ends=ends,
    )


def plan_of(row: Row) -> tuple[ServicePlan, list[Assumed]]:
    """The service that a row describes, from its configuration columns alone.

    Raises
    ------
    CalibrationError
        If the row does not say what matters.
    """
    cells = row.configuration
    assumed: list[Assumed] = []
    if cells.text("complete") == "no":
        why = cells.text("missing_or_assumed") or "not said"
        raise CalibrationError(f"the row is marked as lacking what matters: {why}")
    cells = _in_formats(_in_words(cells, assumed))
    said = cells.text("speculation")
    drafts = bool(said) and not re.match(_DRAFTS_NOTHING, said, re.IGNORECASE)
    if drafts or re.search(
        _SPECULATES, affirmed(f"{cells.text('engine')} | {cells.text('notes')}")
    ):
        raise CalibrationError("speculation without its acceptance is not predicted")
    if entry := _first("stated", cells):
        found = {key: cells.values.get(text) or text for key, text in entry["columns"].items()}
        assumed += [Assumed(key, value, entry["why"]) for key, value in found.items()]
        cells = Cells({**cells.values, **found})
    apart = cells.flag("disaggregated")
    layouts = pools_of(cells) if apart else [layout_of(cells, assumed)]
    weights = _weights(cells, assumed)
    cluster = _cluster(cells, sum(layout.accelerators for layout in layouts), assumed)
    if row.machine is not None:
        cluster = _as_measured(cluster, row.machine, assumed)
    model = _model(cells, assumed)
    parameters = float(model.parameters().total)
    check_parameters(cells, parameters)
    assumed += misnamed(cells, parameters)
    common = ServicePlan(
        name=row.id,
        model=model,
        cluster=cluster,
        engine=calibrated(_engine(cells, assumed), cluster),
        workload=_workload(cells, assumed),
        slo=ServiceLevel(),
        weights=weights,
        kv=_cache(cells, assumed),
        given_blocks=_blocks(cells),
        folder=str(row.folder),
    )
    plans = [dataclasses.replace(common, **dataclasses.asdict(layout)) for layout in layouts]
    plan = plans[-1]
    if apart:
        plan = dataclasses.replace(plan, prefill=plans[0])
    peaks = plan.cluster.accelerator.peak_flops
    if weights in ("fp8", "fp8_block", "int8") and plan.weight_format.compute not in peaks:
        raise CalibrationError(f"{plan.cluster.accelerator.name} has no {weights} products")
    return _fitted(_tuned(plan, cells, assumed), cells, assumed), assumed


def _in_words(cells: Cells, assumed: list[Assumed]) -> Cells:
    """The row with its regime and engine by their usual names, and with what its words state where columns are empty.

    Raises
    ------
    CalibrationError
        If such a regime is not a service, or not known.
    """
    entry = lookup(_TABLE, "regimes", cells.text("regime"))
    values = {**cells.values, "regime": str(entry["regime"])}
    for name in table(_TABLE)["names"]:
        values["engine"] = re.sub(name["names"], name["means"], values.get("engine") or "")
    if not cells.text("concurrency") and "users" in entry:
        values["concurrency"] = str(entry["users"])
    columns = ("engine", "server_flags", "notes")
    text = affirmed(" | ".join(cells.text(column) for column in columns))
    for word in table(_TABLE)["words"]:
        column = word["column"]
        match = re.search(word["pattern"], text, flags=re.IGNORECASE)
        if match and not cells.text(column):
            stated = next(group for group in match.groups() if group)
            values[column] = tidied(column, stated)
            assumed.append(Assumed(column, values[column], "as its words say"))
    return Cells(values)


def _tuned(plan: ServicePlan, cells: Cells, assumed: list[Assumed]) -> ServicePlan:
    """The plan with the sizes that a benchmark gives its engine for the requests that it has."""
    if cells.text("regime") != "offline-max" or not (entry := _first("tuned", cells)):
        return plan
    engine, gib = plan.engine, 1024.0**3
    prompt, output = cells.required("input_tokens"), cells.required("output_tokens")
    weights, cache = (entry["bytes"].get(form, 2.0) for form in (plan.weights, plan.kv))
    heads = max(plan.tp, plan.model.kv_heads)
    token = 2.0 * plan.model.layers * heads * plan.model.head_dim * cache
    free = plan.cluster.accelerator.memory_bytes * plan.tp * plan.pp
    free = (free - 1e9 * cells.required_number("params_billion") * weights) / gib
    requests = free * engine.memory_fraction * gib / (token * (prompt + output))
    batch = min(requests, entry["most_sequences"]) / plan.pp
    tokens = min(batch * (1.0 + prompt / output), entry["most_tokens"])
    sizes = {
        "max_sequences": max(entry["least_sequences"], _rounded(batch, entry["sequences"])),
        "max_tokens": max(entry["least_tokens"], _rounded(tokens, entry["tokens"])),
    }
    if not engine.chunked:
        sizes["max_tokens"] = max(sizes["max_tokens"], prompt + sizes["max_sequences"])
    stated = {field: cells.whole(column) for column, field in _LIMITS.items()}
    sizes = {field: stated[field] or size for field, size in sizes.items()}
    fields: dict[str, Any] = {**sizes}
    if engine.graph_sizes:
        most = min(sizes.values())
        graphs = (*(size for size in entry["graphs"] if size < most), most)
        fields |= {"graph_sizes": graphs, "graph_padding": True}
    for key, value in sizes.items():
        if not stated[key]:
            assumed.append(Assumed(key, value, entry["why"]))
    return dataclasses.replace(plan, engine=dataclasses.replace(engine, **fields))


def _rounded(value: float, steps: Sequence[Sequence[float]]) -> int:
    """A value rounded up to the step of the first bound that it is below."""
    step = next(step for below, step in steps if value < below)
    return int(-(-value // step) * step)


def _fitted(plan: ServicePlan, cells: Cells, assumed: list[Assumed]) -> ServicePlan:
    """The plan with the share of the memory that its weights ask for, where the row states none."""
    if cells.text("kv_memory_fraction") or not any(plan.problems()):
        return plan
    for entry in table(_TABLE)["tight"]:
        engine = dataclasses.replace(plan.engine, **entry["fields"])
        behind = plan.prefill and dataclasses.replace(plan.prefill, engine=engine)
        raised = dataclasses.replace(plan, engine=engine, prefill=behind)
        if not any(raised.problems()):
            assumed.extend(
                Assumed(key, value, entry["why"]) for key, value in entry["fields"].items()
            )
            return raised
    return plan


def _in_formats(cells: Cells) -> Cells:
    """The row with the formats of its weights and of its cache instead of words for them.

    Raises
    ------
    CalibrationError
        If one of them is not known, or not priced.
    """
    stated = cells.text("kv_dtype")
    try:
        cache = lookup(_TABLE, "cache_formats", stated)["format"]
    except CalibrationError:
        raise CalibrationError(
            f"kv_dtype is {stated[:40]!r}; {nearest(stated, CACHE_BYTES)}"
        ) from None
    weights = lookup(_TABLE, "formats", cells.text("weight_dtype"))["format"]
    return Cells({**cells.values, "weight_dtype": str(weights), "kv_dtype": str(cache)})


def _weights(cells: Cells, assumed: list[Assumed]) -> str:
    if stored := _first("checkpoints", cells):
        assumed.append(Assumed("weights", stored["format"], stored["why"]))
        return str(stored["format"])
    return cells.text("weight_dtype")


def _cache(cells: Cells, assumed: list[Assumed]) -> str:
    if stated := cells.text("kv_dtype"):
        return stated
    entry = _first("caches", cells)
    assumed.append(Assumed("kv_dtype", entry["kv"], entry["why"]))
    return str(entry["kv"])


def _first(section: str, cells: Cells) -> Mapping[str, Any]:
    """The first entry whose words fit the row's columns; nothing where none does."""
    for entry in table(_TABLE)[section]:
        where: Mapping[str, str] = entry["where"]
        if all(re.fullmatch(pattern, cells.text(column)) for column, pattern in where.items()):
            result: Mapping[str, Any] = entry
            return result
    return {}


def _model(cells: Cells, assumed: list[Assumed]) -> Transformer:
    name = cells.text("model")
    kin = kin_of(cells)
    if kin is not None and kin.layer_pattern:
        assumed.append(Assumed("model", kin.name, "it has these sizes"))
        return kin
    attention, told = attention_of(cells, "attention")
    if "encoder_layers" in attention:
        raise CalibrationError("a decoder behind an encoder is not served here")
    if attention.get("attention") == "full":
        raise CalibrationError("a model that sees what comes later is no service of tokens")
    assumed += told
    heads, hidden = cells.required("heads"), cells.required("hidden")
    experts = cells.whole("moe_experts")
    ffn = cells.whole("ffn_hidden") or (cells.whole("moe_ffn_hidden") if experts else None)
    if ffn is None:
        ffn = 4 * hidden
        assumed.append(Assumed("ffn_hidden", ffn, "four times the hidden width"))
    norms = _known(name).get("norms", ())
    if norms:
        assumed.append(Assumed("norms", ", ".join(norms), _known(name)["why"]))
    latent = attention.pop("mla", None)
    return Transformer(
        name=name,
        layers=cells.required("layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else cells.whole("kv_heads") or heads,
        head_dim=cells.whole("head_dim") or hidden // heads,
        ffn_hidden=ffn,
        vocab=cells.required("vocab"),
        gated_mlp=bool(cells.flag("gated_mlp")),
        tied_embeddings=False,
        positions="rotary",
        bias=False,
        norm="rmsnorm",
        moe=_experts(cells, experts, ffn, assumed) if experts else None,
        mla=LatentAttention(**latent) if latent else None,
        qk_norm="qk_norm" in norms,
        qk_norm_whole="qk_norm_whole" in norms,
        **attention,
    )


def _known(name: str) -> Mapping[str, Any]:
    """What the table says of a model; nothing of most."""
    entries: Sequence[Mapping[str, Any]] = table(_TABLE)["models"]
    return next((entry for entry in entries if re.fullmatch(entry["pattern"], name)), {})


def _experts(cells: Cells, count: int, ffn: int, assumed: list[Assumed]) -> Experts:
    """Experts as the row and, where it is silent, the published model of its sizes have them."""
    parts = layers_of_experts(cells)
    assumed += [Assumed(f"moe_{key}", value, why) for key, (value, why) in parts.items() if why]
    return Experts(
        experts=count,
        top_k=cells.whole("moe_topk") or 1,
        ffn_hidden=cells.whole("moe_ffn_hidden") or ffn,
        dense_layers=parts["dense_layers"][0],
        shared_experts=parts["shared_experts"][0],
        every=parts["every"][0],
    )


def _cluster(cells: Cells, ranks: int, assumed: list[Assumed]) -> Cluster:
    """Nodes of the kind that a row names, as many as an instance takes."""
    name = cells.text("accelerator")
    if not re.search(r"\bGB\b", name):  # words in brackets but for the size of the memory
        name = re.sub(r"\s*\(.*\)", "", name)
    cluster, told = _cluster_of(name, ranks)
    assumed.extend(told)
    return cluster


def _as_measured(cluster: Cluster, machine: Cluster, assumed: list[Assumed]) -> Cluster:
    """A cluster with the constants of a machine file, where that is of the same accelerator."""
    measured = machine.calibration
    chip = cluster.accelerator
    if measured is None or measured.document.get("datasheet") != chip.name:
        return cluster
    assumed.append(Assumed("machine", machine.name, "its accelerator is the row's"))
    chip = dataclasses.replace(chip, calibration=measured)
    return dataclasses.replace(cluster, node=dataclasses.replace(cluster.node, accelerator=chip))


@remembered(256)
def _cluster_of(name: str, ranks: int) -> tuple[Cluster, tuple[Assumed, ...]]:
    chip, each = gpu(name), per_node(name)
    rack = rack_of(name)
    nodes = -(-ranks // each)
    domain = each * nodes if rack else None
    if nodes == 1 or rack:
        return build_cluster(
            accelerator=chip, accelerators_per_node=each, nodes=nodes, domain=domain
        ), ()
    entry = network_of(name)
    if entry is None:
        raise CalibrationError("the network between nodes is not stated")
    nic = nic_named(entry["inter_node_link"], entry["nic_gbit_s"])
    cluster = build_cluster(
        accelerator=chip,
        accelerators_per_node=each,
        nodes=nodes,
        nics_per_node=entry["nics_per_node"],
        nic=nic,
    )
    return cluster, (Assumed("nic", nic.name, entry["why"]),)


def _engine(cells: Cells, assumed: list[Assumed]) -> EnginePreset:
    words = f"{cells.text('engine')} {cells.text('engine_version')}".strip()
    entry = _first("engines", cells)
    name = entry["engine"] if entry else preset_for(words)
    if name is None:
        raise CalibrationError(f"engine {words!r} is not in the catalog of engines")
    preset = engine(name)
    if entry:
        assumed.append(Assumed("engine", preset.name, entry["why"]))
    stated = {field: cells.whole(column) for column, field in _LIMITS.items()}
    fields: dict[str, Any] = {field: value for field, value in stated.items() if value}
    if share := cells.number("kv_memory_fraction"):
        fields["memory_fraction"] = share
    own: dict[str, Any] = {}
    if recipe := _first("recipes", cells):
        own = dict(recipe["fields"])
        if budget := recipe.get("budget"):
            users = budget["users"] * (cells.whole("batch_per_instance") or 0)
            own["max_tokens"] = cells.required("input_tokens") + budget["tokens"] + users
            if largest := cells.whole(budget.get("graphs", "")):
                own["graph_sizes"] = tuple(range(1, largest + 1))
        fields = {**own, **fields}
        assumed.append(Assumed("engine", ", ".join(own), recipe["why"]))
    if (graphs := _first("graphs", cells)) and preset.graph_sizes and "graph_sizes" not in own:
        fields |= graphs["fields"]
        assumed.append(Assumed("engine", ", ".join(graphs["fields"]), graphs["why"]))
    fields |= _flags(cells)
    if cells.text("regime") == "static-batch":
        fields |= {"scheduler": "static", "max_tokens": 1_000_000}
    elif "max_tokens" not in fields and not preset.chunked:
        longest = cells.whole("input_tokens") or 0
        if longest > preset.max_tokens:
            fields["max_tokens"] = longest
            assumed.append(Assumed("max_tokens", longest, "the engine took such prompts whole"))
    if cells.text("regime") != "static-batch":
        unsaid = ("max_sequences", "max_tokens", "memory_fraction")
        assumed.extend(
            Assumed(field, getattr(preset, field), f"default of {preset.name}")
            for field in unsaid
            if field not in fields
        )
    return dataclasses.replace(preset, **fields)


def _flags(cells: Cells) -> dict[str, Any]:
    """Fields that words of a server's flags state."""
    found: dict[str, Any] = {}
    text = cells.text("server_flags")
    if interval := re.search(r"\bstream interval (\d+)", text):
        found["stream_interval"] = int(interval[1])
    if re.search(_UNSHARED, text, re.IGNORECASE) or "no prefix cache" in cells.text(
        "missing_or_assumed"
    ):
        found["prefix_cache"] = False
    if re.search(_EAGER, text, re.IGNORECASE):
        found["graph_sizes"] = ()
    if kernel := re.search(_EXPERT_KERNEL, text, re.IGNORECASE):
        found["expert_kernel"] = kernel[1].lower()
    return found


def _blocks(cells: Cells) -> int | None:
    if cells.text("regime") == "static-batch":
        return _WITHOUT_LIMIT
    return cells.whole("kv_blocks")


def _workload(cells: Cells, assumed: list[Assumed]) -> Workload:
    """The stream of requests of a row."""
    count = cells.whole("num_requests")
    if cells.text("trace"):
        return Workload(arrival="trace", trace=cells.text("trace"), requests=count)
    prompt, output = (
        _length(cells, column, assumed) for column in ("input_tokens", "output_tokens")
    )
    regime = cells.text("regime")
    if regime in ("static-batch", "offline-max"):
        if regime == "static-batch":
            count = cells.required("batch_per_instance")
        count = count or cells.required("concurrency")
        return Workload(arrival="all-at-once", requests=count, prompt=prompt, output=output)
    if regime == "open-loop":
        if not cells.text("arrival"):
            assumed.append(Assumed("arrival", "poisson", "usual of load generators"))
        if not count:
            count = 500
            assumed.append(Assumed("num_requests", count, "a usual number"))
        rate = cells.required_number("request_rate_per_s")
        return Workload(rate=rate, requests=count, prompt=prompt, output=output)
    users = cells.whole("concurrency") or cells.required("batch_per_instance")
    if not count:
        count = 10 * users
        assumed.append(Assumed("num_requests", count, "ten for each user"))
    most = table(_TABLE)["most_requests"]
    limit = max(users, min(most["count"], most["loops"] * users))
    if count > limit:
        count = limit
        assumed.append(Assumed("num_requests", count, most["why"]))
    return Workload(
        arrival="closed", concurrency=users, requests=count, prompt=prompt, output=output
    )


def _length(cells: Cells, column: str, assumed: list[Assumed]) -> LengthChoice:
    tokens, shortest = cells.required(column), cells.number("shortest_length_share")
    said = cells.text("length_distribution")
    if shortest is None and said != "fixed":
        assumed.append(Assumed(column, tokens, "the same for every request"))
    if not shortest or shortest >= 1:
        return LengthChoice(tokens=tokens)
    return LengthChoice(kind="uniform", tokens=tokens, shortest=shortest)
