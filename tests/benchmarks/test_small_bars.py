"""How fast parts are that others call often: ``pytest tests/benchmarks/test_small_bars.py --benchmark-only``.

The unit is bare: processor time of one ``yield env.timeout(1)`` in one simpy process, measured in the same run; 0.55 us on a quiet core.
"""

from __future__ import annotations

import time

import pytest

from mpsim.workload import Lowering, expand_layer, model

pytestmark = pytest.mark.benchmark(group="parts")

LAYER = 3_600
"""Bare timeouts that the expansion of a layer may take: two milliseconds."""


def test_expansion_of_a_layer(bare, clear):
    """Searching thousands of configurations expands a layer each time."""
    gpt, lowering = model("gpt3-175b"), Lowering(fused_attention=False)
    lengths = range(2048, 2248)  # one that was expanded before is remembered
    begin = time.process_time()
    for length in lengths:
        expand_layer(gpt, lowering, sequences=1, sequence_length=length)
    clear((time.process_time() - begin) / len(lengths) / bare, at_most=LAYER)
