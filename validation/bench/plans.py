"""Plans: tables of whole trainings, whose accelerator-hours are predicted as ``mpsim plan`` does."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from bench.assumptions import Filled, fill_in, guesses
from bench.rows import Row
from bench.runs import read_run
from bench.shapes import check_parameters, counted, head_of, stated, tables
from bench.tables import of_stack, rule_of, table
from mpsim.errors import CalibrationError
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells
from mpsim.result.residuals import Interval
from mpsim.scenario import Scenario
from mpsim.simulate import simulate_step
from mpsim.study.facility import Facility
from mpsim.study.plan import Assumptions, plan_training
from mpsim.training.intervals import told
from mpsim.validate.records import Record

__all__ = ["MEASURED", "as_run", "assumptions_of", "blank", "hours_of", "predict"]

MEASURED = (
    *("accelerator_hours", "days", "mfu_pct_stated", "tokens_per_s_per_accel_stated"),
    *("energy_mwh", "co2_t", "implied_6nd_mfu_pct"),
)
_BILLION, _MILLION = 1e9, 1e6
_MORE = 0.05  # parameters beyond what columns explain that are told


def blank(row: Row) -> list[Record]:
    """The row's record without a prediction."""
    cells = row.configuration
    record = Record(
        id=row.id,
        family=cells.text("developer") or "developer not stated",
        kind="plan",
        unit="h",
        measured=row.measured.number("accelerator_hours"),
        size=cells.number("accel_count"),
    )
    return [record]


