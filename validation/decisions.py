"""Decisions: which of two measured runs predictions call the faster, by what the two differ in, and which layout of several they would have picked.

Covers: published-runs.csv, single-node-runs.csv and layout-sweeps.csv of validation/data. Question: what would somebody have bought or run who had believed mpsim?

Run from any folder, with mpsim installed (a minute or two): python validation/decisions.py [--check]. It writes validation/decisions.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import files, validate_files
from bench.runs import read_run, simulated
from bench.training import group_of
from mpsim.formats.tables import Cells
from mpsim.result.residuals import Setting, residuals
from mpsim.study.search.belief import Belief
from mpsim.study.search.given import ranked_by
from mpsim.validate import Validation
from mpsim.validate.records import decisions_of, kendall_tau, told_apart

HERE = Path(__file__).resolve().parent
PAGE = HERE / "decisions.md"
TABLES = ("published-runs", "single-node-runs")
EVEN = 0.5
SWEEPS = HERE / "data" / "layout-sweeps.csv"
# what the first part of a sweep's notes, a column of its kernels, says beside `framework`
KERNELS = {"torch": "without FlashAttention", "fused": "without FlashAttention, fused softmax"}
REGRET = 0.02  # above which a pick is listed by itself
HEAD = """# Decisions of the past

Runs of one table, model, sequence length and number of accelerators are choices that somebody had. Predictions here know the rows' names, as yours do;
[accuracy](accuracy.md) has the half-widths of differences, families weighing more alike and left out; here each pair counts once. Written by `python validation/decisions.py`.
"""


class Tried(NamedTuple):
    """One layout of a sweep: predicted seconds and share of the memory, and the measured seconds; None where it ran out of memory."""

    id: str
    predicted: float
    filled: float
    measured: float | None
    setting: Setting
    kernels: str

    @property
    def odds(self) -> float:
        """Odds that it runs, from residuals of peaks of other stacks."""
        return residuals("memory").interval(self.filled, self.setting).odds(1.0)

    @property
    def fits(self) -> bool:
        """Whether it is predicted to run: more likely than not."""
        return self.odds >= EVEN


class Sweep(NamedTuple):
    """All layouts that somebody tried of one model on as many accelerators."""

    title: str
    tried: list[Tried]

    @property
    def ran(self) -> list[Tried]:
        """Those that were measured."""
        return [each for each in self.tried if each.measured]

    @property
    def tau(self) -> float:
        """Kendall's rank correlation of predicted and measured seconds."""
        times = [(each.predicted, each.measured or 0.0) for each in self.ran]
        return kendall_tau(*zip(*times, strict=True))

    def right(self, *, ran: bool) -> float:
        """Share of the layouts that ran, or that ran out of memory, of which that was predicted."""
        return statistics.fmean(
            each.fits == ran for each in self.tried if bool(each.measured) == ran
        )

    @property
    def picks(self) -> tuple[int, float]:
        """Layouts predicted to fit that `mpsim search` ranks above the first of them that ran, and that ran out of memory; how much slower than the fastest this one was measured."""
        order = sorted(
            (each for each in self.tried if each.filled <= 1.0),
            key=lambda each: ranked_by(each.predicted, each.odds),
        )
        missed = next((n for n, each in enumerate(order) if each.measured), len(order))
        best = min(each.measured or 0.0 for each in self.ran)
        return missed, (order[missed].measured or 0.0) / best - 1 if missed < len(order) else 1.0


def sweeps() -> list[Sweep]:
    """Every sweep of layouts, predicted."""
    _, rows = files.opened(SWEEPS)
    found: dict[str, list[Tried]] = {}
    for row in rows:
        cells = row.configuration
        kernels = KERNELS.get(cells.text("notes").partition("|")[0], "")
        words = {"framework": f"{cells.text('framework')}, {kernels}".rstrip(", ")}
        cells = Cells({**cells.values, **words})
        told = simulated(read_run(cells, ran=False)[1].scenario, layer=False, seen="memory")
        seconds = row.measured.number("iter_time_s")
        kernels = cells.text("notes").partition("|")[0]
        tried = Tried(row.id, told.seconds, told.filled, seconds, told.setting, kernels)
        found.setdefault(group_of(cells), []).append(tried)
    return [Sweep(title, tried) for title, tried in found.items()]


