"""Shapes of models that a row's columns leave open, told by the parameters that it states."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from mpsim.errors import CalibrationError
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells
from mpsim.memo import remembered
from mpsim.workload import Transformer, model, model_names

__all__ = [
    "check_parameters",
    "counted",
    "gate_of",
    "head_of",
    "kin_of",
    "layers_of_experts",
    "misnamed",
    "stated",
    "tables",
]

_HEADS = (64, 128, 256)  # widths of a head that published models have
_EXPLAINED = 0.05  # columns that come this close leave nothing open
_CONTRADICTED = 0.1  # of the parameters; columns and statements round, and count tables or not
_BILLION = 1e9
_MISNAMED = 1.5
_NAMED = r"(?<![\w.×])(\d+(?:\.\d+)?) ?B(?![\w-])"  # not those of experts, such as 8x7B or 30B-A3B
_PADDED = 0.02  # of a vocabulary, so that it divides
_CUT = r"\bproxy|truncated|(fewer|less|of \d+) layers|single layer"  # words of a model that is not whole


def counted(cells: Cells, *, gated: bool, head_dim: int | None = None) -> float:
    """Parameters of the layers that the columns of a row describe, norms and biases left out [1].

    Notes
    -----
    ``L (2 h d (a + k) + g h f)`` with layers L, width h, heads a of width d, keys and values k, matrices of an MLP g (3 gated, else 2) and its inner width f; where a layer
    has experts, all of them in place of the MLP.
    """
    layers, width, heads = (cells.required(name) for name in ("layers", "hidden", "heads"))
    each = head_dim or cells.whole("head_dim") or width // heads
    shared = cells.whole("kv_heads") or heads
    matrices = 3 if gated else 2
    dense = matrices * width * (cells.whole("ffn_hidden") or 4 * width)
    experts, mixed = cells.whole("moe_experts") or 0, 0
    if experts:
        of_all = layers - (cells.whole("moe_dense_layers") or 0)
        mixed = of_all // (cells.whole("moe_every") or 1)
    expert = matrices * width * (cells.whole("moe_ffn_hidden") or 0)
    experts += cells.whole("moe_shared_experts") or 0
    attention = 2 * width * each * (heads + shared)
    return float(layers * attention + (layers - mixed) * dense + mixed * experts * expert)


def tables(cells: Cells) -> float:
    """Parameters of the table of tokens [1]; of the head as many, where it has a matrix of its own."""
    return float(cells.required("hidden") * (cells.whole("vocab") or 0))


def stated(cells: Cells) -> float:
    """Parameters that a row states, of a run or of a whole training [1]; 0 where it states none."""
    billions = cells.number("params_billion") or cells.number("params_total_b") or 0.0
    return billions * _BILLION


def kin_of(cells: Cells) -> Transformer | None:
    """The published model of the catalog that has the sizes of a row, whatever the row calls it: it tells what the columns leave open.

    Examples
    --------
    >>> sizes = {"layers": "61", "hidden": "7168", "heads": "128", "moe_experts": "256", "moe_ffn_hidden": "2048"}
    >>> kin_of(Cells(sizes)).name
    'deepseek-v3'
    """
    sizes = [cells.whole(name) for name in ("layers", "hidden", "heads")]
    experts = cells.whole("moe_experts") or 0
    width = (experts and cells.whole("moe_ffn_hidden")) or cells.whole("ffn_hidden")
    for kin in _catalog().get((*sizes, experts, width), ()):
        alike = (cells.whole("kv_heads"), kin.kv_heads), (cells.whole("vocab"), kin.vocab)
        if kin.mla or all(not ours or abs(ours / of_kin - 1) < _PADDED for ours, of_kin in alike):
            return kin
    return None


def layers_of_experts(cells: Cells) -> dict[str, tuple[int, str]]:
    """Shared experts, leading layers without experts, and every how many layers have them: of the row, else of the published model of its sizes, and then why."""
    kin = kin_of(cells)
    found: dict[str, tuple[int, str]] = {}
    # layers without experts are leading ones or every so many: who states one of the two states both
    told = any(cells.text(f"moe_{name}") for name in ("dense_layers", "every"))
    for name, usual in (("shared_experts", 0), ("dense_layers", 0), ("every", 1)):
        value, why = cells.whole(f"moe_{name}"), ""
        silent = value is None and not (told and name != "shared_experts")
        if silent and kin is not None and kin.moe is not None:
            value = getattr(kin.moe, name)
            why = f"{kin.name} has these sizes" if value != usual else ""
        found[name] = (usual if value is None else value, why)
    return found


@remembered(1)
def _catalog() -> Mapping[tuple[int | None, ...], list[Transformer]]:
    """Models of the catalog by their sizes."""
    found: dict[tuple[int | None, ...], list[Transformer]] = {}
    for kin in map(model, model_names()):
        experts = kin.moe.experts if kin.moe else 0
        width = kin.moe.ffn_hidden if kin.moe else kin.ffn_hidden
        found.setdefault((kin.layers, kin.hidden, kin.heads, experts, width), []).append(kin)
    return found


def check_parameters(cells: Cells, simulated: float) -> None:
    """Refuse a row whose columns make a model of other parameters than it states, more than a tenth apart however tables are counted.

    Raises
    ------
    CalibrationError
        That names both; not of a row whose words say that its model is cut.
    """
    known = stated(cells)
    table = tables(cells)
    positions = float(cells.required("hidden") * (cells.whole("seq_len") or 0))
    counts = [simulated + more for more in (0.0, -table, table, positions)]
    if not known or not simulated or _is_cut(cells):
        return
    if min(abs(count / known - 1) for count in counts) > _CONTRADICTED:
        raise CalibrationError(
            f"its columns make {simulated / _BILLION:.3g} billion parameters where it states {known / _BILLION:.3g}"
        )


def _is_cut(cells: Cells) -> bool:
    """Whether a row's words say that its model is not whole."""
    text = f"{cells.text('model')} | {cells.text('notes')}"
    return bool(re.search(_CUT, text, flags=re.IGNORECASE))


