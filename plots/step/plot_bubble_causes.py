"""One simulated step: bubble by cause.

Covers: mpsim.load, mpsim.simulate, result.plot.bubbles.
Question: does a rank wait because the pipeline fills and empties, or because another stage is slower?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "what-if/mixed.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.bubbles().save(OUT / "bubble_causes.png")
