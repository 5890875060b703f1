"""Batch and cache over time while a burst of requests meets a small cache, on two engines.

Covers: batch_chart and cache_chart on given axes, ServicePlots, preemption.
Question: what does an engine that admits on the prompt alone do when its cache is full, and what one that keeps room for the answer?
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving" / "llama3-70b-h100.yaml"
BURST = {
    "serving.replicas": 1,
    "serving.workload": {"rate": 12.0, "requests": 150, "prompt": 1000, "output": 300},
}
ENGINES = {"vllm-v1": 16, "tensorrt-llm-1.x": 32}  # tokens of a block: 32,000 in all

figure = Figure(figsize=(11, 5.6), dpi=150, layout="constrained")
axes = figure.subplots(2, 2, sharex=True, sharey="row")
for column, (engine, block) in enumerate(ENGINES.items()):
    small = {
        "serving.engine": {"preset": engine, "block": block},
        "serving.kv_blocks": 32_000 // block,
    }
    result = mpsim.simulate(mpsim.load(SCENARIO).with_values({**BURST, **small}))
    result.plot.batch(axes[0][column])
    result.plot.cache(axes[1][column])
    count = result.summary["preemptions"]
    axes[0][column].set_title(f"{engine}: {count} preemptions", loc="right")
    axes[0][column].set_xlabel("")
figure.savefig(OUT / "batch_and_cache.png", metadata={"Software": None})
