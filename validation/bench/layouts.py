"""Layouts: how the parallelism columns of a training table divide the work."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from bench.assumptions import slices_of
from bench.tables import lookup, said, table
from mpsim.errors import CalibrationError
from mpsim.formats.tables import Cells
from mpsim.parallel import AXES, AXIS_NAMES
from mpsim.schedule import schedule, schedules

__all__ = ["parallelism_of", "schedule_of"]

_STATED = ("tp", "pp", "dp")  # a row names them; it leaves out other axes that it does not use
_ENDS = 2  # embedding and head, where they take the place of a layer each


def parallelism_of(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
    """The section `parallelism` of a row's scenario.

    Raises
    ------
    CalibrationError
        If a degree, or what replicas share, is not stated.
    """
    if not cells.text("dp"):
        raise CalibrationError(_uneven(cells))
    degrees = {axis: cells.required(axis) for axis in _STATED}
    degrees |= {axis: cells.whole(axis) or 1 for axis in AXIS_NAMES if axis not in _STATED}
    if cells.whole("moe_experts") and (divided := cells.whole("etp")):
        degrees["etp"] = divided
    return {
        **degrees,
        "sequence_parallel": bool(cells.flag("sequence_parallel")) and degrees["tp"] > 1,
        **_sharding(cells, rule, degrees["dp"]),
        **_layer_split(cells, rule, degrees["pp"] * schedule_of(cells).get("virtual_stages", 1)),
    }


def _uneven(cells: Cells) -> str:
    """Why a row without replicas has no whole number of them."""
    axes = [axis.name for axis in AXES if axis.multiplies and axis.name != "dp"]
    product = " x ".join(f"{axis} {cells.text(axis)}" for axis in axes if cells.text(axis))
    return f"dp is not stated, and {product} do not divide {cells.text('num_accel')} accelerators"


def _sharding(cells: Cells, rule: Mapping[str, Any], dp: int) -> dict[str, Any]:
    """The states that replicas share, among how many of them where it is not all, and what the host keeps of them."""
    text = cells.text("zero_stage")
    if not text:
        if dp > 1:
            raise CalibrationError("zero_stage is not stated")
        return {"zero": 0}
    entry = lookup("training", "sharding", text)
    shared: dict[str, Any] = {"zero": int(rule.get("zero", entry["zero"]))}
    if shared["zero"] and "offload" in rule:
        shared["offload"] = str(rule["offload"])
    group = _group(cells, entry, text) or _of_slice(cells, rule, dp)
    return shared if group in (None, dp) else {**shared, "shard": group}


def _of_slice(cells: Cells, rule: Mapping[str, Any], dp: int) -> int | None:
    """Ranks of a slice that share one copy, where the row's software gives every slice one."""
    slices = slices_of(cells) if rule.get("shard") == "slice" else 1
    return dp // slices if slices > 1 and dp % slices == 0 else None


def _group(cells: Cells, entry: Mapping[str, Any], text: str) -> int | None:
    """Ranks that share one copy, where words say so."""
    if entry.get("groups") == "node":
        return math.gcd(cells.required("accel_per_node"), cells.required("dp"))
    if entry.get("groups"):
        match = re.fullmatch(entry["pattern"], text, flags=re.IGNORECASE)
        assert match is not None, "the pattern that was looked up fits"
        return int(match[1])
    return None


def _layer_split(cells: Cells, rule: Mapping[str, Any], stages: int) -> dict[str, Any]:
    """How layers are divided: evenly, with the two ends counted, or as evenly as it goes, early stages first."""
    layers = cells.required("layers")
    extra = int(rule["model"].get("mtp_layers", 0))
    if stages > 1 and extra:
        return {"layers_per_stage": _before_predictions(layers, extra, stages)}
    pattern = table("training")["layer_splits"]["pattern"]
    counted = bool(re.fullmatch(pattern, said(cells), flags=re.IGNORECASE))
    if stages == 1 or (layers % stages == 0 and not counted):
        return {}
    if (layers + _ENDS) % stages == 0:
        return {"embedding_counts_as_layer": True, "loss_counts_as_layer": True}
    each, left = divmod(layers + (_ENDS if counted else 0), stages)
    split = [each + (stage < left) for stage in range(stages)]
    if counted:
        split[0] -= 1
        split[-1] -= 1
    return {"layers_per_stage": split}


def _before_predictions(layers: int, more: int, stages: int) -> list[int]:
    """Equal stages but the last, which has modules of multi-token prediction and fewer layers; what it lacks for that the first gives."""
    each = -(-layers // stages)
    short = each * stages - layers
    last = min(short, each)
    if short - last > each:
        each, left = divmod(layers, stages)
        return [each + (stage < left) + more * (stage == stages - 1) for stage in range(stages)]
    return [each - (short - last), *[each] * (stages - 2), each - last + more]


def schedule_of(cells: Cells) -> dict[str, Any]:
    """The section `schedule` of a row's scenario: as many chunks a rank as the order has, whatever is written of orders that have a fixed number.

    Raises
    ------
    CalibrationError
        If its words are not known.
    """
    if cells.required("pp") == 1:
        return {"name": "1f1b"}
    flushes = _flushes(cells)
    more = {"flushes": flushes} if flushes > 1 else {}
    return _order_of(cells) | more


def _flushes(cells: Cells) -> int:
    """Schedules of a step, where the row says how many microbatches each has; 1 where it does not."""
    stated = re.search(table("training")["flushes"], cells.text("notes"), flags=re.IGNORECASE)
    if stated is None:
        return 1
    each = int(stated[1]) * cells.required("micro_batch_seqs") * cells.required("dp")
    flushes, left = divmod(cells.required("global_batch_seqs"), each)
    return 1 if left else flushes


def _order_of(cells: Cells) -> dict[str, Any]:
    """Name and chunks of a row's schedule."""
    name = str(lookup("training", "schedules", cells.text("schedule"))["name"])
    chunks = cells.whole("vp_chunks_per_rank") or 1
    facts = schedule(name)
    if not facts.interleaves and facts.chunks != 1:
        return {"name": name, "virtual_stages": facts.chunks}
    if chunks == 1:
        plain = (other.name for other in schedules() if other.interleaved == name)
        return {"name": next(plain, name)}
    facts = schedule(facts.interleaved or name)
    return {"name": facts.name, **({"virtual_stages": chunks} if facts.interleaves else {})}
