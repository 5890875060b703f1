"""One simulated step: utilisation.

Covers: mpsim.load, mpsim.simulate, result.plot.utilisation.
Question: how busy are compute and links while the step runs?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.utilisation().save(OUT / "utilisation.png")
