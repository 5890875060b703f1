"""1F1B on 64 ranks.

Covers: timeline_chart where rows are thin and bars are many.
Question: how does a deep pipeline fill and drain?
"""

import sys
from pathlib import Path

from mpsim.engine import run
from mpsim.plot import timeline_chart
from mpsim.program import TICK
from mpsim.schedule import make_orders
from mpsim.training import from_orders

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent

PP, MICROBATCHES = 64, 96
FORWARD_S, BACKWARD_S, WEIGHT_S = 10e-3, 10e-3, 10e-3
LATENCY_S = 0.5e-3

timeline = run(
    from_orders(
        make_orders("1f1b", pp=PP, microbatches=MICROBATCHES),
        forward=FORWARD_S / TICK,
        backward=BACKWARD_S / TICK,
        weight=WEIGHT_S / TICK,
        send=LATENCY_S / TICK,
    )
)
timeline_chart(timeline).save(OUT / "64_stages.png")
