"""One simulated step: links by tier.

Covers: mpsim.load, mpsim.simulate, result.plot.links.
Question: which tier of links is busy when, and which hardly carries anything?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "what-if/oversubscription.yaml"

thin = {"cluster.placement": "by-rack", "cluster.fabric.oversubscription": 5}
result = mpsim.simulate(mpsim.load(SCENARIO).with_values(thin))
result.plot.links().save(OUT / "links.png")
