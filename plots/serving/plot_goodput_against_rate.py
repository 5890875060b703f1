"""Goodput against the rate of requests, for three layouts of the same eight accelerators.

Covers: mpsim.sweep of a service, a chart of its own lines.
Question: up to which rate does each layout keep the limits, and what is left of it beyond?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import Axis, Lines, Series

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving" / "llama3-70b-h100.yaml"
RATES = [4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0]
EVEN = {"requests": 800, "prompt": {"spread": 0.0}, "output": {"tokens": 200, "spread": 0.0}}

base = mpsim.load(SCENARIO).with_values({"serving.workload": EVEN})  # little drain in the rates
sweeps = {
    f"{8 // tp} x tp {tp}": mpsim.sweep(
        base.with_values({"parallelism.tp": tp}), {"serving.workload.rate": RATES}
    )
    for tp in (2, 4, 8)
}
series = [
    Series(name, RATES, [row.summary["goodput_per_s"] for row in sweep], mark="o", size=3.0)
    for name, sweep in sweeps.items()
]
Lines(
    title="Goodput against the rate",
    series=[*series, Series("all", RATES, RATES, "other", line=":", width=1.2)],
    x=Axis(name="requests/s", limits=(0.0, None)),
    y=Axis(name="requests/s within the limits", limits=(0.0, None)),
    size=(6.4, 4.0),
).save(OUT / "goodput_against_rate.png")
