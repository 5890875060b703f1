"""Kernels of serving engines, priced as services price them: the error by kind, format, accelerator and engine.

Covers: products, grouped products of experts and decode attention of validation/data/serving-kernels.csv (each row with its source).
Question: how far is the one price of a kernel from what each engine's kernel was measured at, and which bars are missed?

Run from the repository's root: python validation/serving_kernels.py. It rewrites validation/serving_kernels.md.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mpsim.formats.tables import read_rows
from mpsim.formats.words import gpu
from mpsim.hardware import Cluster, build_cluster
from mpsim.memo import remembered
from mpsim.serving.plan import CACHE_BYTES
from mpsim.serving.prices import DecodeAttention, Products
from mpsim.serving.rates import Rates, rates_of
from mpsim.serving.work import FORMATS, Attention, ExpertWork, Format, Linear
from mpsim.workload import Operator, OperatorKind, Phase, Role

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "validation" / "data" / "serving-kernels.csv"
BARS = {"gemm": 0.08, "attention-decode": 0.12, "mla-decode": 0.12, "experts": 0.20}
NARROW_BAR = 0.12  # of products of 8 and 4 bits
WORDS = {"w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4", "int4_wo": "w4a16"}
KERNELS = {
    "trtllm": "trtllm",
    "min_latency": "trtllm",
    "deepgemm": "deepgemm",
    "cutlass": "cutlass",
    "triton": "triton",
}
LATENT = 64, 512  # rotary and latent width of a cached token
HEAD = """# Kernels of serving engines

Mean error and bias of mpsim's price of a kernel, which is one for all engines and here at the clocks of a short run, against each engine's kernel; error = predicted / measured - 1. Products of 8 and 4 bits were measured with what quantises
their input, and so are they priced here; services fuse it where a tensor has one scale; experts are the rows whose routing is balanced. An asterisk marks a missed bar: products 8 % (8 and 4 bits 12 %), decode
attention 12 %, experts 20 %. L40S and RTX PRO 6000 keep the measured cache of up to 96 and 128 MB in their second-level cache, from which no service reads. Written by `python validation/serving_kernels.py`.
"""


class Balanced(ExpertWork):
    """Experts that get equally many tokens each, as these kernels were measured."""

    __slots__ = ()

    def rows(self, tokens: np.ndarray) -> np.ndarray:
        """The same on every rank."""
        return tokens * self.top_k / self.ep

    def touched(self, tokens: np.ndarray) -> np.ndarray:
        """All of them from ``experts / top_k`` tokens on."""
        return np.minimum(tokens * self.top_k, self.experts) / self.ep


@remembered(16)
def machine(name: str) -> tuple[Cluster, Rates]:
    """Eight accelerators of a name, and their rates."""
    words = name if "GB" in name.split(" ", maxsplit=1)[0] else re.sub(r"\s*\(.*\)", "", name)
    cluster = build_cluster(accelerator=gpu(words), accelerators_per_node=8, nodes=1)
    rates = rates_of(cluster)
    casts = {**rates.cast_latency, "fp8": rates.cast_latency["fp8_block"]}  # measured apart
    return cluster, dataclasses.replace(rates, cast_latency=casts)


def product(role: Role, n: int, k: int, *, grouped: bool = False) -> Operator:
    """One rank's product for a token."""
    kind = OperatorKind.GROUPED_GEMM if grouped else OperatorKind.GEMM
    return Operator(name="", kind=kind, role=role, phase=Phase.FORWARD, m=1, n=n, k=k)


def predicted(row: dict[str, str]) -> float:
    """Seconds of the row's kernel as a service has it."""
    cluster, rates = machine(row["accelerator"])
    kernel = next((name for word, name in KERNELS.items() if word in row["kernel"]), "auto")
    products = Products(cluster, rates, kernel, clocks="burst")
    size = {name: int(value) for name, value in row.items() if value.isdigit()}
    if row["kind"] == "gemm":
        linear = Linear(product(Role.KERNEL, size["n"], size["k"]), 1, weights(row, rates))
        return float(products.seconds(linear, np.array([float(size["m"])]))[0])
    if row["kind"] == "experts":
        inner = size["ffn"] // size["tp"]
        pair = (2 * inner, size["hidden"]), (size["hidden"], inner)
        grouped = tuple(product(Role.UP, n, k, grouped=True) for n, k in pair)
        experts = Balanced(
            1, size["experts"], size["topk"], grouped, size["ep"], weights(row, rates)
        )
        return float(products.expert_seconds(experts, np.array([float(size["tokens"])]))[0])
    latent = row["kind"] == "mla-decode"
    heads, width = size["heads"], size.get("head_dim", 0)
    shared = 1 if latent else size["kv_heads"]
    read = sum(LATENT) if latent else 2 * shared * width
    multiplied = sum(LATENT) + LATENT[1] if latent else 2 * width
    shape = Attention(1, heads, shared, width, width, read, multiplied, latent=latent)
    decode = DecodeAttention(shape, rates, CACHE_BYTES[row["kv_dtype"] or "bf16"], shared=True)
    return float(decode.seconds(size["batch"], float(size["batch"] * size["context"])))


def weights(row: dict[str, str], rates: Rates) -> Format:
    """Format of the row's weights; without matrix units for it they alone are narrow."""
    form = FORMATS[WORDS.get(row["dtype"], row["dtype"])]
    if form.compute in rates.peaks:
        return form
    return Format(form.name, form.bytes, "bf16", "bf16")


def report(rows: Iterable[dict[str, str]]) -> Iterable[str]:
    """Lines of the table."""
    errors: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(dict)
    for row in rows:
        if row["kind"] not in BARS or row["distribution"].startswith("power") or row["window"]:
            continue
        cache = f", {row['kv_dtype']} cache" if row["kv_dtype"] else ""
        key = row["kind"], row["dtype"] + cache, row["accelerator"]
        error = predicted(row) / (float(row["latency_us"]) * 1e-6) - 1
        errors[key].setdefault(row["engine"], []).append(error)
    engines = sorted({engine for group in errors.values() for engine in group})
    yield f"| kernel | format | accelerator | {' | '.join(engines)} |"
    yield f"| --- | --- | --- |{' ---: |' * len(engines)}"
    for (kind, form, chip), group in sorted(errors.items()):
        bar = NARROW_BAR if kind == "gemm" and form != "bf16" else BARS[kind]
        cells = (cell(group[engine], bar) if engine in group else "" for engine in engines)
        yield f"| {kind} | {form} | {chip} | {' | '.join(cells)} |"


def cell(errors: list[float], bar: float) -> str:
    """Mean size, bias and number of errors, marked where the mean is over the bar."""
    mean = statistics.fmean(map(abs, errors))
    star = "*" if mean > bar else ""
    return f"{mean:.0%}{star} ({statistics.fmean(errors):+.0%}, {len(errors)})"


if __name__ == "__main__":
    text = "\n".join([HEAD, *report(read_rows(DATA)), ""])
    (ROOT / "validation" / "serving_kernels.md").write_text(text, encoding="utf-8")
