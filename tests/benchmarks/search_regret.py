"""Regret of a search that is cut short: how much slower its best layout is than that of the whole search.

    python tests/benchmarks/search_regret.py [--only WORDS] [--budgets 1,2,5,10]

Budgets are CPU seconds, so that a busy machine shows the same figures.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import mpsim
from mpsim.study.search import find, limits

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"


def _plain(model: str, cluster: str, nodes: int, framework: str, **training: object) -> object:
    """A scenario without a layout of its own."""
    sizes = {"micro_batch": 1, "sequence_length": 4096, "precision": "bf16", "recompute": "full"}
    return mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "name": f"{model} on {nodes} {cluster}, {framework}",
            "model": model,
            "cluster": {"preset": cluster, "nodes": nodes},
            "parallelism": {},
            "schedule": "1f1b",
            "training": {**sizes, **training},
            "framework": framework,
        }
    )


def scenarios() -> dict[str, object]:
    """Ten questions of different size, model and software."""
    files = ("best-layout", "gpt3-175b-a100", "mixtral-8x7b-h100", "megatron-530b", "quickstart")
    known: dict[str, object] = {name: mpsim.load(SCENARIOS / f"{name}.yaml") for name in files}
    known["llama3-405b"] = _plain("llama3-405b", "dgx-h100", 64, "megatron-core", global_batch=512)
    known["deepseek-v3"] = _plain(
        "deepseek-v3", "dgx-h100", 64, "megatron-core-2025", global_batch=4096, precision="fp8"
    )
    known["llama3-8b-fsdp"] = _plain(
        "llama3-8b", "dgx-h100", 8, "torchtitan-2025", global_batch=128
    )
    known["gpt-18b"] = mpsim.load(SCENARIOS / "sc21" / "gpt-18b.yaml")
    known["llama3-70b-b200"] = _plain(
        "llama3-70b", "dgx-b200", 16, "megatron-core-2026", global_batch=256, sequence_length=8192
    )
    return known


def _clocked(budget: float | None) -> limits.Clock:
    return limits.Clock(budget, now=time.process_time)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--budgets", default="1,2,5,10")
    options = parser.parse_args()
    budgets = [float(text) for text in options.budgets.split(",")]
    find.Clock = _clocked  # type: ignore[misc,assignment]
    print("| scenario | layouts | whole search (CPU s) | best (s) |", end="")
    print("".join(f" regret at {budget:g} s |" for budget in budgets))
    print("| --- | ---: | ---: | ---: |" + " ---: |" * len(budgets))
    for name, scenario in scenarios().items():
        if options.only not in name:
            continue
        began = time.process_time()
        whole = mpsim.search(scenario, top=1, front=False)
        took = time.process_time() - began
        best = whole.best.step_time_s
        cells = []
        for budget in budgets:
            cut = mpsim.search(scenario, top=1, front=False, budget=budget)
            cells.append(f"{cut.best.step_time_s / best - 1:.1%}" if cut.best else "none")
        print(
            f"| {name} | {whole.legal:,} | {took:.0f} | {best:.4g} | {' | '.join(cells)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
