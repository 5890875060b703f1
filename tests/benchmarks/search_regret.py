"""Regret of a search: how much slower its best layout is than that of the whole search where it is cut short, and than the best that a person lays out by hand.

    python tests/benchmarks/search_regret.py [--only WORDS] [--budgets 1,2,5,10] [--by-hand]

Budgets are CPU seconds, so that a busy machine shows the same figures. Layouts by hand have lists of layers; the searches have none.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import mpsim
from mpsim.errors import MpsimError
from mpsim.study.search import given, trainings

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"


def _plain(
    model: str, cluster: str, nodes: int, framework: str, **training: object
) -> mpsim.Scenario:
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


def scenarios() -> dict[str, mpsim.Scenario]:
    """Ten questions of different size, model and software."""
    files = ("best-layout", "gpt3-175b-a100", "mixtral-8x7b-h100", "megatron-530b", "quickstart")
    known: dict[str, mpsim.Scenario] = {
        name: mpsim.load(SCENARIOS / f"{name}.yaml") for name in files
    }
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


def by_hand(name: str) -> Iterator[dict[str, object]]:
    """Layouts that a person would write for the two models whose layers do not divide, lists of layers included."""
    places = {"llama3-405b": 128, "deepseek-v3": 64}[name]  # with those of embedding and loss
    layers = {"llama3-405b": 126, "deepseek-v3": 61}[name]
    chosen = {
        "llama3-405b": ((4, 8), (1, 2), (1,), (8, 16, 32, 64)),
        "deepseek-v3": ((1, 2), (1,), (8, 16, 32), (8, 16, 32)),
    }[name]
    habits = (("none", "full"), (1, 2), (1, 2, 4))
    for tp, cp, ep, pp in itertools.product(*chosen):
        for recompute, micro_batch, chunks in itertools.product(*habits):
            each, left = divmod(places, pp * chunks)
            if left:
                continue
            inner = [each] * (pp * chunks - 2)
            last = layers - sum(inner) - (each - 1)
            yield {
                "parallelism.tp": tp,
                "parallelism.cp": cp,
                "parallelism.ep": ep,
                "parallelism.pp": pp,
                "parallelism.sequence_parallel": tp > 1,
                "parallelism.layers_per_stage": [each - 1, *inner, last],
                "schedule.name": "interleaved-1f1b" if chunks > 1 else "1f1b",
                "schedule.virtual_stages": chunks if chunks > 1 else None,
                "training.recompute": recompute,
                "training.micro_batch": micro_batch,
                "parallelism.zero": 1,
            }


def best_by_hand(name: str, scenario: mpsim.Scenario) -> tuple[float, int]:
    """Step time of the best of these that fit, as a search ranks them [s], and how many do."""
    steps: list[tuple[float, float]] = []
    for values in by_hand(name):
        try:
            step = mpsim.simulate(scenario.with_values(values))
        except MpsimError:
            continue
        if step.summary["fits_memory"]:
            took = step.timeline.step_time_s
            steps.append((given.ranked_by(took, step.summary["fits_probability"]), took))
    return min(steps)[1], len(steps)


def _clocked(budget: float | None) -> given.Clock:
    return given.Clock(budget, now=time.process_time)


def _compare_with_hands(only: str) -> None:
    known = scenarios()
    print("| scenario | best by hand (s) | layouts that fit | whole search (s) | regret |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in ("llama3-405b", "deepseek-v3"):
        if only in name:
            # earlier releases of Megatron-Core cannot run any list of layers
            scenario = known[name].with_values({"framework": "megatron-core-2026"})
            best, count = best_by_hand(name, scenario)
            found = mpsim.search(scenario, top=1, front=False).best.step_time_s
            regret = max(0.0, found / best - 1)
            print(f"| {name} | {best:.4g} | {count} | {found:.4g} | {regret:.1%} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--budgets", default="1,2,5,10")
    parser.add_argument("--by-hand", action="store_true")
    options = parser.parse_args()
    budgets = [float(text) for text in options.budgets.split(",")]
    trainings.Clock = _clocked  # type: ignore[misc,assignment]
    if options.by_hand:
        _compare_with_hands(options.only)
        return
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
            f"| {name} | {whole.looked_at:,} | {took:.0f} | {best:.4g} | {' | '.join(cells)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
