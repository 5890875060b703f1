"""Power caps, clock locks and energy against what was measured, with boards held out.

Covers: validation/data/power.csv (each row with its source): training under caps on four boards, an A800 under eighteen locks, products at two limits of the same
silicon, services under caps, draws of single states, nodes, racks and whole trainings.
Question: how long does work take and what does it draw under a cap or a lock, on a board that the curve was not fitted to?

Run from the repository's root: python validation/power.py. It rewrites validation/power.md.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

import mpsim
from mpsim.cost import Board, Load, PowerCurve
from mpsim.cost.constants import constant_groups
from mpsim.hardware import accelerator

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "validation" / "data" / "power.csv"
PAGE = ROOT / "validation" / "power.md"
ZEUS = "zeus_nsdi23"
DEEP, USEFUL = (
    0.45,
    0.48,
)  # caps below the first are deep: a cliff on A40, and used by nobody; above the second they are what people set
LEAVES = ("static", "least_voltage", "slope")
WEIGHTS = {"cap": 1.0, "deep": 0.35, "limit": 1.5, "lock": 0.5}
JOULE = 3.6e9  # of a megawatt-hour

Row = dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A measured ratio and how the curve gives it; `what` is time, energy, rate or power."""

    board: str
    what: str
    share: float
    measured: float
    predict: Callable[[PowerCurve], float]

    def error(self, curve: PowerCurve) -> float:
        """Relative error."""
        return self.predict(curve) / self.measured - 1.0

    @property
    def weight(self) -> float:
        """In the fit: deep caps count less, and so do the many locks of one board."""
        if self.what == "power":
            return WEIGHTS["lock"]
        if self.what == "rate":
            return WEIGHTS["limit"]
        return WEIGHTS["deep" if self.share < DEEP else "cap"]


def shipped(name: str = "other") -> PowerCurve:
    """The curve that mpsim has for boards without their own."""
    group = constant_groups("kernels")[f"power_curve.{name}"]
    return PowerCurve(*(group.value(leaf) for leaf in LEAVES))


def work(curve: PowerCurve, cap: float, mean: float) -> tuple[float, float]:
    """Time and energy of work under a cap over those without, all in shares of the board's limit.

    The uncapped mean draw of the work says how much of its time are products, at the limit, and how much is bound by memory, at half of it.
    """
    draws = constant_groups("kernels")["power_draw"]
    high, low = draws.value("products"), draws.value("streams")
    dense = min(max((mean - low) / (high - low), 0.0), 1.0)
    time = energy = 0.0
    for share, full, needed in (
        (dense, high, 1.0),
        (1.0 - dense, low, draws.value("needed_clock")),
    ):
        clock = curve.clock(cap, full)
        seconds = share / min(1.0, clock / needed)
        time += seconds
        energy += seconds * float(curve.power(clock, full))
    return time, energy / mean


def number(text: str) -> float:
    """The first number of a text."""
    found = re.search(r"[0-9]+(?:\.[0-9]+)?", text.replace(",", ""))
    assert found, text
    return float(found[0])


def read() -> list[Row]:
    """All rows."""
    with DATA.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def caps(rows: Iterable[Row]) -> list[Point]:
    """Training under caps: time and energy of every curve below its highest cap."""
    mine = [row for row in rows if ZEUS in row["source"]]
    power = {
        (row["subject"], row["conditions"].split(",")[0], number(row["x"])): float(row["value"])
        for row in mine
        if row["kind"] == "cap_average_power"
    }
    points = []
    for row in mine:
        if row["kind"] not in ("cap_relative_time", "cap_relative_energy"):
            continue
        cap, limit = number(row["x"]), number(row["subject"].partition("max ")[2])
        if cap == limit:
            continue
        mean = power[row["subject"], row["conditions"].split(",")[0], limit] / limit
        index = 0 if row["kind"].endswith("time") else 1
        points.append(
            Point(
                row["subject"].partition(" (")[0],
                ("time", "energy")[index],
                cap / limit,
                float(row["value"]),
                lambda curve, share=cap / limit, mean=mean, index=index: work(curve, share, mean)[
                    index
                ],
            )
        )
    return points


def locks(rows: Iterable[Row]) -> list[Point]:
    """Power of an A800's prefill over that at its highest clock, which is below the limit."""
    mine = [row for row in rows if row["kind"] == "lock_average_power"]
    top = max(mine, key=lambda row: number(row["x"]))
    points = []
    for row in mine:
        clock = number(row["x"]) / number(top["x"])
        measured = float(row["value"]) / float(top["value"])
        points.append(
            Point(
                "A800", "power", clock, measured, lambda curve, f=clock: float(curve.power(f, 1.0))
            )
        )
    return points