def sweep_section(found: list[Sweep]) -> list[str]:
    """Order of the layouts that ran, the pick among all, and which were predicted to run."""
    whole = Sweep("all", [each for sweep in found for each in sweep.tried])
    taus = statistics.fmean(sweep.tau for sweep in found)
    lines = [
        "\n## Whole sweeps\n",
        (
            "Every layout that somebody tried, those that ran out of memory too (`validation/data/layout-sweeps.csv`). *Pick*: the first of those whose predicted peak fits, as `mpsim search` ranks them; where it ran out of "
            "memory, the next one. *Predicted to* run: more likely than not, by the odds. Asked for: tau 0.75, a pick within 3 %, and 93 % right of both kinds.\n"
        ),
        "| sweep | ran | ran out | tau | pick slower by | picks that ran out before it | ran, predicted to | ran out, predicted to |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for sweep in found:
        missed, regret = sweep.picks
        lines.append(
            f"| {sweep.title} | {len(sweep.ran)} | {len(sweep.tried) - len(sweep.ran)} | {sweep.tau:.2f} | {regret:.1%} | {missed} | {sweep.right(ran=True):.0%} | {sweep.right(ran=False):.0%} |"
        )
    lines.append(
        f"| all | {len(whole.ran)} | {len(whole.tried) - len(whole.ran)} | {taus:.2f} | | | {whole.right(ran=True):.0%} | {whole.right(ran=False):.0%} |"
    )
    return lines


def replay_section(found: list[Sweep]) -> list[str]:
    """What `mpsim search --shortlist` would have had launched in each sweep, and the best that ran of the first few."""
    lines = [
        "\n## Shortlists, replayed\n",
        (
            "The layouts that `mpsim search --shortlist 5` would have had launched of those that somebody tried with one set of kernels, and how much slower than the fastest measured the fastest of the "
            "first one, three and five was. mpsim has no rule for this stack; what a launch that dies counts as (2 and 1.25 shortest steps) was chosen "
            "with this table in view, of four values of which all left less than 0.1 % after five runs. Asked for: 2 % after three, 0.7 % after five, and that the first runs in 90 %.\n"
        ),
        "| sweep | kernels | layouts | first runs | after one | after three | after five |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    regrets: list[list[float]] = []
    for sweep in found:
        for kernels in sorted({each.kernels for each in sweep.tried}):
            tried = [each for each in sweep.tried if each.kernels == kernels]
            regrets.append(_regrets(tried))
            cells = " | ".join("-" if math.isinf(each) else f"{each:.1%}" for each in regrets[-1])
            runs = "no" if math.isinf(regrets[-1][0]) else "yes"
            lines.append(f"| {sweep.title} | {kernels} | {len(tried)} | {runs} | {cells} |")
    means = (statistics.fmean(row[n] for row in regrets) for n in range(3))
    ran = statistics.fmean(not math.isinf(row[0]) for row in regrets)
    lines.append(f"| all | | | {ran:.0%} | {' | '.join(f'{each:.1%}' for each in means)} |")
    return lines


def _regrets(tried: list[Tried]) -> list[float]:
    """How much slower than the fastest the best of the first one, three and five launched is; infinite where none ran."""
    filled = np.array([each.filled for each in tried])
    seconds = np.array([each.predicted for each in tried])
    order = Belief([each.setting for each in tried], seconds, filled, filled).choose(5)
    best = min(each.measured for each in tried if each.measured)
    times = [tried[place].measured or math.inf for place in order]
    return [min(times[:count]) / best - 1 for count in (1, 3, 5)]


def page(validation: Validation, tried: list[Sweep]) -> str:
    """The page as Markdown."""
    records = [record for record in validation.records if record.kind == "training"]
    lines = [
        HEAD,
        "## Two runs\n",
        "*Held*: the measured difference lies in its 80 % interval. *Told apart*: that interval does not hold zero, so that an answer names one of the two.\n",
        "| differ in | pairs | held | told apart | of these measured in that order |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for told in told_apart(records):
        right = f"{told.right / told.told:.1%}" if told.told else "-"
        lines.append(
            f"| {told.kind} | {told.pairs} | {told.held / told.pairs:.0%} | {told.told / told.pairs:.0%} | {right} |"
        )
    picks = decisions_of(records)
    best = sum(not pick.regret for pick in picks)
    near = sum(0 < pick.regret <= REGRET for pick in picks)
    lines += [
        "",
        "## The fastest of several\n",
        f"Of {len(picks)} groups of three runs or more the run predicted fastest was the fastest measured in {best}, at most {REGRET:.0%} slower in {near} more, and by this in the others:\n",
        "| group | runs | picked | fastest | slower by | by chance |",
        "| --- | ---: | --- | --- | ---: | ---: |",
    ]
    worst = sorted((pick for pick in picks if pick.regret > REGRET), key=lambda pick: -pick.regret)
    alike = Counter(pick.group for pick in worst)
    for pick in worst:
        group = f"{pick.group}, {pick.family}" if alike[pick.group] > 1 else pick.group
        lines.append(
            f"| {group} | {pick.rows} | {pick.chosen} | {pick.best} | {pick.regret:.1%} | {pick.random:.1%} |"
        )
    return "\n".join([*lines, *sweep_section(tried), *replay_section(tried), ""])


def main() -> int:
    """Write the page, or say whether it is as it would be written."""
    parser = argparse.ArgumentParser(prog="decisions.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    options = parser.parse_args()
    text = page(validate_files([HERE / "data" / f"{name}.csv" for name in TABLES]), sweeps())
    if options.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
