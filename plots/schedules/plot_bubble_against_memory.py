"""Every schedule: its bubble against the activations that it holds.

Covers: compare_schedules, schedules_chart.
Question: which schedules does no other beat in both bubble and memory?
"""

import sys
from pathlib import Path

from mpsim.plot import schedules_chart
from mpsim.study import Times, compare_schedules

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
RANKS, MICROBATCHES, MEMORY = 4, 16, 5  # activations of a rank's share that fit
TIMES = Times.of(forward=1, backward=1, weight=1, send=0.05)

choices = compare_schedules(pp=RANKS, microbatches=MICROBATCHES, times=TIMES, memory=MEMORY)
display = schedules_chart(choices, memory=MEMORY)
title = f"{RANKS} ranks, {MICROBATCHES} microbatches, F = B = W = 1, messages 0.05"
display.titled(title).save(OUT / "bubble_against_memory.png")
