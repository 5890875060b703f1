"""Kernels: GEMM, attention and memory-bound benchmarks, predicted at the clocks of a short run."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.rows import Row
from bench.tables import lookup, table
from mpsim.cost import KernelModel
from mpsim.cost.quantise import FORMATS, format_bytes
from mpsim.errors import CalibrationError
from mpsim.formats.tables import Cells
from mpsim.formats.words import gpu
from mpsim.memo import remembered
from mpsim.result.residuals import Setting, chip_names, format_names
from mpsim.validate.records import Record
from mpsim.workload import (
    Operator,
    OperatorKind,
    Phase,
    Role,
    make_attention,
    make_elementwise,
    make_gemm,
)
from mpsim.workload.builders import BACKWARD_ATTENTION

__all__ = ["MEASURED", "blank", "predict"]

MEASURED = ("time_us", "tflops", "GBps", "fraction_of_peak")
_UNITS = {"time_us": "us", "tflops": "TFLOP/s", "GBps": "GB/s", "fraction_of_peak": "1"}
_MICRO, _TERA, _GIGA = 1e-6, 1e12, 1e9
_ELEMENT_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "int8": 1.0,
    **{name: format_bytes(name) for name in FORMATS},
}
_HALF_BYTES = 2
_BACKWARD = r"(?i)\b(backward|bwd)\b"
_PASSES_OF = {
    **dict.fromkeys(("", "fwd", "forward", "inference"), (Phase.FORWARD,)),
    **dict.fromkeys(("bwd", "backward"), (Phase.INPUT_GRADIENT,)),
    **dict.fromkeys(("both", "training"), (Phase.FORWARD, Phase.INPUT_GRADIENT)),
}
_AND = r"[+_/&]| and "
_MASKS = {"causal": "1", "full": "0", "non-causal": "0", "none": "0"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """Operators that a benchmark runs, and how its source turns their time into a rate.

    Parameters
    ----------
    operators : tuple of Operator
    kernel : str
        Generation of the attention kernel.
    flops, moved : float
        As the source counts them [FLOP, B].
    cast : int
        Elements that are cast to the narrow format.
    clocks : str
        Of a short run (``burst``) or of training (``sustained``).
    """

    operators: tuple[Operator, ...]
    kernel: str
    flops: float
    moved: float
    cast: int = 0
    clocks: str = "burst"


def blank(row: Row) -> list[Record]:
    """The row's record without a prediction, in the unit of the first measured column that is filled."""
    cells = row.configuration
    column = next((name for name in MEASURED if row.measured.text(name)), MEASURED[0])
    return [
        Record(
            id=row.id,
            family=_family(cells),
            kind="kernel",
            unit=_UNITS[column],
            measured=row.measured.number(column),
        )
    ]


