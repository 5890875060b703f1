"""Speed for users against throughput of accelerators: layouts of one DGX H100 at several numbers of users.

Covers: search over a key of the workload, service_front_chart.
Question: what does a faster answer cost in tokens of an accelerator, and with which layout?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import service_front_chart
from mpsim.study.search import search

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving" / "llama3-70b-h100.yaml"
CLOSED = {"arrival": "closed", "rate": None, "concurrency": 8, "requests": 400}

base = mpsim.load(SCENARIO).with_values(
    {**{f"serving.workload.{key}": value for key, value in CLOSED.items()}, "serving.slo": {}}
)
over = {
    "serving.workload.concurrency": [2, 8, 32, 128],
    "parallelism.pp": [1],
    "serving.engine.max_tokens": [8192],
}
found = search(base, over, prune=False)
service_front_chart(found).save(OUT / "pareto.png")
