"""A sweep of four keys as small multiples.

Covers: mpsim.sweep, sweep_chart.
Question: how do tensor and pipeline parallelism, microbatch and recomputation act together?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import sweep_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
VALUES = {
    "parallelism.tp": [1, 2, 4],
    "parallelism.pp": [1, 2, 4],
    "training.micro_batch": [1, 2],
    "training.recompute": ["none", "full"],
}

sweep = mpsim.sweep(mpsim.load(SCENARIO), VALUES)
title = "quickstart: tokens/s per accelerator over four keys"
sweep_chart(sweep).titled(title).save(OUT / "many_keys.png")
