"""Accuracy: every published run against its prediction, with what was fitted left out in turn, as Markdown, JSON and pictures.

Covers: validation/data/published-runs.csv and single-node-runs.csv, 1,544 measured steps.
Question: how far are predictions off, family by family; what of that is fit; and would they choose the right layout?

Run from the repository's root: python validation/accuracy.py (three minutes of two cores). It rewrites validation/accuracy.md, accuracy.json and accuracy-*.png, and what
validation/intervals.py does, from which every result gets its interval and says how far it is from what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench import validate_files
from mpsim.validate import Record, Validation
from mpsim.validate.pictures import agreement_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "validation"))

import intervals  # noqa: E402
import slopes  # noqa: E402
from accuracy_fit import (  # noqa: E402
    COLOURS,
    NAMED,
    Refits,
    cells_of,
    colour,
    constants,
    declared,
    is_named,
)

FILES = [
    ROOT / "validation" / "data" / name for name in ("published-runs.csv", "single-node-runs.csv")
]
HERE = ROOT / "validation"
WORST = 10
APART = 1.3  # that the mean error of one half may be of the other's
GATE = 0.005  # growth of a family's mean error that the gate lets pass
HEAD = """# Accuracy on published runs

Every row of `validation/data/published-runs.csv` and `single-node-runs.csv`, predicted from its configuration columns alone; error = predicted / measured - 1 of the
step time. What a row leaves open is assumed by `validation/bench/data/training.yaml` and `assumptions.yaml`, and listed with each prediction
(`python validation/published.py --json`, key `assumed`). Traps (`validation/traps.yaml`) are rows that contradict their neighbours or rest on software that is known to be
missing: they count in "all" and are left out of "without traps". The page begins with the half of the rows on which no rule and no constant is shaped. Written by `python validation/accuracy.py`; a test fails where a family's mean error is more than half
a point above [accuracy.json](accuracy.json).

"""
PICTURES = """![Predicted against measured](accuracy-agreement.png)

