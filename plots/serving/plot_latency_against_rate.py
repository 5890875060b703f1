"""Latency against the rate of requests: 70 billion parameters on a DGX H100, two instances of four.

Covers: mpsim.sweep of a service, a chart of its own lines.
Question: at which rate do first tokens and further tokens break their limits?
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import mpsim
from mpsim.plot import Axis, Limit, Lines, Series

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving" / "llama3-70b-h100.yaml"

RATES = [1.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0]

base = mpsim.load(SCENARIO).with_values({"serving.workload.requests": 500})
found = [row.summary for row in mpsim.sweep(base, {"serving.workload.rate": RATES})]
figure = Figure(figsize=(11, 4), dpi=150, layout="constrained")
for ax, name in zip(figure.subplots(1, 2), ("ttft", "tpot"), strict=True):
    promised = found[0]["slo"][f"{name}_s"]
    Lines(
        title=f"{name.upper()} against the rate",
        series=[
            Series(
                which, RATES, [summary[f"{name}_s"][which] for summary in found], mark="o", size=3.0
            )
            for which in ("p50", "p90", "p99")
        ],
        x=Axis(name="requests/s", limits=(0.0, None)),
        y=Axis(name=name.upper(), unit="s", log=10),
        limits=[Limit(promised, f"limit {1e3 * promised:.4g} ms")],
    ).plot(ax)
figure.savefig(OUT / "latency_against_rate.png", metadata={"Software": None})