def predict(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Fill in the accelerator-hours.

    Raises
    ------
    CalibrationError, ScenarioError
        If the row does not describe a training that can be planned.
    """
    cells = row.configuration
    tokens = cells.required_number("tokens_b") * _BILLION
    row_told = as_run(cells)
    rule, run = read_run(row_told.cells)
    result = simulate_step(Scenario.from_mapping(run.scenario))
    assumed = (*row_told.assumed, *run.assumed)
    setting = dataclasses.replace(told(result.headline), guessed=guesses(assumed))
    check_parameters(cells, result.summary["parameters"]["total"])
    setting = of_stack(setting, rule)
    training = plan_training(
        result,
        tokens,
        assumptions_of(cells),
        setting=setting,
        without=cells.text("developer"),
    )
    hours, (low, high) = training.hours, training.spread
    if hours_of(cells) == "computing":
        hours, (low, high) = training.computing_hours, training.computing_spread
    return [
        dataclasses.replace(
            blank,
            predicted=hours,
            assumed=tuple(map(str, assumed)),
            setting=setting,
            ends=Interval(hours * low, hours * high, training.basis),
        )
        for blank in blanks
    ]


def hours_of(cells: Cells) -> str:
    """What the hours of a row contain: those of the steps (``computing``) or of the ``allocation``."""
    steps = _said("hours", "computing", cells.text("hours_definition"))
    return "computing" if steps else "allocation"


def as_run(cells: Cells) -> Filled:
    """The row of a whole training as that of a training run, whose rate was measured.

    Raises
    ------
    CalibrationError
        If it does not say which model was trained on what.
    """
    names = table("plans")["columns"]
    values = {name: cells.text(name) for name in names["same"]}
    values |= {name: cells.text(other) for name, other in names.items() if name != "same"}
    values |= _experts(cells) | _accelerator(cells) | _network(cells)
    values["overlap_notes"] = words = cells.text("zero_or_fsdp")
    for name, section, text in (
        ("zero_stage", "sharding", words),
        ("recompute", "recomputations", cells.text("framework")),
    ):
        values[name] = next(_read(section, text, name.partition("_")[0]), "")
    values["num_accel"] = cells.text("accel_count")
    count = str(table("plans")["assumed"]["accelerators"])
    row = Filled(Cells(values)).with_column("num_accel", count, "their number is not stated")
    return _batch(_deepened(row), cells)


def assumptions_of(cells: Cells) -> Assumptions:
    """How often a training of its time stopped, and whether for checkpoints."""
    date, eras = cells.text("date"), table("plans")["eras"]
    era = next(entry for entry in eras if re.search(entry["pattern"], date))
    return Assumptions(
        facility=Facility.of(),
        failures=float(era["failures"]),
        restart=None if era["restart"] is None else float(era["restart"]),
        background=bool(era["background"]),
    )


def _said(section: str, name: str, text: str) -> bool:
    return bool(re.search(table("plans")[section][name], text, flags=re.IGNORECASE))


def _read(section: str, text: str, name: str) -> Iterator[str]:
    """Values of the entries of a section whose pattern occurs in a text, its groups put in."""
    for entry in table("plans")[section]:
        match = re.search(entry["pattern"], text, flags=re.IGNORECASE)
        if match is not None:
            yield match.expand(str(entry[name]))


def _accelerator(cells: Cells) -> dict[str, str]:
    """The accelerator under the name that training runs have for it."""
    text = cells.text("accelerator")
    name = next(_read("accelerators", text, "name"), "")
    if not name:
        raise CalibrationError("accelerator is not stated")
    entry = next(
        entry
        for entry in table("plans")["accelerators"]
        if re.search(entry["pattern"], text, flags=re.IGNORECASE)
    )
    return {"accelerator": name, "accel_mem_gb": str(entry.get("gb", ""))}


def _experts(cells: Cells) -> dict[str, str]:
    """Columns of a mixture of experts, of words such as ``64 experts, top 8, every second layer``."""
    text, words = cells.text("moe"), table("plans")["experts"]
    if not text:
        return {}
    found = {
        name: next(filter(None, match.groups()))
        for name in ("number", "top", "shared")
        if (match := re.search(words[name], text, re.IGNORECASE))
    }
    if not {"number", "top"} <= found.keys():
        raise CalibrationError(f"experts {text!r} are not stated by number")
    columns = {
        "moe_experts": found["number"],
        "moe_topk": found["top"],
        "moe_shared_experts": found.get("shared", "0"),
        "moe_ffn_hidden": cells.text("ffn_hidden"),
    }
    if width := re.search(words["width"], text):
        columns["moe_ffn_hidden"] = width[1]
    if every := re.search(words["every"], text):
        columns["moe_every"] = str(words["ordinals"][every[1]])
    return columns


def _network(cells: Cells) -> dict[str, str]:
    """NICs of a node, of words such as ``Omni-Path 4 x 100 Gb/s per node``."""
    text = cells.text("interconnect")

    def number(match: re.Match[str], group: int) -> int:
        return int(match[group].replace(",", ""))

    for entry in table("plans")["networks"]:
        match = re.search(entry["pattern"], text, flags=re.IGNORECASE)
        if match is None:
            continue
        if "total" in entry:
            ports = int(entry["ports"])
            rate = number(match, entry["total"]) // ports
        else:
            ports, rate = number(match, entry["nics"]), number(match, entry["rate"])
        words = str(entry.get("link", text))
        return {"nics_per_node": str(ports), "nic_gbit_s": str(rate), "inter_node_link": words}
    return {"inter_node_link": "InfiniBand"} if "InfiniBand" in text else {}


def _batch(row: Filled, cells: Cells) -> Filled:
    """Sequences of a batch: of the tokens that are stated or usual, rounded to what replicas share; where none are stated as many as keep the stages of a pipeline busy."""
    tokens, length = cells.number("global_batch_tokens_m"), row.cells.number("seq_len")
    usual = float(table("plans")["assumed"]["batch_tokens"])
    if not length:
        return row
    whole = fill_in(row.cells, rule_of(row.cells)).cells
    replicas = whole.number("dp") or 1.0
    # sources round batches to 4M tokens and the like
    shares = max(1, round((tokens * _MILLION if tokens else usual) / length / replicas))
    if not tokens:
        stages, each = whole.whole("pp") or 1, whole.whole("micro_batch_seqs") or 1
        filled = int(table("plans")["assumed"]["microbatches"]) * stages * each
        shares = max(shares, filled if stages > 1 else 1)
    batch = f"{shares * replicas:.0f}"
    if tokens:
        return Filled(Cells({**row.cells.values, "global_batch_seqs": batch}), row.assumed)
    return row.with_column("global_batch_seqs", batch, "their number is not stated")


def _deepened(row: Filled) -> Filled:
    """With so many layers that they hold the parameters that the row states, where its columns explain fewer: FLOPs go with parameters."""
    cells = row.cells
    known, gated = stated(cells), cells.flag("gated_mlp")
    if not known or gated is None or cells.text("moe_experts"):
        return row
    layers, head = cells.required("layers"), head_of(cells)
    inside, outside = counted(cells, gated=gated, head_dim=head), 2 * tables(cells)
    if known <= (1 + _MORE) * (inside + outside):
        return row
    more = round((known - outside) / inside * layers)
    told = Assumed("layers", str(more), "its columns explain fewer parameters than it states")
    return Filled(Cells({**cells.values, "layers": str(more)}), (*row.assumed, told))
