"""Step time against memory for every layout of a model.

Covers: scenarios/best-layout.yaml, mpsim.search, search_chart.
Question: how should a 70-billion-parameter model be laid out on 64 H100, and what does a step cost when some of the memory must stay free?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import search_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "best-layout.yaml"

# what `mpsim search` tries by itself has more context parallelism, chunks and kinds of ZeRO, and takes three times as long
OVER = {
    "parallelism.cp": [1, 2],
    "parallelism.zero": [1, 3],
    "training.micro_batch": [1, 2],
    "schedule.virtual_stages": [2, 5],
}

found = mpsim.search(mpsim.load(SCENARIO), OVER)
search_chart(found).save(OUT / "best_layout.png")
