"""Decisions: which of two measured runs predictions call the faster, by what the two differ in, and which layout of several they would have picked.

Covers: published-runs.csv and single-node-runs.csv of validation/data. Question: what would somebody have bought or run who had believed mpsim?

Run from any folder, with mpsim installed (a minute or two): python validation/decisions.py [--check]. It writes validation/decisions.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from bench import validate_files
from mpsim.validate import Validation
from mpsim.validate.records import decisions_of, told_apart

HERE = Path(__file__).resolve().parent
PAGE = HERE / "decisions.md"
TABLES = ("published-runs", "single-node-runs")
REGRET = 0.02  # above which a pick is listed by itself
HEAD = """# Decisions of the past

Runs of one table, model, sequence length and number of accelerators are choices that somebody had. Predictions here know the rows' names, as yours do;
[accuracy](accuracy.md) has the half-widths of differences, families weighing more alike and left out; here each pair counts once. Written by `python validation/decisions.py`.
"""


def page(validation: Validation) -> str:
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
    return "\n".join([*lines, ""])


def main() -> int:
    """Write the page, or say whether it is as it would be written."""
    parser = argparse.ArgumentParser(prog="decisions.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    options = parser.parse_args()
    text = page(validate_files([HERE / "data" / f"{name}.csv" for name in TABLES]))
    if options.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
