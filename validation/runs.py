"""Published training runs, predicted: the report of ``validation/published.py`` on them, as Markdown.

Covers: 1,544 measured steps in validation/data/published-runs.csv and single-node-runs.csv, each row with its source.
Question: how far are predictions from what people measured, family by family, and which rows are worst?

Run from the repository's root: python validation/runs.py. It rewrites validation/runs.md.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bench import validate_files
from mpsim.validate import Family, Validation

ROOT = Path(__file__).resolve().parent.parent
FILES = [
    ROOT / "validation" / "data" / name for name in ("published-runs.csv", "single-node-runs.csv")
]
WORST = 12
HEAD = """# Training runs, predicted

Every row of `validation/data/published-runs.csv` and `single-node-runs.csv`, predicted from its configuration columns alone and compared with what was
measured; error = predicted / measured - 1. Columns and traps of the data are in their own `notes` and `assumed_fields`. How a row becomes a scenario, and what
is assumed where it says nothing, is in `validation/bench/data/training.yaml`. Constants of kernels were fitted on rows of some of these
families (see `mpsim/cost/data/kernels.yaml`), so this is no blind test. Written by `python validation/runs.py`.
"""


def report(validation: Validation) -> str:
    """Tables of families, the worst rows, and why rows were skipped."""
    lines = [HEAD]
    for total in validation.kinds:
        lines += [f"\n## {total.kind}\n", *_table([*_of(validation, total.kind), total])]
        lines += ["", "Furthest off:", ""]
        lines += [
            f"- {one.error:+.1%} {one.id} ({one.family}): measured {one.measured:.4g}, predicted {one.predicted:.4g} {one.unit}"
            for one in validation.worst(total.kind, WORST)
        ]
    reasons = Counter(one.skipped_because for one in validation.records if one.skipped_because)
    lines += [
        "\n## Skipped\n",
        *(f"- {count} x {reason}" for reason, count in reasons.most_common()),
        "",
    ]
    return "\n".join(lines)


def _of(validation: Validation, kind: str) -> list[Family]:
    return [one for one in validation.families if one.kind == kind and one.predicted]


def _table(families: list[Family]) -> list[str]:
    head = "| family | rows | predicted | mean | median | p90 | bias | worst |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for one in families:
        sizes = (one.mean_abs_error, one.median_abs_error, one.p90_abs_error)
        cells = [f"{size:.1%}" for size in sizes if size is not None]
        signed = [f"{size:+.1%}" for size in (one.bias, one.worst) if size is not None]
        lines.append(
            f"| {one.family} | {one.rows} | {one.predicted} | {' | '.join([*cells, *signed])} |"
        )
    return lines


if __name__ == "__main__":
    (ROOT / "validation" / "runs.md").write_text(report(validate_files(FILES)), encoding="utf-8")