![Errors by family](accuracy-errors.png)
"""


def halves_section(records: Sequence[Record], hidden: Mapping[str, float]) -> list[str]:
    """Both halves of the checkerboard, the one that is only scored first, and what it took to get there."""
    published = [record for record in records if record.id in hidden]
    kinds = {
        "all published runs": published,
        "dense, complete": [record for record in published if complete_dense(record)],
        "mixtures of experts": [
            record for record in published if cells_of(record).cells.whole("moe_experts")
        ],
    }
    lines = [
        "## White half\n",
        (
            "A checkerboard divides every source by model, accelerator and number format. Rules and constants are shaped on black rows and scored on white ones, names hidden. The white half may be at most "
            f"{APART} times as far off as the black one, which a test holds; the last column is the same with colours swapped. `python validation/accuracy_fit.py` drops each rule and each constant in turn and lists those "
            "without which the white half is predicted as well.\n"
        ),
        "| | white rows | mean | median | bias | within 10 % | black rows | mean | white over black | black over white |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, rows in kinds.items():
        half = {
            name: [hidden[row.id] for row in rows if colour(cells_of(row).cells) == name]
            for name in COLOURS
        }
        mean = {name: statistics.fmean(map(abs, errors)) for name, errors in half.items()}
        white = half["white"]
        within = statistics.fmean(abs(error) <= 0.1 for error in white)
        ratio = mean["white"] / mean["black"]
        lines.append(
            f"| {title} | {len(white)} | {mean['white']:.1%} | {statistics.median(map(abs, white)):.1%} | {statistics.fmean(white):+.1%} | {within:.0%} | {len(half['black'])} | "
            f"{mean['black']:.1%} | {ratio:.2f} | {1 / ratio:.2f} |"
        )
    count = counts()
    lines.append(
        f"\n{count['rules']} rules with {count['alternatives']} alternatives and {count['everywhere']} for all stacks; {count['fitted']} constants fitted and {count['chosen']} chosen with rows in view. "
        "A change may add one where it takes one out: a test holds these counts.\n"
    )
    return lines


def counts() -> dict[str, int]:
    """Rules of training.yaml, and constants that were set with rows in view."""
    rules = yaml.safe_load((ROOT / "validation/bench/data/training.yaml").read_text("utf-8"))
    return {
        "rules": len(rules["families"]),
        "alternatives": sum(len(rule.get("also", ())) for rule in rules["families"]),
        "everywhere": len(rules["everywhere"]),
        "fitted": len(constants()),
        "chosen": len(declared()),
    }


def complete_dense(record: Record) -> bool:
    """Whether a published run states all that its time depends on and has no experts."""
    cells = cells_of(record).cells
    return cells.text("complete") == "yes" and not cells.whole("moe_experts")


def hidden_section(records: Sequence[Record], hidden: Mapping[str, float]) -> list[str]:
    """The score with names hidden beside the named one, for all published runs and for those that leave nothing open."""
    published = [one for one in records if one.id in hidden]
    experts = [one for one in published if cells_of(one).cells.whole("moe_experts")]
    kinds = (
        ("all published runs", published),
        ("dense, complete", [one for one in published if complete_dense(one)]),
        ("mixtures of experts", experts),
    )
    lines = [
        "## Names hidden\n",
        (
            "The score: `family` and `source` are blanked, so that a row gets what its framework, version, date and words say, as a run that nobody has listed does. "
            "Beside it the same rows with their names.\n"
        ),
        "| | rows | names hidden: mean | bias | within 10 % | named: mean |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, rows in kinds:
        errors = [hidden[one.id] for one in rows]
        within = sum(abs(error) <= 0.1 for error in errors) / len(errors)
        lines.append(
            f"| {title} | {len(rows)} | {statistics.fmean(map(abs, errors)):.1%} | {statistics.fmean(errors):+.1%} | {within:.0%} | {figures(rows)['mean']:.1%} |"
        )
    return [*lines, ""]


def traps() -> dict[str, str]:
    """Why no sane model fits a row, by pattern of its id."""
    entries = yaml.safe_load((HERE / "traps.yaml").read_text("utf-8"))["traps"]
    return {entry["pattern"]: entry["why"] for entry in entries}


def trap_of(name: str) -> str:
    """Why a row is a trap; nothing where it is none."""
    return next((why for one, why in traps().items() if re.fullmatch(one, name)), "")


def scored(validation: Validation) -> list[Record]:
    """Training rows with an error."""
    return [one for one in validation.records if one.kind == "training" and one.error is not None]


def figures(records: Sequence[Record]) -> dict[str, float]:
    """Mean, median, bias, worst, and the share of rows within 10 %."""
    errors = [float(one.error) for one in records if one.error is not None]
    sizes = [abs(one) for one in errors]
    return {
        "rows": len(errors),
        "mean": statistics.fmean(sizes),
        "median": statistics.median(sizes),
        "bias": statistics.fmean(errors),
        "worst": max(errors, key=abs),
        "within_10": sum(one <= 0.1 for one in sizes) / len(sizes),
    }


def by_family(validation: Validation, hidden: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Figures of every family, and how many of its rows were predicted."""
    rows = [one for one in validation.records if one.kind == "training"]
    table: dict[str, dict[str, float]] = {}
    for family in dict.fromkeys(one.family for one in rows):
        of = [one for one in rows if one.family == family]
        done = [one for one in of if one.error is not None]
        if not done:
            table[family] = {"all_rows": len(of), "rows": 0}
            continue
        rest = [one for one in done if not trap_of(one.id)]
        table[family] = {"all_rows": len(of), **figures(done)}
        if all(one.id in hidden for one in done):
            table[family]["hidden"] = statistics.fmean(abs(hidden[one.id]) for one in done)
        if rest and len(rest) < len(done):
            table[family]["mean_without_traps"] = figures(rest)["mean"]
    return table


