"""Values that a policy keeps by name, and activations that wait in host memory."""

from __future__ import annotations

from typing import Any

import pytest

from mpsim.errors import ScenarioError
from mpsim.hardware import host_of
from mpsim.scenario import Scenario
from mpsim.simulate import resolve, simulate_step
from mpsim.training.memory.activations import kept_by_stage

TOKENS, LAYERS, HIDDEN, KEYS, FFN = 4096, 8, 4096, 1024, 14336
BASE: dict[str, Any] = {
    "schema": 1,
    "model": {"preset": "llama3-8b", "layers": LAYERS},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "parallelism": {"zero": 3},
    "framework": "maxtext-gpu",
}


def scenario(**training: Any) -> Scenario:
    """Eight layers of Llama 3 on eight GPUs, one sequence each."""
    section = {"global_batch": 8, "sequence_length": TOKENS, **training}
    return Scenario.from_mapping({**BASE, "training": section})


def kept(**training: Any) -> float:
    """Bytes that the layers and the embedding of the one stage keep on the device."""
    (stage,) = kept_by_stage(resolve(scenario(**training)))
    return stage.for_input + stage.for_weight


@pytest.mark.parametrize(
    ("keeps", "features"),
    [
        (["query"], HIDDEN),
        (["key", "value"], 2 * KEYS),
        (["output"], HIDDEN),
        (["gate", "up"], 2 * FFN),
        (["query", "key", "value", "output"], 2 * HIDDEN + 2 * KEYS),
    ],
)
def test_a_policy_keeps_what_it_names_beside_the_input_of_every_layer(
    keeps: list[str], features: int
) -> None:
    """Two bytes a feature of each product that is named, for every token of every layer."""
    more = kept(recompute="per-op", recompute_keeps=keeps) - kept(recompute="full")
    assert more == pytest.approx(2 * TOKENS * LAYERS * features, rel=1e-3)


def test_a_policy_runs_again_what_it_does_not_keep() -> None:
    """The more values are kept the less runs again; with all of them kept it is less than a tenth of full recomputation's."""
    again = [
        simulate_step(scenario(**more)).summary["breakdown_s"]["recompute"]
        for more in (
            {"recompute": "full"},
            {"recompute": "per-op", "recompute_keeps": ["query", "key", "value"]},
            {"recompute": "per-op", "recompute_keeps": ["query", "key", "value", "output"]},
            {
                "recompute": "per-op",
                "recompute_keeps": ["query", "key", "value", "output", "context", "gate", "up"],
            },
        )
    ]
    assert again == sorted(again, reverse=True)
    assert again[-1] < 0.2 * again[0]


def test_offloaded_inputs_are_on_the_device_for_the_layer_at_work_alone() -> None:
    """Inputs of all layers leave what a stage keeps, and one of them is beside the layer that is differentiated."""
    inputs = 2 * TOKENS * HIDDEN
    assert kept(recompute="full") - kept(
        recompute="full", offload_activations="inputs"
    ) == pytest.approx(LAYERS * inputs)
    (plain,), (away,) = (
        kept_by_stage(resolve(scenario(recompute="full", **more)))
        for more in ({}, {"offload_activations": "inputs"})
    )
    assert away.on_host == pytest.approx(LAYERS * inputs)
    assert away.in_layers - plain.in_layers == pytest.approx(inputs)


def test_a_step_is_no_shorter_than_its_copies_to_the_host_and_back() -> None:
    """Everything that is kept travels twice over the host's link; of half of the layers half as much, spread over all."""
    plan = resolve(scenario(offload_activations="all"))
    (stage,) = kept_by_stage(plan)
    copies = 2 * stage.on_host / host_of(plan.layout.cluster).link_bandwidth
    whole, half, none = (
        simulate_step(scenario(**more)).summary["step_time_s"]
        for more in (
            {"offload_activations": "all"},
            {"offload_activations": "all", "offload_layers": LAYERS // 2},
            {},
        )
    )
    assert whole > copies > none / 2
    assert none <= half < whole


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"recompute": "full", "offload_activations": "products"}, "set it to inputs"),
        ({"offload_layers": 2}, "no activation is offloaded"),
        ({"offload_activations": "all", "offload_layers": 9}, "set it to 8"),
        ({"recompute": "full", "recompute_keeps": ["query"]}, "only per-op has it"),
    ],
)
def test_what_cannot_wait_on_the_host_is_refused(training: dict[str, Any], words: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(ScenarioError, match=words):
        resolve(scenario(**training))
