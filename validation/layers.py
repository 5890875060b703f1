"""Published timings of expert layers, predicted: from the router's choice to the sum of a token's experts, without norm, router and host.

Covers: rows of validation/data/expert-layers.csv, each with its source; kernels one after the other at the clocks of training, exchanges exposed.
Question: how far is a layer of experts from what was measured, and which part of it takes the time?

Run from the repository's root: python validation/layers.py. It rewrites validation/layers.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

import mpsim
from mpsim.cost import KernelModel
from mpsim.formats.tables import read_rows
from mpsim.parallel import Communication, Compute
from mpsim.schedule import Action
from mpsim.simulate import prepare
from mpsim.training.blocks import Blocks
from mpsim.workload import Module, OperatorKind, Phase, Role

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "validation" / "data" / "expert-layers.csv"
BAR = 0.15
OUTSIDE = (Role.ROUTER, Role.TOP_K)
KINDS = {OperatorKind.GROUPED_GEMM: "products", OperatorKind.QUANTISE: "casts"}
PARTS = ("exchange", "products", "casts", "rest")

Row = dict[str, str]


def scenario(row: Row) -> mpsim.Scenario:
    """One layer of experts on the ranks of the row, each with the row's tokens."""
    ranks, tokens = int(row["ranks"]), int(row["tokens"])
    moe = {name: int(row[name]) for name in ("experts", "top_k", "ffn_hidden")}
    return mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "name": row["id"],
            "model": {
                "hidden": int(row["hidden"]),
                "layers": 1,
                "heads": 16,
                "head_dim": 64,
                "ffn_hidden": 256,
                "vocab": 1024,
                "gated_mlp": True,
                "bias": False,
                "moe": moe,
            },
            "cluster": {
                "accelerator": row["accelerator"],
                "accelerators_per_node": ranks,
                "nodes": 1,
            },
            "parallelism": {"dp": ranks, "ep": ranks},
            "training": {
                "global_batch": ranks,
                "micro_batch": 1,
                "sequence_length": tokens,
                "precision": row["precision"],
            },
            "framework": {
                "preset": "megatron-core-2026",
                "expert_dispatch": "fused" if row["exchange"] == "narrow" else "all-to-all",
                "expert_padding": False,
                "grouped_gemm": True,
            },
        }
    )


def layer(row: Row) -> dict[str, float]:
    """Seconds of the parts of a layer, in the passes that the row names."""
    prepared = prepare(scenario(row))
    plan, costs = prepared.plan, prepared.costs.stage(0)
    own, actions = Blocks(plan, prepared.costs), set(plan.orders.kind.tolist())
    rows = [own.of(plan.layout.stages[0], Action(action)) for action in sorted(actions)]
    found: dict[str, float] = defaultdict(float)
    for items in {block.template: block.items for row in rows for block in row.blocks}.values():
        kernels = [item.operator for item in items if isinstance(item, Compute)]
        if not any(kernel.role is Role.TOP_K for kernel in kernels):
            continue
        if row["passes"] == "forward" and kernels[0].phase is not Phase.FORWARD:
            continue
        mine = [o for o in kernels if o.module is Module.EXPERTS and o.role not in OUTSIDE]
        for kernel, seconds in zip(mine, costs.kernels(mine).tolist(), strict=True):
            found[KINDS.get(kernel.kind, "rest")] += seconds
        chip = prepared.plan.layout.cluster.accelerator
        hot, cold = (
            KernelModel(chip, row["precision"], clocks=clocks).peak_fraction(row["precision"])
            for clocks in ("sustained", "burst")
        )
        found["products"] *= hot / cold
        # DeepEP sends narrow tokens there and wide ones back
        narrow = 0.75 if row["exchange"] == "narrow" else 1.0
        sent = [i for i in items if isinstance(i, Communication) and i.axis in ("ep", "etp")]
        found["exchange"] += narrow * sum(costs.collective(item).seconds for item in sent)
    return found


def report() -> str:
    """The table as Markdown."""
    lines, errors = [], []
    for row in read_rows(DATA):
        found = layer(row)
        predicted, measured = 1e3 * sum(found.values()), float(row["measured_ms"])
        errors.append(predicted / measured - 1)
        parts = " | ".join(f"{1e3 * found[part]:.2f}" for part in PARTS)
        lines.append(
            f"| {row['id']} | {row['accelerator']} | {measured:.2f} | {predicted:.2f} | {errors[-1]:+.0%} | {parts} | {row['source']} |"
        )
    inside = sum(abs(error) <= BAR for error in errors)
    head = [
        "# Published layers of experts, predicted",
        "",
        "From the router's choice to the sum of a token's experts: kernels one after the other at the clocks of training, exchanges exposed [ms]. Rows of",
        "validation/data/expert-layers.csv. Written by `python validation/layers.py`.",
        "",
        f"{inside} of {len(errors)} within {BAR:.0%}; mean error {statistics.fmean(map(abs, errors)):.0%}, bias {statistics.fmean(errors):+.0%}.",
        "",
        f"| layer | chip | measured | predicted | error | {' | '.join(PARTS)} | source |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    return "\n".join([*head, *lines, ""])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    (ROOT / "validation" / "layers.md").write_text(report(), encoding="utf-8")