def family_table(table: dict[str, dict[str, float]], refits: Refits) -> list[str]:
    """One line a family."""
    lines = [
        "| family | rows | predicted | names hidden | mean | median | bias | worst | without traps | left out of the fit |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for family, one in table.items():
        if not one["rows"]:
            lines.append(f"| {family} | {one['all_rows']} | 0 | | | | | | | |")
            continue
        out = refits.left_out.get(family)
        apart, blank = one.get("mean_without_traps"), one.get("hidden")
        lines.append(
            f"| {family} | {one['all_rows']} | {one['rows']} | {'' if blank is None else f'{blank:.1%}'} | {one['mean']:.1%} | {one['median']:.1%} | {one['bias']:+.1%} | {one['worst']:+.1%} | "
            f"{'' if apart is None else f'{apart:.1%}'} | {'' if out is None else f'{out:.1%}'} |"
        )
    return lines


def pooled_section(records: Sequence[Record], refits: Refits) -> list[str]:
    """The eight named families together: as fitted, left out in turn, and without any fit."""
    named = [one for one in records if is_named(one)]
    rest = [one for one in named if not trap_of(one.id)]
    lines = [
        "\n## Eight families together\n",
        f"{', '.join(NAMED)}: the rows that a dense model of known software can score (no ZeRO-3 of 2021, no pipelines of torchtitan, no experts).\n",
        "| | rows | mean | median | bias | within 10 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, chosen in (("as fitted", named), ("as fitted, without traps", rest)):
        one = figures(chosen)
        lines.append(
            f"| {title} | {one['rows']} | {one['mean']:.1%} | {one['median']:.1%} | {one['bias']:+.1%} | {one['within_10']:.0%} |"
        )
    lines.append(
        f"| each family left out of the fit in turn | {len(named)} | {refits.pooled:.1%} | | | |"
    )
    lines.append(
        f"| literature constants alone, no fit | {len(named)} | {refits.unfitted:.1%} | | {refits.unfitted_bias:+.1%} | |"
    )
    return lines


def constants_section(refits: Refits) -> list[str]:
    """Every fitted constant with value, uncertainty and the rows that pin it."""
    lines = [
        "\n## Constants that were fitted\n",
        (
            "Uncertainty: one sigma of the joint fit by sensitivities, rows of a family sharing its weight. Families left out in turn are predicted with what the others and "
            "the literature say; a constant that one family alone pins falls back to the literature then.\n"
        ),
        "| constant | value | literature | +- | pinned by | meaning |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for one, sigma in zip(refits.constants, refits.uncertainty, strict=True):
        lines.append(
            f"| {one.name} (`{one.at}`) | {one.value:.3g} | {one.prior:.3g} | {sigma:.1g} | {', '.join(one.families)} | {one.meaning} |"
        )
    return lines


def declared_section(refits: Refits) -> list[str]:
    """Constants that were chosen with rows in view and are not refitted."""
    entries = declared()
    reset = sum(one.literature is not None for one in entries)
    rules = yaml.safe_load((ROOT / "validation/bench/data/training.yaml").read_text("utf-8"))
    whole = (*rules["families"], *rules["everywhere"])
    conditions = len(whole) + sum(len(one.get("also", ())) for one in whole)
    return [
        "\n## Constants set with rows in view\n",
        (
            f"{len(refits.constants)} constants were fitted on training runs (above) and {len(entries)} chosen while the rows below were looked at; those stay where they are when a family is left "
            f"out. `no fit` sets the {len(refits.constants)} to the literature and {reset} of these with them; the others are rules, or rest on other measurements too. Everything else of the status "
            "`calibrated` is read off benchmarks of single kernels and collectives, or off source code: [constants.yaml](constants.yaml) lists what by, and a test fails where a calibrated "
            f"constant is not declared there. Rules: {conditions} conditions on frameworks, versions, dates and words; {named_rules(rules)} keyed on the name of a family, {special_rules(rules)} on that of a model.\n"
        ),
        "| constant | value | literature | rows in view |",
        "| --- | ---: | ---: | --- |",
        *(
            f"| {one.name} (`{one.at}`) | {one.as_shipped} | {'' if one.literature is None else one.literature} ({one.why}) | {', '.join(one.rows)} |"
            for one in entries
        ),
    ]


def named_rules(rules: Mapping[str, Any]) -> int:
    """Rules that need the name of a family."""
    return sum("family" in one["where"] for one in rules["families"])


def special_rules(rules: Mapping[str, Any]) -> int:
    """Rules, and what is added to one, that read the name of a model."""
    whole = (*rules["families"], *rules["everywhere"])
    more = [entry for one in whole for entry in one.get("also", ())]
    return sum("model" in one["where"] for one in (*whole, *more))


def decision_section(validation: Validation) -> list[str]:
    """Rank correlation and regret."""
    lines = [
        "\n## Choosing a layout\n",
        (
            "Groups of three runs or more of the same model, sequence length and number of accelerators: rank correlation (Kendall's tau) of time a sequence, and regret, how "
            "much slower the run predicted fastest was measured than the fastest.\n"
        ),
        "| family | groups | rows | tau | mean regret | worst | by chance |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.family} | {one.groups} | {one.rows} | {one.tau:.2f} | {one.mean_regret:.1%} | {one.worst_regret:.1%} | {one.random_regret:.1%} |"
        for one in validation.decisions
    ]
    return lines


def worst_section(records: Sequence[Record]) -> list[str]:
    """The rows furthest off with a diagnosis each, and the traps."""
    entries = yaml.safe_load((HERE / "traps.yaml").read_text("utf-8"))["diagnoses"]

    def why(one: Record) -> str:
        found = trap_of(one.id) or next(
            (entry["why"] for entry in entries if re.fullmatch(entry["pattern"], one.id)), ""
        )
        return found or "; ".join(one.assumed) or "not understood"

    far = sorted(records, key=lambda one: -abs(one.error or 0.0))
    line = "- {:+.1%} {} ({}): {}".format
    lines = ["\n## Ten furthest off\n"]
    lines += [line(one.error, one.id, one.family, why(one)) for one in far[:WORST]]
    lines += ["\n## Traps\n"]
    lines += [
        line(one.error, one.id, one.family, trap_of(one.id)) for one in far if trap_of(one.id)
    ]
    return lines


def skipped_section(validation: Validation) -> list[str]:
    """Why rows were not predicted, and what was assumed of how many."""
    rows = [one for one in validation.records if one.kind == "training"]
    reasons = Counter((one.family, one.skipped_because) for one in rows if one.skipped_because)
    assumed = Counter(text for one in rows for text in one.assumed)
    return [
        "\n## Not predicted\n",
        *(f"- {count} x {family}: {why}" for (family, why), count in reasons.most_common()),
        "\n## Assumed\n",
        *(f"- {count} x {text}" for text, count in assumed.most_common()),
        "",
    ]


def draw(records: Sequence[Record]) -> None:
    """Measured against predicted by family, and histograms of errors."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    seconds = [one for one in records if one.unit == "s"]
    agreement_of(seconds).save(HERE / "accuracy-agreement.png")
    largest = [name for name, _ in Counter(one.family for one in records).most_common(9)]
    figure, axes = plt.subplots(3, 3, figsize=(9, 6.5), sharex=True, layout="constrained")
    for ax, family in zip(axes.flat, largest, strict=False):
        errors = [100 * (one.error or 0.0) for one in records if one.family == family]
        ax.hist(np.clip(errors, -40, 40), bins=np.arange(-40, 42.5, 2.5), color="#4477AA")
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_title(f"{family} ({len(errors)})", fontsize=9)
    figure.supxlabel("error (%)")
    figure.supylabel("rows")
    figure.savefig(HERE / "accuracy-errors.png", dpi=120)
    plt.close(figure)


def main() -> None:
    """Predict, refit, write."""
    with ProcessPoolExecutor(1) as pool:  # neither half of the work needs the other's predictions
        blind = pool.submit(intervals.predicted)
        validation = validate_files(FILES)
        records = scored(validation)
        refits = Refits.of(FILES[0], records)
        residuals = blind.result()
    published = {record.id for record in records if cells_of(record).cells.text("id")}
    hidden = {
        row.id: math.expm1(row.log)
        for row in residuals
        if row.id in published and row.figure != "memory"  # peaks may have the id of a step
    }
    table = by_family(validation, hidden)
    lines = [
        HEAD,
        *halves_section(records, hidden),
        PICTURES,
        *hidden_section(records, hidden),
        *intervals.rewrite(intervals.refitted(residuals, refits.shift)),
        "## Families\n",
        *family_table(table, refits),
        *pooled_section(records, refits),
    ]
    dense = [record for record in records if record.id in hidden and complete_dense(record)]
    contradicting = {record.id for record in dense if trap_of(record.id)}
    lines += slopes.section(dense, hidden, contradicting)
    slopes.draw(dense, hidden, HERE / "accuracy-slopes.png")
    lines += [*decision_section(validation), *constants_section(refits), *declared_section(refits)]
    lines += [*worst_section(records), *skipped_section(validation)]
    (HERE / "accuracy.md").write_text("\n".join(lines), encoding="utf-8")
    committed = {
        "families": {
            name: {key: round(value, 4) for key, value in one.items()}
            for name, one in table.items()
        },
        "pooled": {
            **{k: round(v, 4) for k, v in figures([r for r in records if is_named(r)]).items()},
            "left_out": round(refits.pooled, 4),
            "no_fit": round(refits.unfitted, 4),
            "hidden": round(statistics.fmean(map(abs, hidden.values())), 4),
        },
        "counts": counts(),
        "decisions": [one.to_json() for one in validation.decisions],
    }
    (HERE / "accuracy.json").write_text(json.dumps(committed, indent=1) + "\n", encoding="utf-8")
    draw(records)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
