"""One simulated step: bubbles.

Covers: mpsim.load, mpsim.simulate, result.plot.bubbles.
Question: how much of the step does each rank wait for the pipeline?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "gpt3-175b-a100.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.bubbles().save(OUT / "bubbles.png")