def predict(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Fill in the time, or the rate where only a rate was measured.

    Raises
    ------
    CalibrationError, HardwareError
        If the GPU, the operation or the number format is unknown, or the shape is not stated.
    """
    cells = row.configuration
    chip = gpu(cells.text("gpu"))
    precision = lookup("kernels", "precisions", cells.text("dtype"))["precision"]
    work = _work(cells, precision)
    model = _model(cells.text("gpu"), precision, work.kernel, work.clocks)
    seconds = float(model.seconds(work.operators).sum()) + _host_seconds(cells)
    seconds += float(model.quantisation_seconds(work.cast)) if work.cast else 0.0
    figure = {
        "us": seconds / _MICRO,
        "TFLOP/s": work.flops / seconds / _TERA,
        "GB/s": work.moved / seconds / _GIGA,
        "1": work.flops / seconds / chip.peak(FORMATS.get(precision, precision))
        if work.flops
        else 0.0,
    }[blanks[0].unit]
    if not figure:
        raise CalibrationError(
            f"the row is measured in {blanks[0].unit}, which {cells.text('op')!r} has not"
        )
    size = work.flops or work.moved
    setting = Setting(
        {
            "accelerator": chip_names(chip),
            "operation": (_form(cells),),
            "format": format_names(precision),
        },
        size,
    )
    return [
        dataclasses.replace(
            blanks[0], predicted=figure, size=size, figure="kernel", setting=setting
        )
    ]


def _form(cells: Cells) -> str:
    """The kind of operation: ``gemm``, ``attention`` or ``stream``."""
    return str(lookup("kernels", "operations", cells.text("op"))["form"])


@remembered(256)
def _model(gpu_name: str, precision: str, kernel: str, clocks: str) -> KernelModel:
    """The model of a GPU, made once for all its rows; memory-bound work asks nothing of the matrix units."""
    chip = gpu(gpu_name)
    usable = precision if FORMATS.get(precision, precision) in chip.peak_flops else "fp16"
    return KernelModel(chip, usable, attention_kernel=kernel, clocks=clocks)


def _work(cells: Cells, precision: str) -> _Work:
    entry = lookup("kernels", "operations", cells.text("op"))
    build = {"gemm": _gemm, "attention": _attention, "stream": _stream}[entry["form"]]
    return build(cells, entry, precision)


def _gemm(cells: Cells, entry: Mapping[str, Any], precision: str) -> _Work:
    m, n, k = (cells.required(column) for column in "mnk")
    batch = cells.whole("batch") or 1
    size = _ELEMENT_BYTES.get(precision, _HALF_BYTES)
    product = make_gemm(
        Role.KERNEL,
        Phase(entry.get("phase", "forward")),
        m=m,
        n=n,
        k=k,
        batch=batch,
        element_bytes=size,
        result_bytes=max(size, _HALF_BYTES),
        accumulate_bytes=entry.get("accumulate", 0),
    )
    cast = m * k if entry.get("quantised") else 0
    clocks = entry.get("clocks", "burst")
    return _Work((product,), "flash2", product.flops, product.bytes, cast, clocks)


def _attention(cells: Cells, entry: Mapping[str, Any], precision: str) -> _Work:
    if precision in FORMATS and "narrow" not in entry:
        raise CalibrationError(f"attention in {precision} by this kernel has no known times")
    mask = cells.text("causal").lower()
    stated = Cells({"causal": _MASKS.get(mask, mask)})
    causal = stated.flag("causal") if mask != "not stated" else None
    if causal is None:
        raise CalibrationError("causal is not stated")
    seq = cells.required("seq")
    width, width_v = _head_dims(cells.text("head_dim"))
    batch = cells.whole("batch") or _assumed(entry, "batch")
    heads = cells.whole("heads") or _assumed(entry, "heads")
    forward = make_attention(
        Phase.FORWARD,
        sequences=batch,
        queries=seq,
        keys=seq,
        heads=heads,
        kv_heads=cells.whole("kv_heads") or heads,
        head_dim=width,
        head_dim_v=width_v,
        causal=causal,
        window=_window(cells.text("op")),
    )
    phases = _phases(cells.text("pass"))
    share = 0.5 if causal and entry["flops"] == "half" else 1.0
    flops = forward.flops * share
    counted = sum(1.0 if phase is Phase.FORWARD else BACKWARD_ATTENTION for phase in phases)
    operators = tuple(dataclasses.replace(forward, phase=phase) for phase in phases)
    source, by_source = cells.text("source"), entry.get("by_source", {})
    kernel = next((name for word, name in by_source.items() if word in source), entry["kernel"])
    clocks = entry.get("clocks", "burst")
    return _Work(operators, kernel, flops * counted, 0.0, clocks=clocks)


def _window(text: str) -> int:
    """Tokens that a query sees before it, of words such as ``window 1024``; 0 for all."""
    match = re.search(r"\b(?:window|SWA|local)\D{0,8}(\d+)", text, re.IGNORECASE)
    return int(match[1]) if match else 0


def _phases(text: str) -> tuple[Phase, ...]:
    """Phases of words such as ``fwd+bwd``."""
    try:
        return tuple(
            phase for word in re.split(_AND, text) for phase in _PASSES_OF[word.strip().lower()]
        )
    except KeyError:
        raise CalibrationError(f"pass is {text!r}; needed fwd, bwd or fwd+bwd") from None


def _head_dims(text: str) -> tuple[int, int]:
    """Width of a head's queries and of its values, of ``128`` or ``192/128``."""
    match = re.fullmatch(r"(\d+)(?:/(\d+))?", text)
    if match is None:
        raise CalibrationError(f"head_dim is {text!r}; needed such as 128 or 192/128")
    return int(match[1]), int(match[2] or match[1])


def _assumed(entry: Mapping[str, Any], column: str) -> int:
    if column not in entry:
        raise CalibrationError(f"{column} is not stated")
    return int(entry[column])


def _stream(cells: Cells, entry: Mapping[str, Any], precision: str) -> _Work:
    size = _ELEMENT_BYTES.get(precision, _HALF_BYTES)
    elements = _elements(cells)
    if elements:
        moved = float(elements * (_passes(cells, entry) * size + bool(entry.get("mask"))))
    else:
        moved = _stated_bytes(cells)
    count = entry.get("kernels", 1)
    operators = (_streaming(OperatorKind(entry["kind"]), moved),) * count
    return _Work(operators, "flash2", 0.0, moved * count)


def _passes(cells: Cells, entry: Mapping[str, Any]) -> float:
    """Times that a tensor crosses memory: backward it is read beside the gradient of what came of it."""
    text = cells.text("pass") or ("bwd" if re.search(_BACKWARD, cells.text("op")) else "")
    forward = float(entry["passes"])
    back = float(entry.get("back", forward + 1.0))
    return sum(forward if phase is Phase.FORWARD else back for phase in _phases(text))


def _elements(cells: Cells) -> int:
    """Elements of the tensor, from the columns m and n or from words such as ``8192x4096``; 0 where not stated."""
    m, n = cells.whole("m"), cells.whole("n")
    if m and n:
        return m * n
    match = re.search(r"\d+(?:x\d+)+", cells.text("op"))
    return math.prod(map(int, match[0].split("x"))) if match else 0


def _stated_bytes(cells: Cells) -> float:
    """Bytes that the method of measurement states, else what a rate without a size is taken at."""
    sizes = table("kernels")["sizes"]
    match = re.fullmatch(sizes["pattern"], cells.text("timing_method"))
    return float(match[1]) * _GIGA if match else float(table("kernels")["rates"]["bytes"])


def _streaming(kind: OperatorKind, moved: float) -> Operator:
    return make_elementwise(Role.KERNEL, Phase.FORWARD, moved=moved, kind=kind)


def _host_seconds(cells: Cells) -> float:
    """Time that the method of measurement adds, as the row states it."""
    match = re.fullmatch(table("kernels")["host"]["pattern"], cells.text("timing_method"))
    return int(match[1]) * _MICRO if match else 0.0


def _family(cells: Cells) -> str:
    """GPU, kind of operation and number format."""
    label = lookup("kernels", "families", cells.text("op"))["label"]
    return " ".join(part for part in (cells.text("gpu"), label, cells.text("dtype")) if part)
