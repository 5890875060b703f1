"""Half H100, half A100: where the slow ones go, and how layers and batch are divided.

Covers: scenarios/what-if/mixed.yaml, cluster.stages, cluster.replicas, training.batch_per_replica, answer_chart.
Question: do slow nodes belong first or last in the pipeline, or in a replica of their own, and what does an uneven division buy?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "what-if" / "mixed.yaml"

LAYERS, BATCH = 20, 128  # of a fast and a slow stage together; of both replicas
UNEVEN = range(12, 18)  # layers of a fast stage
BATCHES = range(80, 113, 4)  # sequences of the fast replica

by_stage, by_replica = mpsim.load(SCENARIO), mpsim.load(SCENARIO, overrides=["replicas"])
fast, slow = by_stage.source.data["cluster"]["stages"]


def split(layers: int, *, slow_first: bool) -> float:
    """Step time with so many layers on each fast stage [s]."""
    each, parts = [layers] * 4 + [LAYERS - layers] * 4, [fast, slow]
    order = -1 if slow_first else 1
    values = {"cluster.stages": parts[::order], "parallelism.layers_per_stage": each[::order]}
    return mpsim.simulate(by_stage.with_values(values)).summary["step_time_s"]


def share(batch: int) -> float:
    """Step time with so many sequences on the fast replica [s]."""
    values = {"training.batch_per_replica": [batch, BATCH - batch]}
    return mpsim.simulate(by_replica.with_values(values)).summary["step_time_s"]


ways = {
    "slow stages last": lambda layers: split(layers, slow_first=False),
    "slow stages first": lambda layers: split(layers, slow_first=True),
}
even = [way(LAYERS // 2) for way in ways.values()] + [share(BATCH // 2)]
found = [min((way(layers), layers) for layers in UNEVEN) for way in ways.values()]
found.append(min((share(batch), batch) for batch in BATCHES))
best = [time for time, _ in found]
names = [*ways, "a slow replica"]
place, division = max(best) / min(best) - 1, min(even) / min(best)
answer = (
    f"Divided evenly the step takes {min(even):.1f} s or more; best are {names[best.index(min(best))]} with {min(best):.2f} s. "
    f"Slow stages take {LAYERS - found[0][1]} layers where fast ones take {found[0][1]}, a slow replica {BATCH - found[2][1]} of {BATCH} "
    f"sequences: how the work is divided is worth a factor {division:.1f}, where the slow nodes sit {place:.0%}."
)
answer_chart(
    names, {"divided evenly": even, "divided best": best}, ylabel="step time (s)", answer=answer
).save(OUT / "mixed.png")
