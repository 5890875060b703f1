"""Copies of what layers keep into the stack of a scan and out of it."""

from __future__ import annotations

import pytest

from mpsim.framework import framework
from mpsim.scenario import Scenario
from mpsim.simulate import simulate_step

LAYERS = 4


def step(stacks: bool, recompute: str = "none") -> float:
    """Step time of four layers on one GPU [s]."""
    data = {
        "schema": 1,
        "model": {"preset": "llama3.1-8b", "layers": LAYERS},
        "cluster": {"preset": "dgx-h100", "nodes": 1, "accelerators_per_node": 1},
        "training": {"global_batch": 1, "sequence_length": 4096, "recompute": recompute},
        "framework": {"preset": "maxtext-gpu", "stacks_kept": stacks},
    }
    return simulate_step(Scenario.from_mapping(data)).timeline.step_time_s


def test_a_scan_copies_what_layers_keep_twice() -> None:
    """Full recomputation keeps inputs of layers, 2 bytes an element, each read and written in both passes."""
    moved = LAYERS * 4 * 2 * 4096 * 4096
    least = moved / 3.35e12
    assert least < step(True, "full") - step(False, "full") < 2.5 * least


def test_more_kept_is_more_copied() -> None:
    """Without recomputation layers keep all that products read."""
    more = {way: step(True, way) - step(False, way) for way in ("full", "none")}
    assert more["none"] > 5 * more["full"]


@pytest.mark.parametrize(
    ("preset", "stacks"),
    [("maxtext-gpu", True), ("pax-gpu", True), ("maxtext-tpu", False), ("torchtitan", False)],
)
def test_scans_of_xla_on_gpus_stack(preset: str, stacks: bool) -> None:
    """XLA's kernels on TPUs write into the stack themselves; torch has none."""
    assert framework(preset).memory.stacks_kept is stacks
