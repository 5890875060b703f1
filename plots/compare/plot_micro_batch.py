"""Throughput against the size of a microbatch, for three ways to recompute.

Covers: mpsim.sweep, sweep_chart.
Question: which microbatch and which recomputation give the most tokens per second?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import sweep_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"

VALUES = {
    "training.micro_batch": [1, 2, 4, 8],
    "training.recompute": ["none", "selective", "full"],
}

sweep = mpsim.sweep(mpsim.load(SCENARIO), VALUES)
sweep_chart(sweep).save(OUT / "micro_batch.png")
