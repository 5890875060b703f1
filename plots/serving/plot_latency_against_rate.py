"""Latency against the rate of requests: 70 billion parameters on a DGX H100, two instances of four.

Covers: mpsim.sweep of a service, latency_rate_chart.
Question: at which rate do first tokens and further tokens break their limits?
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import mpsim
from mpsim.plot import latency_rate_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving" / "llama3-70b-h100.yaml"

base = mpsim.load(SCENARIO).with_values({"serving.workload.requests": 500})
sweep = mpsim.sweep(base, {"serving.workload.rate": [1.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0]})
figure = Figure(figsize=(11, 4), dpi=150, layout="constrained")
for ax, name in zip(figure.subplots(1, 2), ("ttft", "tpot"), strict=True):
    latency_rate_chart(sweep, name).plot(ax)
figure.savefig(OUT / "latency_against_rate.png", metadata={"Software": None})
