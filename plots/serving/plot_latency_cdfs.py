"""How latencies of 70 billion parameters on a DGX H100 spread: first tokens, further tokens, gaps.

Covers: latency_chart on given axes, ServicePlots.
Question: how many requests have their first token within a second, and how uneven are the gaps between tokens?
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving" / "llama3-70b-h100.yaml"

busy = mpsim.load(SCENARIO).with_values({"serving.workload.rate": 12.0})
plots = mpsim.simulate(busy).plot
figure = Figure(figsize=(12, 3.8), dpi=150, layout="constrained")
for draw, ax in zip((plots.ttft, plots.tpot, plots.itl), figure.subplots(1, 3), strict=True):
    draw(ax)
figure.savefig(OUT / "latency_cdfs.png", metadata={"Software": None})