PAIRS = (
    ("A100 PCIe", "A100 SXM", "bf16 matmul", 1.0),
    ("MI300X", "MI325X", "bf16 matmul", 1.0),
    ("B200", "GB200", "bf16 matmul", 148 / 152),
    ("B200", "GB200", "fp8 matmul", 148 / 152),
)
"""Boards of the same silicon at two limits; the last is the ratio of their processors."""


def limits(rows: Sequence[Row]) -> list[Point]:
    """Rate of products at the lower limit over that at the higher, of equally many processors."""
    points = []
    for low, high, what, size in PAIRS:
        first, second = (
            next(
                row
                for row in rows
                if row["kind"] == "limit_gemm_rate"
                and row["subject"] == name
                and row["conditions"].startswith(what)
            )
            for name in (low, high)
        )
        share = number(first["x"]) / number(second["x"])
        measured = float(first["value"]) / float(second["value"]) / size
        points.append(
            Point(
                low.split()[0], "rate", share, measured, lambda curve, s=share: curve.clock(s, 1.0)
            )
        )
    return points


def fit(points: Sequence[Point]) -> PowerCurve:
    """The curve nearest to points, large misses counting less than their square."""
    from scipy.optimize import least_squares

    def misses(values: Sequence[float]) -> list[float]:
        curve = PowerCurve(*(float(value) for value in values))
        return [
            point.weight * float(np.log(point.predict(curve) / point.measured)) for point in points
        ]

    found = least_squares(
        misses, (0.21, 0.8, 1.1), bounds=((0.1, 0.5, 0.3), (0.36, 0.95, 3.0)), loss="soft_l1", f_scale=0.05
    )  # fmt: skip
    return PowerCurve(*(float(value) for value in found.x))


def held_out(points: Sequence[Point]) -> dict[str, tuple[PowerCurve, list[tuple[Point, float]]]]:
    """For every board the curve fitted to the others, and its errors."""
    answer = {}
    for board in dict.fromkeys(point.board for point in points):
        curve = fit([point for point in points if point.board != board])
        mine = [point for point in points if point.board == board]
        answer[board] = curve, [(point, point.error(curve)) for point in mine]
    return answer


def mean_error(errors: Iterable[tuple[Point, float]], what: str, least: float = 0.0) -> str:
    """Mean absolute error of some points as a percentage."""
    sizes = [abs(error) for point, error in errors if point.what == what and point.share >= least]
    return f"{100 * statistics.fmean(sizes):.1f} %" if sizes else ""


def summary(title: str, errors: Sequence[tuple[Point, float]]) -> str:
    """A line of errors by what was measured."""
    cells = [
        mean_error(errors, what, least)
        for what, least in (
            *(("time", 0.0), ("time", USEFUL), ("energy", 0.0), ("energy", USEFUL)),
            *(("power", 0.0), ("rate", 0.0)),
        )
    ]
    return f"| {title} | {' | '.join(cells)} |"


SUMMARY = [
    "| | time, all caps | time, caps of half or more | energy, all caps | energy, caps of half or more | power under locks | products at two limits |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
]