def misnamed(cells: Cells, simulated: float) -> tuple[Assumed, ...]:
    """What is told of a dense model whose columns make half as many parameters again as the size in its name says, or fewer by as much: names round, columns count.

    Examples
    --------
    >>> [told.value for told in misnamed(Cells({"model": "Llama-2 70B"}), 6.7e9)]
    ['6.7 billion parameters']
    """
    sizes = re.findall(_NAMED, cells.text("model"))
    if len(sizes) != 1 or not simulated or _is_cut(cells) or cells.whole("moe_experts"):
        return ()
    ratio = simulated / (float(sizes[0]) * _BILLION)
    if 1 / _MISNAMED <= ratio <= _MISNAMED:
        return ()
    made = f"{simulated / _BILLION:.3g} billion parameters"
    return (Assumed("model", made, f"as its columns have it, not the {sizes[0]} of its name"),)


def gate_of(cells: Cells) -> bool | None:
    """Whether the parameters that a row states are those of gated MLPs; None where it states none, or all its columns."""
    if cells.text("gated_mlp"):
        return None
    best = _nearest(cells)
    return None if best is None else best[0]


def head_of(cells: Cells) -> int | None:
    """Width of a head where heads of the usual width do not explain the parameters that a row states, None where they do."""
    if cells.text("head_dim"):
        return None
    best = _nearest(cells)
    return None if best is None else best[1]


def _nearest(cells: Cells) -> tuple[bool, int | None] | None:
    """Gate and width of a head (None for the usual one) whose parameters come nearest to the stated ones."""
    known = stated(cells)
    if not known or not all(cells.whole(name) for name in ("layers", "hidden", "heads")):
        return None
    gates = (False, True) if not cells.text("gated_mlp") else (bool(cells.flag("gated_mlp")),)

    def off(gated: bool, head: int | None) -> float:
        layers, table = counted(cells, gated=gated, head_dim=head), tables(cells)
        # some count the table once, which the head shares or which they leave out with the positions
        return min(abs((layers + times * table) / known - 1) for times in (1, 2))

    usual = min(gates, key=lambda gated: off(gated, None))
    if cells.text("head_dim") or off(usual, None) <= _EXPLAINED:
        return usual, None
    # a narrower or wider head has to explain them to be believed
    best = min(itertools.product(gates, _HEADS), key=lambda shape: off(*shape))
    return best if off(*best) <= _EXPLAINED else (usual, None)
