"""Published kernel benchmarks: the error of each series, fitted and left out.

Covers: GEMM, attention and memory-bound rows of validation/data/kernels.csv (each with its source), predicted at the clocks of a benchmark.
Question: how far is each (GPU, number format, operation) from what was measured, and how far when its constants never saw a row's group?

Run from the repository's root: python validation/kernels.py. It rewrites validation/kernels.md.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench import validate_files
from mpsim.cost import KernelModel
from mpsim.cost.attention import waiting
from mpsim.cost.constants import choose_group, constant_groups
from mpsim.cost.formulas import GemmConstants, gemm_seconds, read_tiling, tiled_gemm_seconds
from mpsim.cost.quantise import FORMATS, format_bytes, quantise_seconds
from mpsim.hardware.components import Accelerator
from mpsim.hardware.lookup import accelerator

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "validation" / "data" / "kernels.csv"
CHIPS = {
    "A100 SXM 80GB": "a100-sxm-80",
    "H100 SXM 80GB": "h100-sxm",
    "H200 SXM": "h200-sxm",
    "B200 SXM": "b200-sxm",
    "B300 SXM": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
}
TRAINING = {"A100 PCIe": "a100-pcie-80", "B200 SXM": "b200-sxm"}
LARGE = {"m": 1024, "n": 512, "k": 512}
STEP, SHRINK, LEAST = 0.2, 0.6, 0.002  # of the pattern search, in logs
SHAPE = (0.8, 3e-6, 3.0)  # memory, launch [s] and knee that left-out fits start from
ANCHOR = 0.02  # mean error that a shape constant costs a log unit away from its start, squared

Row = dict[str, str]
Predict = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Series:
    """Products of one GPU and number format, their times [s], and the constants that predict them."""

    title: str
    rows: list[Row]
    chip: Accelerator
    dtype: str

    def shapes(self) -> np.ndarray:
        return np.array([[float(row[one]) for one in "mnk"] for row in self.rows])

    def seconds(self) -> np.ndarray:
        return np.array([float(row["time_us"]) * 1e-6 for row in self.rows])

    def start(self) -> np.ndarray:
        """What no row of the series moved: the level of training, then (for bf16) a shape as products of any chip have it."""
        level = KernelModel(self.chip, "bf16").peak_fraction("bf16")
        return np.array([level, *(SHAPE if self.dtype == "bf16" else ())])

    def predict(self, fitted: np.ndarray, shapes: np.ndarray) -> np.ndarray:
        group = choose_group("kernels", "gemm", self.chip.name, self.chip.family)
        shape = [group.value(leaf) for leaf in ("memory_fraction", "launch", "knee")]
        e, eta, launch, knee = [*fitted, *shape][:4] if fitted.size == 1 else fitted
        c = GemmConstants(
            compute_fraction=min(e, 1.0), memory_fraction=min(eta, 1.0), launch=launch, knee=knee
        )
        m, n, k = shapes.T
        size = 2.0 if self.dtype == "bf16" else format_bytes(self.dtype)
        moved, bandwidth = size * (m * k + k * n) + 2 * m * n, self.chip.memory_bandwidth
        peak = self.chip.peak(FORMATS.get(self.dtype, self.dtype))
        waves = constant_groups("kernels").get(f"waves.{self.chip.family}")
        if waves and waves.matches(self.chip.name):
            return tiled_gemm_seconds(
                m,
                n,
                k,
                1.0,
                moved,
                peak=peak,
                bandwidth=bandwidth,
                c=c,
                tiling=read_tiling(waves),
            )
        times = gemm_seconds(m, n, k, 1.0, moved, peak=peak, bandwidth=bandwidth, c=c)
        return times + (
            quantise_seconds(m * k, self.dtype, bandwidth) if self.dtype in FORMATS else 0.0
        )


def fit(series: Series, kept: np.ndarray) -> np.ndarray:
    """Pattern search in logs for the least mean error of the rows kept, the shape constants held near their start."""
    start, shapes, times = series.start(), series.shapes()[kept], series.seconds()[kept]

    def cost(offset: np.ndarray) -> float:
        errors = np.abs(np.log(series.predict(start * np.exp(offset), shapes) / times))
        return float(errors.mean() + ANCHOR * (offset[1:] ** 2).sum())

    return start * np.exp(search(cost, start.size))


def search(cost: Callable[[np.ndarray], float], size: int) -> np.ndarray:
    """Pattern search for the offset of least cost, from none."""
    best, step = np.zeros(size), STEP
    lowest = cost(best)
    while step > LEAST:
        tries = [best + sign * step * axis for axis in np.eye(size) for sign in (-1, 1)]
        score, tried = min(((cost(one), one) for one in tries), key=lambda pair: pair[0])
        if score < lowest:
            best, lowest = tried, score
        else:
            step *= SHRINK
    return best


def left_out(series: Series) -> np.ndarray:
    """Error of each row with constants that never saw its weight shape (n, k); in a series of fewer than 20 rows, the row itself."""
    shapes, times = series.shapes(), series.seconds()
    labels = [tuple(shape[1:]) if len(shapes) >= 20 else tuple(shape) for shape in shapes]
    errors = np.empty(len(times))
    for label in set(labels):
        out = np.array([one == label for one in labels])
        if out.all():
            return np.full(len(times), np.nan)
        predicted = series.predict(fit(series, ~out), shapes[out])
        errors[out] = np.abs(predicted / times[out] - 1)
    return errors


def attention_left_out(rows: Sequence[Row]) -> float:
    """Mean error of a sequence length that T and s_half of its curve never saw; curves of fewer than 3 lengths cannot say."""
    curves: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["tflops"] and row["seq"]:
            key = tuple(row[one] for one in ("source", "pass", "causal", "head_dim"))
            curves[key].append((float(row["seq"]), float(row["tflops"])))
    errors = []
    for points in curves.values():
        for point in points if len({seq for seq, _ in points}) >= 3 else ():
            others = np.array([one for one in points if one[0] != point[0]])
            slope, base = np.polyfit(1 / others[:, 0], 1 / others[:, 1], 1)
            errors.append(abs(1 / (base + slope / point[0]) / point[1] - 1))
    return statistics.fmean(errors) if errors else float("nan")


def heads_left_out(rows: Sequence[Row], chip: Accelerator) -> float:
    """Mean error of a row that rate, wait and latent share of its kernel (Transformer Engine, by heads) never saw; one pass."""
    te, place = (
        choose_group("kernels", stem, chip.name, chip.family)
        for stem in ("attention_te", "occupancy")
    )
    way = {"fwd": "forward", "bwd": "backward"}[rows[0]["pass"]]
    start = np.array([te.value(f"{leaf}_{way}") for leaf in ("rate", "wait", "latent")])
    latent = np.array([len({*row["head_dim"].split("/")}) > 1 for row in rows])
    queries = np.array(
        [float(row["batch"]) * float(row["heads"]) * float(row["seq"]) for row in rows]
    )
    tiles = queries / place.value("tile")
    # time over that of the worked pairs at peak: all pairs are counted, half of them worked on
    measured = 2.0 / np.array([float(row["fraction_of_peak"]) for row in rows])

    def predicted(offset: np.ndarray) -> np.ndarray:
        rate, wait, share = start * np.exp(offset)
        waits = waiting(tiles, place.value("processors"), wait, te.value("bend"))
        return waits * te.value("peak") / (rate * np.where(latent, share, 1.0))

    errors = []
    for out in range(len(rows)):
        kept = np.arange(len(rows)) != out

        def cost(offset: np.ndarray, kept: np.ndarray = kept) -> float:
            return float(np.abs(np.log(predicted(offset) / measured))[kept].mean())

        errors.append(abs(predicted(search(cost, 3))[out] / measured[out] - 1))
    return statistics.fmean(errors)


def unseen(rows: Sequence[Row]) -> float:
    """Left-out error of a series of attention rows."""
    if "(TE)" in rows[0]["op"]:
        return heads_left_out(rows, accelerator(TRAINING[rows[0]["gpu"]]))
    return attention_left_out(rows)


def large(row: Row) -> bool:
    """Whether a product is of the size that training runs."""
    return all(int(row[one] or 0) >= least for one, least in LARGE.items())


def line(title: str, errors: Sequence[float], other: float = float("nan")) -> str:
    """One row of a table."""
    sizes = sorted(abs(error) for error in errors)
    tail = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    unseen = "-" if np.isnan(other) else f"{other:.1%}"
    return (
        f"| {title} | {len(sizes)} | {statistics.fmean(sizes):.1%} | {statistics.median(sizes):.1%} | {tail:.1%} "
        f"| {statistics.fmean(errors):+.1%} | {unseen} |"
    )


def table(heading: str, lines: Sequence[str]) -> list[str]:
    head = "| series | rows | mean | median | p90 | bias | left out |"
    return [
        f"## {heading}",
        "",
        head,
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *lines,
        "",
    ]


def products(rows: Sequence[Row], errors: Sequence[float | None]) -> list[str]:
    """Tables of products, all of them and the large ones."""
    found: dict[tuple[str, str], list[tuple[Row, float]]] = defaultdict(list)
    for row, error in zip(rows, errors, strict=True):
        plain = row["op"] == "gemm" or "quantisation" in row["op"]
        if error is not None and plain and row["dtype"] != "fp16" and row["gpu"] in CHIPS:
            found[row["gpu"], row["dtype"]].append((row, error))
    whole, big = [], []
    for (gpu, dtype), pairs in sorted(found.items(), key=lambda item: item[0][::-1]):
        series = Series(f"{gpu} {dtype}", [row for row, _ in pairs], accelerator(CHIPS[gpu]), dtype)
        unseen, training = left_out(series), [large(row) for row in series.rows]
        whole.append(line(series.title, [error for _, error in pairs], unseen.mean()))
        if chosen := [error for row, error in pairs if large(row)]:
            big.append(line(series.title, chosen, unseen[training].mean()))
    return [
        *table("Products of M >= 1024 and N, K >= 512", big),
        *table("Products of all sizes", whole),
    ]


def others(rows: Sequence[Row], errors: Sequence[float | None]) -> list[str]:
    """Tables of attention, of layouts and best shapes, and of memory-bound kernels."""
    found: dict[str, dict[str, list[tuple[Row, float]]]] = defaultdict(lambda: defaultdict(list))
    for row, error in zip(rows, errors, strict=True):
        if error is None:
            continue
        if "attention" in row["op"]:
            kind, what = "Attention", f"{row['op'].split(',')[0]} {row['pass']}"
        elif "gemm" in row["op"]:
            if (row["op"] == "gemm" and row["dtype"] == "bf16") or "quantisation" in row["op"]:
                continue
            kind, what = "Products on other machines and with other stacks", row["op"]
        else:
            kind, what = "Memory-bound kernels", row["op"].split(" (")[0]
        found[kind][f"{row['gpu']}, {what}"].append((row, error))
    text: list[str] = []
    for kind in sorted(found):
        lines = [
            line(
                title,
                [error for _, error in pairs],
                unseen([row for row, _ in pairs]) if kind == "Attention" else np.nan,
            )
            for title, pairs in sorted(found[kind].items())
        ]
        every = [error for pairs in found[kind].values() for _, error in pairs]
        text += table(kind, [*lines, line("**all**", every)])
    return text


def report() -> str:
    """The tables as Markdown."""
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    records = {record.id: record for record in validate_files([DATA]).records}
    errors = [records[str(number)].error for number in range(1, len(rows) + 1)]
    missing = sum(error is None for error in errors)
    head = [
        "# Published kernel benchmarks, predicted",
        "",
        "Absolute errors of predicted against measured time (or rate), and the bias, at the clocks of a benchmark; training layouts at those of training.",
        "`left out` is the mean error of rows whose group the fit never saw: for products a weight shape (n, k), or the row itself in a series of fewer",
        "than 20; for attention a sequence length of its curve, or the row itself where heads are what varies. Products with narrow formats include the cast of the activations. What the targets are, where",
        "they are missed and why: docs/explanation/kernels.md. Written by `python validation/kernels.py`.",
        "",
    ]
    tail = [
        f"{missing} of {len(rows)} rows are not predicted: their GPU is not in the catalog.",
        "",
    ]
    return "\n".join([*head, *products(rows, errors), *others(rows, errors), *tail])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    (ROOT / "validation" / "kernels.md").write_text(report(), encoding="utf-8")