def curves(points: Sequence[Point], curve: PowerCurve) -> list[str]:
    """Every cap: what was measured and what the shipped curve gives."""
    lines = [
        "| board | cap | time | predicted | energy | predicted |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    paired = [point for point in points if point.what in ("time", "energy")]
    for time, energy in zip(
        [point for point in paired if point.what == "time"],
        [point for point in paired if point.what == "energy"],
        strict=True,
    ):
        lines.append(
            f"| {time.board} | {100 * time.share:.0f} % | {time.measured:.2f} | {time.predict(curve):.2f} | {energy.measured:.2f} | {energy.predict(curve):.2f} |"
        )
    return lines


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A figure beside the curves: a cap of a service, a state, a node, a training."""

    what: str
    measured: str
    predicted: float
    low: float
    high: float
    unit: str = ""

    @property
    def line(self) -> str:
        """A row of the table; the error is that to the nearer end of what was measured."""
        nearest = min(max(self.predicted, self.low), self.high)
        error = self.predicted / nearest - 1.0
        return f"| {self.what} | {self.measured} | {self.predicted:.3g}{self.unit} | {100 * error:+.0f} % |"


def board(name: str, *, watts: float | None = None, megahertz: float | None = None) -> Board:
    """A board of the catalog, capped or locked."""
    chip = accelerator(name)
    if watts is not None:
        chip = dataclasses.replace(chip, tdp_w=watts)
    if megahertz is not None:
        chip = dataclasses.replace(chip, clock_hz=megahertz * 1e6)
    return Board(chip)


def ratios(limited: Board, plain: Board, dense: float) -> tuple[float, float]:
    """Time and energy under a limit over those without, of work that is `dense` products by time, the rest bound by memory."""
    shares = {Load.PRODUCTS: dense, Load.STREAMS: 1.0 - dense}
    time = {load: share / limited.rate(load) for load, share in shares.items()}
    spent = sum(time[load] * limited.watts(load) for load in shares)
    usual = sum(share * plain.watts(load) for load, share in shares.items())
    return sum(time.values()), spent / usual


def services() -> list[Check]:
    """Work under caps and locks on boards of the catalog; decoding is bound by memory, a mix of requests half of the time."""
    h100, a100, pro = (board(name) for name in ("h100-sxm", "a100-sxm-80", "rtx-pro-6000"))
    checks = [
        Check("decoding on H100 at 350 of 700 W, time", "1.00", ratios(board("h100-sxm", watts=350.0), h100, 0.0)[0], 1.0, 1.0),
        Check("decoding on A100 at 810 of 1,410 MHz, time", "0.98", ratios(board("a100-sxm-80", megahertz=810.0), a100, 0.0)[0], 0.9824, 0.9824),
        Check("the same, energy", "0.63", ratios(board("a100-sxm-80", megahertz=810.0), a100, 0.0)[1], 0.629, 0.629),
        Check("pre-training on H100 at 600 of 700 W, time (a vendor's page, no measurement shown)", "1.10-1.15", ratios(board("h100-sxm", watts=600.0), h100, 0.8)[0], 1.10, 1.15),
        Check("Llama inference at 175 of 250 W (V100, A100), time", "1.067", ratios(board("v100-pcie-32", watts=175.0), board("v100-pcie-32"), 0.5)[0], 1.067, 1.067),
        Check("the same, energy", "0.768", ratios(board("v100-pcie-32", watts=175.0), board("v100-pcie-32"), 0.5)[1], 0.768, 0.768),
    ]  # fmt: skip
    for watts, rate in ((360.0, 0.991), (300.0, 0.954), (250.0, 0.84)):
        time = ratios(board("rtx-pro-6000", watts=watts), pro, 0.5)[0]
        checks.append(
            Check(
                f"serving on RTX PRO 6000 at {watts:.0f} of 600 W, tokens/s",
                f"{rate}",
                1.0 / time,
                rate,
                rate,
            )
        )
    # POLCA locks the clock so that the highest power of training falls by a fifth: 10 % of performance
    clock = shipped("a100").clock(0.8, 1.0)
    checks.append(
        Check(
            "training on A100 locked to a fifth less peak power, rate",
            "0.90",
            1.0 / (0.8 / clock + 0.2),
            0.9,
            0.9,
        )
    )
    return checks


def states() -> list[Check]:
    """Draws of single states [W]."""
    h200, b200, a800, h100 = (
        board(name) for name in ("h200-sxm", "b200-sxm", "a800-sxm-80", "h100-sxm")
    )
    dense = constant_groups("kernels")["power_draw"].value("prompt_products")
    prefill = dense * a800.watts(Load.PRODUCTS) + (1 - dense) * a800.watts(Load.STREAMS)
    node = 8 * (h100.watts(Load.PRODUCTS) + 0.4 * 700 + 0.085 * 400) / 1e3
    rack = (board("gb200").watts(Load.PRODUCTS) * 1.4 + 0.085 * 400) * 72 / 1e3
    return [
        Check("H200 decoding", "137-300 W", h200.watts(Load.STREAMS), 137, 300, " W"),
        Check("B200 decoding", "688 W", b200.watts(Load.STREAMS), 688.5, 688.5, " W"),
        Check("A800 prefill at 1,410 MHz (sets prompt_products)", "354 W", prefill, 354.43, 354.43, " W"),
        Check("H100 with a context open", "122-146 W", h100.watts(Load.WAITING), 121.7, 145.5, " W"),
        Check("A100 with a context open", "80 W", board("a100-sxm-40").watts(Load.WAITING), 80.0, 80.0, " W"),
        Check("TPU v4, mean of production", "121-192 W", board("tpu-v4").watts(Load.PRODUCTS), 121, 192, " W"),
        Check("node of 8 H100, peak of a training", "8.4 kW", node, 8.4, 8.4, " kW"),
        Check("GB200 NVL72 in operation", "120 kW", rack, 120, 120, " kW"),
    ]  # fmt: skip


TRAININGS = (
    ("OLMo 2 7B", {"preset": "llama2-7b", "vocab": 100352}, ("dgx-h100", 32), (1024, 2, 4096), 131 * JOULE / 4.05e12),
    ("OLMo 2 13B", {"preset": "llama2-13b", "vocab": 100352}, ("dgx-h100", 32), (2048, 2, 4096), 257 * JOULE / 5.6e12),
    ("OLMo 1 7B", {"preset": "llama2-7b", "vocab": 50304}, ("dgx-a100-40gb", 27), (2160, 2, 2048), 104 * JOULE / 2.46e12),
)  # fmt: skip
"""GPU energy of whole trainings by token: name, model, system, batch, what was measured. Counts of GPUs and batches are assumed, layouts are FSDP."""


def trainings() -> list[Check]:
    """Energy a token of the GPUs alone."""
    checks = []
    for name, model, (preset, nodes), (batch, micro, length), measured in TRAININGS:
        scenario = mpsim.Scenario.from_mapping(
            {
                "schema": 1,
                "name": name,
                "model": model,
                "cluster": {"preset": preset, "nodes": nodes},
                "parallelism": {"tp": 1, "pp": 1, "zero": 3},
                "training": {"global_batch": batch, "micro_batch": micro, "sequence_length": length, "precision": "bf16"},
                "framework": "torch-fsdp2",
            }
        )  # fmt: skip
        figures = mpsim.simulate(scenario).summary
        checks.append(
            Check(
                f"{name}, J a token",
                f"{measured:.3f}",
                figures["energy_j_per_token"],
                measured,
                measured,
            )
        )
    palm = mpsim.simulate(mpsim.load(ROOT / "scenarios" / "palm-540b-tpu-v4.yaml")).summary
    inside = sum(
        part
        for name, part in palm["meter_parts_j"].items()
        if name in ("accelerators", "hosts", "nics")
    )
    each = inside / palm["step_time_s"] / palm["accelerators"]
    checks.append(Check("PaLM 540B, system power a chip", "378 W", each, 378.5, 378.5, " W"))
    return checks


def page() -> str:
    """The whole page."""
    rows = read()
    points = [*caps(rows), *locks(rows), *limits(rows)]
    curve, whole = shipped(), fit(points)
    apart = held_out(points)
    together = [pair for _, errors in apart.values() for pair in errors]
    used = {
        "cap_relative_time",
        "cap_relative_energy",
        "cap_average_power",
        "lock_average_power",
        "limit_gemm_rate",
    }
    h100 = shipped("h100").clock(500 / 700, 1.0), curve.clock(500 / 700, 1.0)
    checks = ["| what | measured | predicted | error |", "| --- | ---: | ---: | ---: |"]
    written = f"{whole.static:.3f}, {whole.least_voltage:.3f}, {whole.slope:.2f}"
    return "\n".join(
        [
            "# Power caps, clock locks and energy against measurements",
            "",
            "Written by `python validation/power.py` from [power.csv](data/power.csv); each row has its source there. [Power](../docs/explanation/power.md) says what the",
            "model is.",
            "",
            "## Caps and locks, with boards held out",
            "",
            "Nine curves of training under caps (Zeus, one GPU each; the work is known only by its draw without a cap), an A800 under 18 locks, and products at two limits of the",
            f"same silicon. Fitted to all of it: static, least voltage and slope are {written}; shipped are {curve.static:g}, {curve.least_voltage:g} and {curve.slope:g}.",
            "Held out: each board by the curve fitted to the others.",
            "",
            *SUMMARY,
            summary("shipped curve", [(point, point.error(curve)) for point in points]),
            summary("held out", together),
            *(summary(f"held out: {name}", errors) for name, (_, errors) in apart.items()),
            "",
            f"An H100 at 500 of 700 W keeps 0.82 of its rate in 24 published rows of such boards (which also have slower memory); its own slope is set to that ({h100[0]:.2f}), the curve of",
            f"the others says {h100[1]:.2f}. The cliff of an A40 below half of its limit (4.1 times the time at a third) is not met, and nobody should run there.",
            "",
            "## Every cap",
            "",
            *curves(points, curve),
            "",
            "## Beside the curves",
            "",
            "Nothing here is fitted except where it says so. Work with no draw known is taken as products for 0.8 (training), 0.5 (mixed serving) or 0 (decoding) of its time.",
            "",
            *checks,
            *(check.line for check in (*services(), *states(), *trainings())),
            "",
            "Serving on RTX PRO 6000 is mostly decoding of a mixture of experts: taken as that alone, mpsim says 1.00 at all three caps.",
            "",
            "The energy of OLMo's trainings holds all their hours, which are not published: restarts, evaluation and steps slower than these.",
            "",
            "## Rows that are not used",
            "",
            f"{sum(row['kind'] not in used for row in rows)} of {len(rows)} rows are no part of a curve. The last table has what can be predicted of them. Left out: energies of single operations (the model has none), spreads of power within",
            "a training and shares of what a data centre provisions (no mean), ratings of nodes and racks in planning (no measurement), TPU v3 and V100 system powers (their step is not",
            "known), vendors' power profiles (what they set is not published), and H100 PCIe and GH200 against H100 SXM (other memory or a CPU under the limit).",
            "",
        ]
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
