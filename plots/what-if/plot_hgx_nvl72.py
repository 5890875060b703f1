"""Nodes of eight or a rack of 72 for a mixture of experts.

Covers: scenarios/what-if/hgx.yaml and nvl72.yaml, answer_chart.
Question: what does one NVLink domain for all experts buy over nodes of eight?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "what-if"

hgx, rack = (mpsim.simulate(mpsim.load(SCENARIOS / f"{name}.yaml")) for name in ("hgx", "nvl72"))
whole = [one.summary["step_time_s"] for one in (hgx, rack)]
exchange = [one.breakdown["exposed_ep"] for one in (hgx, rack)]
answer = (
    f"The rack is {whole[0] / whole[1]:.1f} times as fast: exchanges of experts take {exchange[0] / whole[0]:.0%} of the "
    f"step on nodes of eight and {exchange[1] / whole[1]:.0%} in the rack, and account for "
    f"{(exchange[0] - exchange[1]) / (whole[0] - whole[1]):.0%} of the difference."
)
answer_chart(
    ["DGX B200, 8 nodes of 8", "GB200 NVL72, 16 trays of 4"],
    {"step": whole, "of it exchanges of experts": exchange},
    ylabel="time (s)",
    answer=answer,
).save(OUT / "hgx_nvl72.png")
