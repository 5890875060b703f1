"""The synthesiser against the best named schedule and against its lower bound, on 200 random settings.

Covers: mpsim.schedule.search.synthesise with up to 8 ranks, 32 microbatches, uneven stages, transfers and memory limits.
Question: how often, and by how much, does a synthesised order beat every named schedule, and how far is it from the bound?

Run from the repository's root: python validation/synthesiser.py. It rewrites validation/synthesiser.md.
"""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

from mpsim.schedule.search.synthesise import Synthesis, synthesise

SETTINGS, BUDGET = 200, 1500
REPORT = Path(__file__).with_suffix(".md")


def random_setting(seed: int) -> dict[str, Any]:
    """A step of 2 to 8 ranks and up to 32 microbatches."""
    rng = random.Random(seed)
    pp, microbatches = rng.randint(2, 8), rng.randint(1, 32)
    stage_map, virtual = rng.choice([("loop", 1), ("loop", 1), ("loop", 2), ("v", 2)])
    stages, uneven = pp * virtual, rng.random() < 0.7

    def times(least: int, most: int) -> list[float]:
        same = float(rng.randint(least, most))
        return [float(rng.randint(least, most)) if uneven else same for _ in range(stages)]

    return {
        "pp": pp,
        "microbatches": microbatches,
        "virtual_stages": virtual,
        "stage_map": stage_map,
        "forward": times(4, 8),
        "backward": times(4, 9),
        "weight": times(2, 8),
        "send": rng.choice([0.0, 0.0, 0.25, 1.0, 3.0]),
        # activations of one chunk, counted until W: from what V-Min needs to what ZB-2p needs
        "memory_limit": rng.choice(
            [None, *(max(virtual, part * virtual * pp) for part in (0.5, 0.75, 1, 1.5, 2))]
        ),
    }


def solved() -> list[tuple[dict[str, Any], Synthesis]]:
    """All settings with what was found."""
    settings = [random_setting(seed) for seed in range(SETTINGS)]
    return [(one, synthesise(**one, budget=BUDGET)) for one in settings]


def _row(name: str, cases: list[tuple[dict[str, Any], Synthesis]]) -> str:
    found = [result for _, result in cases]
    gaps = [result.gap for result in found]
    named = [result for result in found if result.best_named]
    gains = [result.gain for result in named if result.gain > 0]
    optimal = sum(gap < 1e-9 for gap in gaps) / len(gaps)
    return (
        f"| {name} | {len(cases)} | {statistics.median(gaps):.2%} | {statistics.mean(gaps):.2%} | {max(gaps):.1%} | "
        f"{optimal:.0%} | {len(cases) - len(named)} | {len(gains)} of {len(named)} | "
        f"{statistics.median(gains) if gains else 0:.1%} | {max(gains, default=0):.1%} |"
    )


def report(cases: list[tuple[dict[str, Any], Synthesis]]) -> str:
    """The page."""
    groups = {
        "all": cases,
        "loop, one chunk": [one for one in cases if one[0]["virtual_stages"] == 1],
        "loop, two chunks": [
            one for one in cases if one[0]["virtual_stages"] == 2 and one[0]["stage_map"] == "loop"
        ],
        "V, two chunks": [one for one in cases if one[0]["stage_map"] == "v"],
        "no memory limit": [one for one in cases if one[0]["memory_limit"] is None],
        "memory limit": [one for one in cases if one[0]["memory_limit"] is not None],
    }
    rows = "\n".join(_row(name, some) for name, some in groups.items())
    return f"""# The synthesiser on {SETTINGS} random settings

Written by `validation/synthesiser.py` with a budget of {BUDGET} evaluations a setting: 2 to 8 ranks, 1 to 32 microbatches, 70 % with
different times for every stage, transfers, and memory limits from half to twice the activations of 1F1B. The gap is makespan
over lower bound, less 1; the best possible order lies somewhere between the two. The gain is the part of the best named schedule's
makespan that is saved, over the settings where something is; the named schedules are all that `mpsim show schedule` lists, those that
take times with the mean times of the setting.

| settings | count | median gap | mean gap | worst gap | proved optimal | no named one fits | improved | median gain of those | largest gain |
|---|---|---|---|---|---|---|---|---|---|
{rows}

It is never worse than the best named schedule: it starts from it.
"""


if __name__ == "__main__":
    REPORT.write_text(report(solved()), encoding="utf-8")
