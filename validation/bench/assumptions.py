"""Assumptions: what is taken for granted where a row of a training table leaves a column empty, each told to the reader."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.shapes import gate_of, head_of
from bench.tables import said, sharding_of, table, words_of
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells
from mpsim.parallel import AXES

__all__ = [
    "BY_FAMILY",
    "FEW",
    "Filled",
    "fill_in",
    "guesses",
    "instance_of",
    "network_of",
    "slices_of",
    "system_of",
    "with_batch",
]

BY_FAMILY = "usual with its framework"
FEW = "there are fewer sequences than accelerators"
_SAID = "as its words say"
_TILE = 256  # widths of gated MLPs are multiples of it
_STATED = ("tp", "pp", "dp")
_TENSOR, _TOGETHER = (1, 2, 4, 8, 16), 8  # ranks that share a layer, at most those of a usual node
_MULTIPLYING = tuple(axis.name for axis in AXES if axis.multiplies)


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """A row without empty columns that matter.

    Parameters
    ----------
    cells : Cells
    assumed : tuple of Assumed
        Such as ``micro_batch_seqs = 1 (the least)``.
    """

    cells: Cells
    assumed: tuple[Assumed, ...] = ()

    def with_column(self, column: str, value: str, why: str) -> Filled:
        """The same with an empty column filled, or unchanged where it is not empty."""
        if self.cells.text(column):
            return self
        assumption = Assumed(column, value, why)
        return Filled(Cells({**self.cells.values, column: value}), (*self.assumed, assumption))


def fill_in(cells: Cells, rule: Mapping[str, Any]) -> Filled:
    """Fill what a row leaves open: by its family's rule first, then by what is usual.

    Parameters
    ----------
    cells : Cells
    rule : mapping
        Of its family; ``assume`` holds columns and values, ``micro_batch: per accelerator`` says that the column counts the sequences of
        one accelerator although several share them, and that a replica takes all of its own at once.

    Examples
    --------
    >>> row = Cells({"num_accel": "16", "global_batch_seqs": "64", "zero_stage": "3", "layers": "2"})
    >>> fill_in(row, {"assume": {"recompute": "none"}}).cells.text("micro_batch_seqs")
    '4'
    """
    row = _from_words(Filled(cells))
    for column, value in rule.get("assume", {}).items():
        text = cells.text(value["same_as"]) if isinstance(value, Mapping) else str(value)
        row = row.with_column(column, text, BY_FAMILY)
    row = _network(_head(_inner(_gate(_shape(_divided(_degree(row)))))))
    for column, entries in table("assumptions")["columns"].items():
        for entry in entries:
            if not row.cells.text(column) and _fits(row.cells, entry["where"]):
                value = _value(row.cells, entry)
                row = row.with_column(column, value, entry["why"]) if value else row
        if column == "pp":
            row = _microbatch(_replicas(row))
    return _at_once(row) if rule.get("micro_batch") == "per accelerator" else row


def _from_words(row: Filled) -> Filled:
    """The row with columns that its words or notes state, such as ``ETP 2`` or ``ETP = TP``."""
    text = f"{said(row.cells)} | {row.cells.text('notes')}"
    if sharding := sharding_of(row.cells):
        row = row.with_column("zero_stage", sharding, _SAID)
    for entry in table("assumptions")["words"]:
        if not row.cells.text(entry["column"]) and (match := re.search(entry["pattern"], text)):
            stated = entry["value"] if "value" in entry else match[match.lastindex or 0]
            value = row.cells.text(entry["same_as"]) if "same_as" in entry else stated
            row = row.with_column(entry["column"], value, _SAID) if value else row
    return row


def _fits(cells: Cells, where: Mapping[str, str]) -> bool:
    return all(re.fullmatch(pattern, words_of(cells, column)) for column, pattern in where.items())


def _value(cells: Cells, entry: Mapping[str, Any]) -> str:
    """The value of an entry; the sequences of one replica where it says so, if they divide."""
    if "value" in entry:
        return str(entry["value"])
    if entry["same_as"] != "local_batch":
        return cells.text(entry["same_as"])
    batch, replicas = cells.number("global_batch_seqs"), cells.number("dp")
    if not batch or not replicas or batch % replicas:
        return "" if "at_most" in entry else "1"
    each = int(batch / replicas)
    most = int(entry.get("at_most", each))
    return str(max(size for size in range(1, min(most, each) + 1) if each % size == 0))


def with_batch(cells: Cells, rule: Mapping[str, Any], *, timed: bool = False) -> Filled:
    """Fill in the length of sequences and the batch where a row that was measured as a rate, which hardly depends on them, states none.

    Parameters
    ----------
    cells : Cells
    rule : mapping
        Of its family; see `fill_in`.
    timed : bool
        Whether a time was measured instead, which is in proportion to the batch: then only the row's own words count.

    Returns
    -------
    Filled
        All other columns as they were.
    """
    row = Filled(cells)
    batches = table("assumptions")["batches"]
    for entry in batches["sequence_lengths"]:
        if re.fullmatch(entry["pattern"], cells.text("model"), flags=re.IGNORECASE):
            row = row.with_column("seq_len", str(entry["value"]), entry["why"])
    if cells.text("global_batch_seqs"):
        return row
    whole = fill_in(row.cells, rule).cells
    replicas, length = whole.number("dp"), whole.number("seq_len")
    said = re.search(batches["tokens"]["pattern"], cells.text("notes"), flags=re.IGNORECASE)
    if said and length and replicas:
        sequences = max(1, round(float(said[1]) * 1e6 / length / replicas)) * replicas
        return row.with_column("global_batch_seqs", f"{sequences:.0f}", batches["tokens"]["why"])
    each, pp = whole.number("micro_batch_seqs"), whole.number("pp")
    if timed or not replicas or not each or not pp:
        return row
    usual = next(entry for entry in batches["microbatches"] if _fits(whole, entry["where"]))
    number = whole.number("num_microbatches") or usual["each"] * pp
    batch = f"{replicas * each * number:.0f}"
    row = row.with_column("micro_batch_seqs", f"{each:.0f}", "as where a batch is stated")
    return row.with_column("global_batch_seqs", batch, usual["why"])


def _degree(row: Filled) -> Filled:
    """The one degree of parallelism that is left out, where the others are stated and divide the accelerators."""
    cells = row.cells
    open_ones = [axis for axis in _STATED if not cells.text(axis)]
    count = cells.number("num_accel")
    if len(open_ones) != 1 or open_ones == ["dp"] or not count:
        return row
    taken = math.prod(cells.number(axis) or 1.0 for axis in _MULTIPLYING)
    if count % taken:
        return row
    return row.with_column(open_ones[0], str(int(count / taken)), "what the other degrees leave")


def _divided(row: Filled) -> Filled:
    """Tensor parallelism of as many ranks as leave each replica a sequence, where no degree is stated and there are fewer sequences than accelerators."""
    cells = row.cells
    count, batch = cells.whole("num_accel"), cells.whole("global_batch_seqs")
    if not count or not batch or any(cells.text(axis) for axis in _STATED):
        return row
    ranks = count // (cells.whole("cp") or 1)
    each = cells.whole("accel_per_node") or _TOGETHER
    fits = (tp for tp in _TENSOR if tp <= each and ranks % tp == 0 and batch % (ranks // tp) == 0)
    tp = next(fits, 1)
    return row if tp == 1 else row.with_column("tp", str(tp), FEW)


def _microbatch(row: Filled) -> Filled:
    """Sequences of a microbatch, where their number is stated."""
    cells = row.cells
    batch, replicas, number = (
        cells.number(column) for column in ("global_batch_seqs", "dp", "num_microbatches")
    )
    if not batch or not replicas or not number or batch % (replicas * number):
        return row
    each = str(int(batch / (replicas * number)))
    return row.with_column("micro_batch_seqs", each, "by the number of microbatches")


def _shape(row: Filled) -> Filled:
    """Attention heads of 128 where their number is not stated."""
    cells, usual = row.cells, 128
    width = cells.number("hidden")
    if cells.text("heads") or not width or width % usual:
        return row
    return row.with_column("heads", str(int(width / usual)), "heads of 128")


def _gate(row: Filled) -> Filled:
    """MLPs with a gate or without, as their parameters tell."""
    gated = gate_of(row.cells)
    if gated is None:
        return row
    return row.with_column("gated_mlp", str(int(gated)), "as the parameters tell")


def _head(row: Filled) -> Filled:
    """Width of a head, where the parameters tell that it is not the usual one."""
    width = head_of(row.cells)
    return (
        row if width is None else row.with_column("head_dim", str(width), "as the parameters tell")
    )


def _inner(row: Filled) -> Filled:
    """The usual width of an MLP where it is not stated: four times the hidden size, or as many parameters in three matrices."""
    cells = row.cells
    width = cells.number("hidden")
    if cells.text("ffn_hidden") or not width:
        return row
    if not cells.flag("gated_mlp"):
        return row.with_column("ffn_hidden", str(int(4 * width)), "four times the hidden size")
    inner = math.ceil(8 * width / 3 / _TILE) * _TILE
    return row.with_column(
        "ffn_hidden", str(inner), "as many parameters as four times the hidden size without a gate"
    )


def _replicas(row: Filled) -> Filled:
    """Replicas are as many as the accelerators have room for."""
    count = row.cells.number("num_accel")
    taken = math.prod(row.cells.number(axis) or 1.0 for axis in _MULTIPLYING if axis != "dp")
    if not count or count % taken:
        return row
    return row.with_column("dp", str(int(count / taken)), "what the accelerators have room for")


def _at_once(row: Filled) -> Filled:
    """The sequences of a replica as one microbatch, where the column has those of one of its accelerators."""
    cells = row.cells
    each, batch = cells.number("micro_batch_seqs"), cells.number("global_batch_seqs")
    replicas, sharing = cells.number("dp"), cells.number("tp") or 1.0
    if not each or not batch or not replicas or each * sharing * replicas != batch or sharing == 1:
        return row
    value = str(int(each * sharing))
    why = f"{each:g} is of one accelerator, a replica has {sharing:g}"
    assumption = Assumed("micro_batch_seqs", value, why)
    return Filled(Cells({**cells.values, "micro_batch_seqs": value}), (*row.assumed, assumption))


def _network(row: Filled) -> Filled:
    """NICs of a usual node of this kind, where none are stated."""
    entry = network_of(row.cells.text("accelerator"), row.cells.text("inter_node_link"))
    if entry is None or (row.cells.text("nics_per_node") and row.cells.text("nic_gbit_s")):
        return row
    count, each = row.cells.number("num_accel"), row.cells.number("accel_per_node")
    if count and each and count <= each:
        return row
    for column in ("nics_per_node", "nic_gbit_s", "inter_node_link"):
        usual = min(entry[column], int(each or 8)) if column == "nics_per_node" else entry[column]
        row = row.with_column(column, str(usual), entry["why"])
    return row


def guesses(assumed: Sequence[Assumed]) -> int:
    """How many settings that a step time depends on a row does not state."""
    guessed = {entry.to for entry in assumed if entry.why != _SAID}
    return len(guessed & {*table("assumptions")["guesses"]})


def network_of(accelerator: str, link: str = "") -> Mapping[str, Any] | None:
    """NICs of a usual node with this accelerator and such words for its network, None where none are known."""
    return _entry("networks", accelerator, link)


def system_of(accelerator: str) -> str | None:
    """The system of the catalog whose accelerators are joined beyond the node, None for the others."""
    entry = _entry("systems", accelerator)
    return None if entry is None else str(entry["system"])


def instance_of(cells: Cells) -> Mapping[str, str] | None:
    """The cloud instance that a row's NICs are those of, None where they are those of none."""
    entries: list[Mapping[str, Any]] = table("assumptions")["instances"]
    return next((entry for entry in entries if _fits(cells, entry["where"])), None)


def slices_of(cells: Cells) -> int:
    """How many slices of a torus the row's words name; 1 where they name none."""
    for entry in table("assumptions")["slices"]:
        match = re.fullmatch(entry["pattern"], cells.text(entry["column"]))
        if match is not None:
            return int(match[1])
    return 1


def _entry(section: str, text: str, link: str = "") -> Mapping[str, Any] | None:
    entries: list[Mapping[str, Any]] = table("assumptions")[section]
    for entry in entries:
        words = (entry["pattern"], text), (entry.get("link", ".*"), link)
        if all(re.fullmatch(*each, flags=re.IGNORECASE) for each in words):
            return entry
    return None
